"""InfLoRA beside its equations: directions and memory by hand, and updates that earlier inputs do not feel."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.random_numbers import drawn
from torch import Tensor

from kinoray.backbones import load_backbone
from kinoray.methods.inf_lora import Config, Method, free_directions, remembered

FIRST = torch.diag(torch.tensor([4.0, 2.0, 1.0, 0.5], dtype=torch.float64))
SECOND = torch.tensor([[1, 0.5, 0, 0], [0.5, 2, 0, 0], [0, 0, 0.3, 0], [0, 0, 0, 0.1]], dtype=torch.float64)
NOTHING, E1 = torch.zeros(4, 4, dtype=torch.float64), torch.diag(torch.tensor([1.0, 0, 0, 0], dtype=torch.float64))


def test_the_memory_is_that_worked_out_by_hand() -> None:
    assert torch.allclose(remembered(FIRST, NOTHING, 0.9, first=True), E1)
    A = free_directions(SECOND, E1, 1)
    assert torch.allclose(A, torch.tensor([[0, 0.5773502692, 0, 0]], dtype=torch.float64))
    assert torch.allclose(remembered(SECOND, E1, 0.91, first=False).diagonal(), torch.tensor([1.0, 1, 0, 0]).double())
    assert torch.equal(remembered(SECOND, E1, 0.22, first=False), E1), "0.2232 is held already"


def covariance(seed: int, width: int = 12) -> Tensor:
    x = drawn(40, width, seed=seed).double() * torch.logspace(0, -1, width, dtype=torch.float64)
    return x.T @ x


@pytest.mark.parametrize("threshold", [0.5, 0.95, 0.9999])
def test_memory_grows_as_in_a_plain_loop_and_directions_are_orthogonal_to_it(threshold: float) -> None:
    known, basis = torch.zeros(12, 12, dtype=torch.float64), torch.zeros(12, 0, dtype=torch.float64)
    for task in range(3):
        C = covariance(task)
        A = free_directions(C, known, 3)
        assert (A @ known).abs().max() < 1e-12
        if task == 0:
            assert torch.allclose(A @ A.T, torch.eye(3).double() / 3)
        U, S, _ = torch.linalg.svd(C - basis @ basis.T @ C)
        total = float((torch.linalg.svdvals(C) ** 2).sum())
        held, taken = (total - float((S**2).sum())) / total, 0
        for value in S.tolist():
            share = value**2 / total
            if held + (share if task == 0 else 0) >= threshold:
                break
            held, taken = held + share, taken + 1
        basis = torch.cat([basis, U[:, : max(taken, int(task == 0))]], dim=1)
        known = remembered(C, known, threshold, first=task == 0)
        assert torch.allclose(known, basis @ basis.T, atol=1e-9)


def test_what_a_full_memory_leaves_is_nothing() -> None:
    assert free_directions(SECOND, torch.eye(4).double(), 2).abs().max() < 1e-12


def weights(method: Method) -> dict[str, Tensor]:
    """Of every layer as it was given, by its own name, LoRA's products merged."""
    state = method.towers.state_dict()
    names = {name: name.replace(".parametrizations", "").removesuffix(".original") for name in state}
    return {short: state[name].clone() for name, short in names.items() if not name.endswith(("down_PrI", "up_POr"))}


@pytest.fixture(scope="module", params=["tiny-clip", "tiny"])
def learned(request: pytest.FixtureRequest) -> tuple[str, Tensor, list[dict[str, Tensor]]]:
    """The backbone, what is remembered of the first of two tasks, and the weights before, between and after them, which
    move B at random."""
    method = Method(Config(rank=4, threshold=0.9), load_backbone(request.param), 2).eval()  # type: ignore[arg-type]
    known, found = torch.empty(0), [weights(method)]
    for index in range(2):
        rows = SimpleNamespace(video=drawn(6, 2, 3, 32, 32, seed=index))
        task: Any = SimpleNamespace(index=index, num_tasks=2, total=lambda fn, rows=rows: fn(rows))
        with torch.no_grad():
            known = method.get_buffer("known_NWW").clone()
            method.begin_task(task)
            for number, pair in enumerate(method._pairs()):
                pair.up_POr.copy_(0.1 * drawn(*pair.up_POr.shape, seed=number))
            method.end_task(task)
        found.append(weights(method))
    return request.param, known, found


def test_only_keys_and_values_of_the_video_tower_move_and_queries_stay(learned) -> None:
    backbone, known, (before, _, after) = learned
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    for name in moved:
        if "in_proj" in name:
            third = len(before[name]) // 3
            assert torch.equal(before[name][:third], after[name][:third])
            assert not torch.equal(before[name][third : 2 * third], after[name][third : 2 * third])
    each = {"tiny-clip": ("in_proj_weight",), "tiny": ("k_proj.weight", "v_proj.weight")}[backbone]
    assert len(moved) == len(each) * len(known) and all("vis" in name and name.endswith(each) for name in moved)


def test_what_the_second_task_changes_is_orthogonal_to_what_the_first_one_left(learned) -> None:
    _, known, (_, before, after) = learned
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert all(0 < int(P.trace().round()) < len(P) for P in known)
    for number, name in enumerate(moved):
        update = after[name] - before[name]
        assert update.abs().max() > 1e-2 and (update @ known[number * len(known) // len(moved)]).abs().max() < 1e-5
