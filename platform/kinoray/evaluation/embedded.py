"""What an evaluation has embedded: one that is stopped, or whose machine is taken away with notice, goes on behind it.

Embedding the test videos of many tasks takes minutes to hours, ranking seconds. The weights are those that were
committed before the evaluation, at every start of it, so what is embedded is known by its name.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kinoray.system.durable import storage_error, whole_file
from kinoray.system.text import one_line
from kinoray.training.checkpoint import state_digest

FILE = "evaluation.safetensors"
"""In the run's folder, from a stop inside an evaluation to the end of that evaluation."""

Found = tuple[np.ndarray, Tensor]
"""Readable rows (V,) int64, and their features (V, ...)."""


class EvaluationStopped(Exception):
    """A stop was requested; `Embedded.write` keeps what is there."""


class Embedded:
    """What one evaluation has embedded, by name.

    row: of the result matrices, which the evaluation fills. stops: whether a stop was requested, the same on all ranks.
    say: told of a file that cannot be used; everything is embedded again then.
    """

    def __init__(self, folder: Path, row: int, stops: Callable[[], bool], say: Callable[[str], Any]) -> None:
        self.file, self.row, self.stops = folder / FILE, row, stops
        self.known = _read(self.file, row, say)
        self.asked: Counter[str] = Counter()
        self.made: dict[Hashable, Any] = {}
        """What `Tester.once` made of them; a later start makes it again."""

    def get(self, name: str, embed: Callable[[], Found]) -> Found:
        """What is embedded under a name: by an earlier start of the run, or now.

        Calls of one name are told apart by their order. Raises: EvaluationStopped behind a call that was made now.
        """
        key = f"{name}#{self.asked[name]}"
        self.asked[name] += 1
        if key not in self.known:
            self.known[key] = embed()
            if self.stops():
                raise EvaluationStopped
        return self.known[key]

    def write(self) -> None:
        """Keep all of it. Raises: StorageFull."""
        tensors: dict[str, Tensor] = {}
        for name, (rows, features) in self.known.items():
            tensors |= {f"{name}.rows": torch.from_numpy(rows), f"{name}.features": features.contiguous()}
        try:
            with whole_file(self.file) as draft:
                save_file(tensors, draft, {"row": str(self.row), "digest": state_digest(tensors, {})})
        except (OSError, SafetensorError) as error:
            raise storage_error(error, self.file.parent) from None

    def remove(self) -> None:
        """Forget them: the evaluation is over."""
        self.file.unlink(missing_ok=True)


def _read(file: Path, row: int, say: Callable[[str], Any]) -> dict[str, Found]:
    """What lies in a file; {} where there is none, where it is of another evaluation, or damaged."""
    if not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as stored:
            facts = stored.metadata() or {}
            if facts.get("row") != str(row):
                return {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError) as error:
        say(f"{file} cannot be read ({one_line(error)}): the clips tested so far are embedded again.")
        return {}
    if facts.get("digest") != state_digest(tensors, {}):
        say(f"{file} is damaged: the clips tested so far are embedded again.")
        return {}
    names = [name.removesuffix(".rows") for name in tensors if name.endswith(".rows")]
    return {name: (tensors[f"{name}.rows"].numpy(), tensors[f"{name}.features"]) for name in names}
