"""CODA-Prompt beside its equations: weights and orthogonality by hand, new rows beside old ones, what rests."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.random_numbers import drawn

from kinoray.backbones import load_backbone
from kinoray.backbones.prompts import prefixed
from kinoray.errors import UsageError
from kinoray.methods.coda_prompt import PARTS, Config, Method, orthonormal_beside, unlike_identity, weights_of
from kinoray.testing.engine import first_batch, fresh_session, spec_of
from kinoray.testing.small_stream import suited

CLIPS = drawn(3, 2, 3, 32, 32)
QUERY = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
A = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
K = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)


def task(index: int) -> Any:
    return SimpleNamespace(index=index)


def made(backbone: str = "tiny-clip", tasks: int = 3, **settings: object) -> Method:
    return Method(Config(**settings), load_backbone(backbone), tasks).eval()  # type: ignore[arg-type]


def test_weights_and_orthogonality_are_those_worked_out_by_hand() -> None:
    alpha = weights_of(QUERY, A, K)
    assert alpha.tolist()[0] == pytest.approx([0.7071067812, 0.8944271910])
    assert float(alpha @ torch.tensor([1.0, 3.0]).double()) == pytest.approx(3.3903883542)
    assert unlike_identity(K).item() == 0.75
    for scaled in (weights_of(QUERY, A, 7 * K), weights_of(QUERY, 3 * A, K), weights_of(5 * QUERY, A, K)):
        assert torch.allclose(scaled, alpha)


def test_new_rows_are_orthonormal_and_orthogonal_to_old_ones_also_where_these_are_not() -> None:
    earlier = drawn(5, 12)
    torch.manual_seed(0)
    new = orthonormal_beside(earlier, 4)
    assert torch.allclose(new @ new.T, torch.eye(4).double(), atol=1e-12)
    assert (new @ earlier.double().T).abs().max() < 1e-12
    torch.manual_seed(0)
    rows: list[torch.Tensor] = []
    for row in torch.randn(4, 12, dtype=torch.float64):  # Gram-Schmidt, row by row
        others = torch.cat([earlier.double(), *(r[None] for r in rows)])
        row = row - others.T @ torch.linalg.solve(others @ others.T, others @ row)
        rows.append(row / row.norm())
    assert torch.allclose(new, torch.stack(rows), atol=1e-9)


@torch.no_grad()
def test_a_task_adds_rows_that_are_orthogonal_to_what_the_others_have_become() -> None:
    method = made(per_task=4)
    assert torch.equal(method.embed_video(CLIPS, 0), load_backbone("tiny-clip").eval().embed_video(CLIPS)), "zero-shot"
    for index in range(2):
        method.begin_task(task(index))
        for part in PARTS:
            rows = getattr(method.online, part)
            for block in range(5):
                new = rows[index][block].flatten(1)
                assert torch.allclose(new @ new.T, torch.eye(4), atol=1e-5)
                assert all((new @ old[block].flatten(1).T).abs().max() < 1e-5 for old in [*rows][:index])
            rows[index].add_(0.3 * drawn(*rows[index].shape, seed=index))
    (group,) = method.param_groups().values()
    assert set(group.params) == {f"online.{part}.1" for part in PARTS}


@torch.no_grad()
def test_a_clip_gets_the_weighted_sum_of_all_components_so_far() -> None:
    method = made(per_task=2, length=3, blocks=2)
    online = method.online
    for index in range(2):
        method.begin_task(task(index))
    got = method.embed_video(CLIPS, 0)
    online.components[2].normal_()
    assert torch.equal(method.embed_video(CLIPS, 0), got), "those of tasks to come have no part"
    queries = online.towers.embed_video(CLIPS)
    for clip, query in enumerate(queries):
        prefixes = []
        for block in range(2):
            total = torch.zeros(6, 48)
            for t in range(2):
                for P, k, a in zip(*(getattr(online, part)[t][block] for part in PARTS), strict=True):
                    total += float((query * a) @ k / ((query * a).norm() * k.norm())) * P
            prefixes.append((total[None, :3], total[None, 3:]))
        with prefixed(online.blocks, prefixes):
            assert torch.allclose(online.towers.embed_video(CLIPS[clip : clip + 1])[0], got[clip], atol=1e-5)


def test_old_components_get_no_gradient_and_the_loss_counts_the_rows_of_all_blocks(micro, tmp_path) -> None:
    session = fresh_session(spec_of("coda_prompt", suited("coda_prompt", micro), tmp_path, settings={"per_task": 3}))
    _, batch = first_batch(session)
    method = session.method
    method.begin_task(task(1))
    output = method.loss(batch)
    terms = []
    for part in PARTS:
        for block in range(2):
            rows = torch.cat([getattr(method.online, part)[t][block].flatten(1) for t in range(2)]).detach()
            terms.append(((rows @ rows.T - torch.eye(6)) ** 2).mean().item())
    assert output.log["loss/orthogonality"].item() == pytest.approx(sum(terms), abs=1e-6)
    output.objectives.backward()
    for part in PARTS:
        first, second = getattr(method.online, part)
        assert first.grad is None and second.grad.any()


def test_more_components_than_can_be_orthogonal_are_refused() -> None:
    message = r"at most 48 components, the backbone's dimensions, but 5 tasks need more\. Set per_task=9 at most"
    with pytest.raises(UsageError, match=message):
        made(tasks=5)
