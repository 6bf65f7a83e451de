"""Learners and rules of pictures over two whole tasks: two ranks end as one does, but for the order of sums.

The conformance suite compares a step of the first task, in which no rule has anything to remember yet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from support.pictures import finished, pictures, spec_on
from support.ranks import train_two
from support.rules import learned

from kinoray.testing.engine import built

PAIRS: dict[str, dict[str, Any]] = {
    "bmu_moco_views": {"symmetric": True},
    "ccsl:moco": {"exemplars_per_class": 2},
    "ccsl:simclr": {"exemplars_per_class": 2},
    "ccsl:insdisc": {"exemplars_per_class": 2},
    "simple_replay:moco": {"exemplars_per_class": 2},
    "er_ring:simsiam": {"memory_capacity": 8},
    "der:simsiam": {"memory_capacity": 8},
    "lump:simsiam": {"memory_capacity": 8},
    "si:simsiam": {},
    "pnn": {},
}


def apart(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], names: Iterable[str]) -> float:
    """The distance of two states by the tensors of some names."""
    return sum((one[name] - other[name]).square().sum().item() for name in names) ** 0.5


GROUPED = ("simple_replay:moco", "ccsl:moco")
"""Their replayed rows are spread over groups of batch norm, which ranks share out."""


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "names"), [("tiny-cnn", tuple(PAIRS)), ("tiny-cnn:2", GROUPED)])
def test_two_ranks_learn_two_tasks_as_one_does(backbone: str, names: tuple[str, ...], tmp_path: Path) -> None:
    stream = replace(pictures(tmp_path), backbone=backbone)

    def specs(folder: str) -> list[Any]:
        return [spec_on(stream, name, tmp_path / folder, max_steps=3, **PAIRS[name]) for name in names]

    alone, together = specs("one"), specs("two")
    states = [finished(spec) for spec in alone]
    mp.spawn(train_two, (str(tmp_path), together), nprocs=2)
    for name, state, spec in zip(names, states, together, strict=True):
        of_two, start = learned(spec)[0], dict(built(spec).named_parameters())
        assert of_two.keys() == state.keys()
        common = start.keys() & state.keys()
        ratio = apart(of_two, state, common) / apart(state, start, common)
        assert ratio < 0.05, f"{name}: {ratio:.3f} of what training moved"
