"""What an evaluation has embedded: one that is stopped, or whose machine is taken away with notice, goes on behind it.

Embedding the test videos of many tasks takes minutes to hours, ranking seconds. The calls come in the same order at
every start, with the weights that were committed before them, so their number says which is which.
"""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kinoray.disk.durable import whole_file

FILE = "evaluation.safetensors"
"""In the run's folder, from a stop inside an evaluation to the end of that evaluation."""

Found = tuple[np.ndarray, Tensor]
"""Readable rows (V,) int64, and their features (V, ...)."""


class EvaluationStopped(Exception):
    """A stop was requested; `Embedded.write` keeps what is there."""


class Embedded:
    """The answers of one evaluation's calls, in order.

    row: of the result matrices, which the evaluation fills. stops: whether a stop was requested, the same on all ranks.
    """

    def __init__(self, folder: Path, row: int, stops: Callable[[], bool]) -> None:
        self.file, self.row, self.stops = folder / FILE, row, stops
        self.known = _read(self.file, row)
        self.done: list[Found] = []
        self.made: dict[Hashable, Any] = {}
        """What `Tester.once` made of them; a later start makes it again."""

    def next(self, embed: Callable[[], Found]) -> Found:
        """The answer of the next call: as an earlier start of the run found it, or now.

        Raises: EvaluationStopped behind a call that was made now.
        """
        number = len(self.done)
        if number < len(self.known):
            self.done.append(self.known[number])
            return self.known[number]
        self.done.append(embed())
        if self.stops():
            raise EvaluationStopped
        return self.done[number]

    def write(self) -> None:
        """Keep all answers."""
        tensors: dict[str, Tensor] = {}
        for number, (rows, features) in enumerate(self.done):
            tensors |= {f"{number}.rows": torch.from_numpy(rows), f"{number}.features": features.contiguous()}
        with whole_file(self.file) as draft:
            save_file(tensors, draft, {"row": str(self.row)})

    def remove(self) -> None:
        """Forget them: the evaluation is over."""
        self.file.unlink(missing_ok=True)


def _read(file: Path, row: int) -> list[Found]:
    """The answers that lie in a file, [] where there is none or it is of another evaluation."""
    if not file.is_file():
        return []
    with safe_open(file, framework="pt") as kept:
        if (kept.metadata() or {}).get("row") != str(row):
            return []
        count = len(kept.keys()) // 2
        return [(kept.get_tensor(f"{n}.rows").numpy(), kept.get_tensor(f"{n}.features")) for n in range(count)]
