"""Plain attributes that change while training are found, with the line that sets them."""

import inspect
import random
from typing import Any

import numpy as np
import pytest
import torch
from support.toys import Exemplars, Forgets
from torch import nn

from kinoray.execution.run_monitor import RunMonitor
from kinoray.testing.engine import run_spec, spec_of
from kinoray.training.plain_state import changed_attributes, plain_state


def line_of(cls: type, text: str) -> int:
    lines, first = inspect.getsourcelines(cls)
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_a_run_says_at_its_first_commit_which_attributes_a_resume_loses(micro, tmp_path) -> None:
    spec = spec_of(Forgets, micro, tmp_path)
    monitor = RunMonitor(spec.folder)
    run_spec(spec, monitor)
    notes = [note for note in monitor.latest()["notes"] if "lost" in note]
    places = [line_of(Forgets, "self.count += 1"), line_of(Forgets, "self.past.append")]
    assert notes == [
        f"Attribute {name} of Forgets changes while training and is lost at a resume "
        f"(set at {inspect.getsourcefile(Forgets)}:{line}); self.register_buffer keeps it."
        for name, line in zip(("count", "past"), places, strict=True)
    ]


def test_a_run_whose_state_is_in_buffers_says_nothing(micro, tmp_path) -> None:
    spec = spec_of(Exemplars, micro, tmp_path)
    monitor = RunMonitor(spec.folder)
    run_spec(spec, monitor)
    assert not [note for note in monitor.latest()["notes"] if "lost" in note]


class Holder(nn.Module):
    """Attributes of many kinds, a registered child, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(2, 2)
        self.register_buffer("saved", torch.zeros(2))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)
        self.number, self.text, self.nothing, self.words = 1, "a", None, {"b", "a"}
        self.array, self.tensor = np.arange(3), torch.arange(3)
        self.nested = {"x": [1, {"y": torch.zeros(1)}], "me": self.child}
        self.python, self.numpy = random.Random(0), np.random.default_rng(0)
        self.torch = torch.Generator().manual_seed(0)
        self.hidden = [nn.Linear(1, 1, bias=False)]
        nn.init.zeros_(self.hidden[0].weight)


def keep_in_place(holder: Any) -> None:
    holder.nested["x"][1]["y"].add_(1)


CHANGES = {
    "number": lambda holder: setattr(holder, "number", 2),
    "nothing": lambda holder: setattr(holder, "nothing", torch.zeros(1)),
    "words": lambda holder: holder.words.add("c"),
    "array": lambda holder: holder.array.fill(7),
    "tensor": lambda holder: holder.tensor.add_(1),
    "nested": keep_in_place,
    "python": lambda holder: holder.python.random(),
    "numpy": lambda holder: holder.numpy.random(),
    "torch": lambda holder: torch.rand(1, generator=holder.torch),
    "hidden": lambda holder: nn.init.ones_(holder.hidden[0].weight),
    "unsaved": lambda holder: holder.unsaved.add_(1),
    "new": lambda holder: setattr(holder, "new", 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_any_kind_is_seen(name: str) -> None:
    holder = Holder()
    before = plain_state(holder)
    assert changed_attributes(before, plain_state(holder)) == []
    CHANGES[name](holder)
    assert changed_attributes(before, plain_state(holder)) == [("", name)]


def test_saved_state_and_mode_are_no_plain_attributes() -> None:
    holder = Holder()
    before = plain_state(holder)
    holder.saved.add_(1)
    nn.init.ones_(holder.child.weight)
    holder.eval()
    assert changed_attributes(before, plain_state(holder)) == []
    assert changed_attributes(before, plain_state(Holder())) == []
