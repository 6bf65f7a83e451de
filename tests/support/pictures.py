"""Learners of pictures in tests: on a stream of coloured ones, alone and under rules."""

from pathlib import Path
from typing import Any

import torch

from kinoray.config import names_of
from kinoray.method import Batch
from kinoray.runs.method_source import find_method
from kinoray.runs.run_spec import RunSpec
from kinoray.streams import Stream
from kinoray.testing.engine import first_batch, fresh_session, run_spec, spec_of
from support.coloured import coloured_stream
from support.rules import learned

SMALL = {"queue_size": 32, "projector_dim": 32, "predictor_dim": 16, "negatives": 16, "dim": 16}
"""Settings of learners that make them small."""


def pictures(folder: Path, protocol: str = "cssl") -> Stream:
    """Two tasks of two colours each."""
    home = folder / f"coloured-{protocol}"
    home.mkdir(parents=True)
    return coloured_stream(home, protocol)


def spec_on(stream: Stream, method: str, folder: Path, **settings: Any) -> RunSpec:
    """A run of a method, small."""
    known = names_of(find_method(method).load().Config)
    small = {name: value for name, value in SMALL.items() if name in known}
    return spec_of(method, stream, folder, settings=small | settings)


def first_of(spec: RunSpec) -> tuple[Any, Batch]:
    """A method before its first step, in train mode, and the step's batch."""
    session = fresh_session(spec)
    _, batch = first_batch(session)
    torch.manual_seed(0)
    return session.method.train(), batch


def finished(spec: RunSpec) -> dict[str, torch.Tensor]:
    """The method state at a run's end."""
    assert run_spec(spec)
    return learned(spec)[0]


def weights_of(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors under a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """The same names, the same bits."""
    assert first.keys() == second.keys() and first
    assert all(torch.equal(first[name], value) for name, value in second.items())
