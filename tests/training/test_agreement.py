"""Ranks that hold different weights are found before anything is committed."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from support.ranks import train_norms

from kinoray.training.checkpoint import check_agreement, digests_of, newest
from kinoray.training.distributed import World


def test_ranks_that_diverge_fail_at_the_tasks_end_and_name_the_tensor(micro, tmp_path: Path) -> None:
    mp.spawn(train_norms, (str(tmp_path), micro), nprocs=2)
    for rank in range(2):
        message = (tmp_path / f"{rank}.txt").read_text()
        assert message.startswith("The workers' weights differ: norm.running_mean is another on rank 1 than on rank 0")
        assert "\n" not in message
    checkpoint = newest(Path((tmp_path / "0-folder.txt").read_text()) / "checkpoints", say=print)
    assert checkpoint is None or checkpoint.position.step > 0, "the end of a task was committed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_one_changed_value_of_any_type_changes_the_digest_of_its_tensor_alone(dtype: torch.dtype) -> None:
    state = {"a": torch.zeros(3, 2, dtype=dtype), "b": torch.zeros((), dtype=dtype), "empty": torch.zeros(0)}
    before = digests_of(state)
    state["a"].T[1, 2] = 1
    after = digests_of(state)
    assert [before[name] == after[name] for name in state] == [False, True, True]
    check_agreement(state, World())
