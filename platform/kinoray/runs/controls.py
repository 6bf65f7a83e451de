"""Controls: what a method's gain must be held against. One a run, `--control NAME`, and part of its name.

| control | what it is | what it shows |
| --- | --- | --- |
| `rate/N` | the method at an N-th of its rate | whether a gain is that of a smaller rate |
| `random-encoder` | fresh weights and no step | what the data gives to any encoder |
| `from-scratch` | fresh weights, trained | what pre-training is worth |
| `order-blind` | joint training, each clip's frames shuffled, in tests too | whether order is needed at all |
| `first-frame` | joint training, every frame is the first | whether one picture is enough |
"""

import re
from dataclasses import dataclass

from kinoray.config import Order
from kinoray.errors import UsageError, unknown


@dataclass(frozen=True)
class Control:
    """What a control changes of a run."""

    name: str = ""
    """Empty: there is none."""
    rate: int = 1
    """Divides the learning rate."""
    is_fresh: bool = False
    """Whether the backbone's weights are drawn anew by the seed."""
    joint: bool = False
    zero_shot: bool = False
    order: Order = ""


NONE = Control()
CONTROLS = (
    Control("random-encoder", is_fresh=True, zero_shot=True),
    Control("from-scratch", is_fresh=True),
    Control("order-blind", joint=True, order="shuffled"),
    Control("first-frame", joint=True, order="first"),
)


def control_of(name: str) -> Control:
    """A control by its name; "" is none. Raises: UsageError for an unknown one."""
    if rate := re.fullmatch(r"rate/([2-9]|[1-9]\d{1,3})", name):
        return Control(name, rate=int(rate[1]))
    known = {control.name: control for control in (NONE, *CONTROLS)}
    if name not in known:
        raise unknown("control", name, ["rate/2", *list(known)[1:]])
    return known[name]


def check_control(name: str, joint: bool, zero_shot: bool, equal_flops: bool) -> None:
    """Refuse a control beside `joint` or `zero_shot`, and equal budgets beside what does not train task by task.

    Raises: UsageError.
    """
    control = control_of(name)
    asked = "joint" if joint else "zero_shot" if zero_shot else ""
    if name and asked:
        raise UsageError(f"`control` {name} already decides what is trained: leave `{asked}` out.")
    if control.joint or control.zero_shot:
        asked = f"control {name}"
    if equal_flops and asked:
        raise UsageError(f"`equal_flops` sets steps per task, but `{asked}` does not train task by task: drop one.")
