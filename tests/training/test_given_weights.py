"""What a method was given and leaves alone is in no checkpoint, and nothing else is left out."""

from pathlib import Path

import pytest
import torch
from torch import nn

from kinoray.errors import CheckpointCorrupt
from kinoray.testing.engine import resumed, spec_of, state_of, stopped
from kinoray.testing.small_stream import suited
from kinoray.training.checkpoint import GivenWeights, Position, bit_sum, commit, load_weights, newest, take_fence


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.adapter = nn.Linear(3, 3)


def made(seed: int = 0) -> Adapted:
    torch.manual_seed(seed)
    return Adapted()


def committed(method: nn.Module, given: GivenWeights, folder: Path):
    left_out = given.unchanged(method)
    tensors = {name: value for name, value in method.state_dict().items() if name not in left_out}
    commit(folder, Position(), {"method": tensors}, {"given": left_out}, take_fence(folder))
    return newest(folder, say=pytest.fail)


def test_frozen_weights_come_back_from_whoever_built_them(tmp_path) -> None:
    method = made()
    given = GivenWeights(method)
    with torch.no_grad():
        method.adapter.weight.fill_(7)
    checkpoint = committed(method, given, tmp_path)
    assert sorted(checkpoint.tensors("method")) == ["adapter.bias", "adapter.weight"]
    again = made()
    load_weights(again, checkpoint)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), method.parameters(), strict=True))
    with pytest.raises(CheckpointCorrupt, match=r"frozen\.weight is not the weight that the run began with"):
        load_weights(made(seed=1), checkpoint)


@pytest.mark.parametrize("how", ["in place", "through data", "permuted", "another parameter", "gradients on"])
def test_a_frozen_weight_that_was_touched_is_committed(how: str) -> None:
    method = made()
    given = GivenWeights(method)
    weight = method.frozen.weight
    with torch.no_grad():
        if how == "in place":
            weight[0, 0] += 1
        elif how == "through data":
            weight.data[0, 0] += 1
        elif how == "permuted":
            weight.copy_(weight.flip(0))
        elif how == "another parameter":
            method.frozen.weight = nn.Parameter(weight.clone(), requires_grad=False)
        else:
            weight.requires_grad_(True)
    assert sorted(given.unchanged(method)) == ["frozen.bias"]


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path) -> None:
    method = made()
    checkpoint = committed(method, GivenWeights(method), tmp_path)
    with pytest.raises(RuntimeError, match=r"adapter.*is in the checkpoint and not in the method"):
        load_weights(nn.ModuleDict({"frozen": made().frozen}), checkpoint)
    with pytest.raises(RuntimeError, match="frozen"):
        load_weights(nn.ModuleDict({"adapter": made().adapter}), checkpoint)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (3,), (8, 5)])
def test_the_sum_sees_any_single_change(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.zeros(shape, dtype=dtype)
    changed = value.clone()
    changed.view(-1)[-1] = 1
    assert bit_sum(value) == bit_sum(value.clone()) != bit_sum(changed)


def test_a_commit_in_the_middle_of_a_task_is_no_larger_than_three_times_what_trains(micro, tmp_path) -> None:
    """Weights and two moments of the optimizer; the frozen CLIP is in no checkpoint, and resuming changes nothing."""
    spec = spec_of("frame_fusion_moe", suited("frame_fusion_moe", micro), tmp_path, settings={"validations": 1})
    method = stopped(spec, 2)
    checkpoint = newest(Path(spec.folder) / "checkpoints", say=pytest.fail)
    assert checkpoint.position.step > 0
    files = {path.name: path.stat().st_size for path in checkpoint.folder.glob("*.safetensors")}
    trained = sum(p.nbytes for group in method.param_groups().values() for p in group.params.values())
    assert not any("token_embedding" in name for name in checkpoint.tensors("method"))
    assert files["method.safetensors"] + files["optimizer.safetensors"] <= 3.1 * trained, (
        f"{sum(files.values()) / trained:.2f} times"
    )
    before = state_of(method)
    assert all(torch.equal(before[name], value) for name, value in state_of(resumed(spec)).items())
