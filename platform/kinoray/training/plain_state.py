"""State that stands in plain Python attributes: nothing saves it, so a resumed run has lost it.

`plain_state` takes the print of every attribute that a method's state dict does not hold. What the print of a method
that has trained and that of the same method resumed do not share is lost; `attribute_place` finds the line to blame.
"""

import ast
import hashlib
import inspect
import random
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kinoray.method import BaseMethod

INTERNAL = frozenset(vars(nn.Module()))
"""Attributes of every `nn.Module` that torch looks after."""
LIBRARIES = ("torch", "torchvision", "transformers", "open_clip")
"""Their modules fill caches at first use, which are no state."""
MADE_ANEW = ("__init__", "grow", "begin_task")
"""What these verbs set is set again at resume."""
DEEPEST = 6

State = dict[tuple[str, str], str]
"""(module, attribute) -> print of the value; the method itself is the module ""."""


def plain_state(method: nn.Module) -> State:
    """The print of every attribute beyond parameters, saved buffers and modules; equal values have equal prints.

    What an attribute holds of these counts by its type alone: it is saved where it belongs."""
    own = {id(part) for part in (*method.modules(), *method.state_dict(keep_vars=True).values())}
    prints = {}
    for name, module in method.named_modules():
        if type(module).__module__.partition(".")[0] in LIBRARIES:
            continue
        values = {key: value for key, value in vars(module).items() if key not in INTERNAL}
        values |= {key: value for key, value in module.named_buffers(recurse=False) if id(value) not in own}
        for key, value in values.items():
            prints[name, key] = hashlib.sha256("\n".join(_lines(value, own, 0)).encode()).hexdigest()
    return prints


def changed_attributes(before: State, after: State) -> list[tuple[str, str]]:
    """(module, attribute) of what one has and the other has not, or has with another value."""
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def attribute_warning(method: nn.Module, module: str, attribute: str) -> str:
    """One line about an attribute that a resumed run loses."""
    owner = method.get_submodule(module)
    place = attribute_place(method, owner, attribute)
    return (
        f"Attribute {attribute} of {type(owner).__name__}{f' ({module})' if module else ''} changes while training and "
        f"is lost at a resume{f' (set at {place})' if place else ''}; self.register_buffer keeps it."
    )


def attribute_place(method: nn.Module, owner: nn.Module, attribute: str) -> str:
    """`file:line` where the owner's or the method's class sets an attribute, or uses it, outside `MADE_ANEW`; "" where
    none does, or has no source."""
    uses = [
        (rank, f"{inspect.getsourcefile(cls)}:{line}")
        for cls in dict.fromkeys([*type(owner).__mro__, *type(method).__mro__])
        if not issubclass(nn.Module, cls) and cls is not BaseMethod
        for rank, line in sorted(_uses(cls, attribute))
    ]
    return min(uses, key=itemgetter(0))[1] if uses else ""


class AttributeWatch:
    """Finds, once in a run, which plain attributes its method changes while it trains."""

    def __init__(self) -> None:
        self.before: State | None = None
        self.asked = False

    def start(self, method: nn.Module) -> None:
        """Take the prints before the first step of this process."""
        self.before = self.before or plain_state(method)

    def warnings(self, method: nn.Module) -> Iterator[str]:
        """One line per changed attribute, the first time that it is asked after steps."""
        if self.before is None or self.asked:
            return
        self.asked = True
        for module, attribute in changed_attributes(self.before, plain_state(method)):
            yield attribute_warning(method, module, attribute)


def _uses(cls: type, attribute: str) -> Iterator[tuple[int, int]]:
    """(rank, line) of what a class's functions do with an attribute: 0 where they set it, 1 where they probably change
    it in place (`x.keys.append(...)`, `x.keys[0] = ...`), 2 where they read it."""
    try:
        lines, first = inspect.getsourcelines(cls)
        body = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, or pickled by value
        return
    assert isinstance(body, ast.ClassDef)
    for node in (node for part in body.body if getattr(part, "name", "") not in MADE_ANEW for node in ast.walk(part)):
        inner = getattr(node, "value", None)
        if isinstance(node, ast.Attribute) and node.attr == attribute:
            yield 2 if isinstance(node.ctx, ast.Load) else 0, first + node.lineno - 1
        elif isinstance(inner, ast.Attribute) and inner.attr == attribute and _changes(node):
            yield 1, first + inner.lineno - 1


def _changes(node: ast.AST) -> bool:
    """Whether it calls something of its value, or fills a place in it."""
    return isinstance(node, ast.Attribute) or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))


def _lines(value: Any, own: set[int], depth: int) -> Iterator[str]:
    """A value as lines of text that are equal for equal values. Callables and what cannot be looked into count by
    their type alone."""
    if id(value) in own:
        yield type(value).__name__
    elif isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        yield f"tensor {tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(data).hexdigest()}"
    elif isinstance(value, np.ndarray):
        data = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
        yield f"array {value.dtype} {value.shape} {hashlib.sha256(data).hexdigest()}"
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        yield f"{type(value).__name__} {value!r}"
    elif depth == DEEPEST:
        yield type(value).__name__
    elif isinstance(value, torch.Generator):
        yield from _lines(value.get_state(), own, depth + 1)
    elif isinstance(value, random.Random):
        yield f"random {value.getstate()!r}"
    elif isinstance(value, np.random.Generator):
        yield f"numpy {value.bit_generator.state!r}"
    elif isinstance(value, nn.Module):  # one that is not registered: its weights are not saved either
        yield type(value).__name__
        yield from _lines(dict(value.state_dict()), own, depth + 1)
    elif isinstance(value, Mapping):
        yield f"mapping of {len(value)}"
        for key in sorted(value, key=repr):
            yield f"key {key!r}"
            yield from _lines(value[key], own, depth + 1)
    elif isinstance(value, (set, frozenset)):
        yield f"set {sorted(map(repr, value))}"
    elif isinstance(value, (list, tuple, deque)):
        yield f"{type(value).__name__} of {len(value)}"
        for item in value:
            yield from _lines(item, own, depth + 1)
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, type):
        yield type(value).__name__
        yield from _lines(vars(value), own, depth + 1)
    else:
        yield type(value).__name__
