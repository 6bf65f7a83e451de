"""A run's chain: a digest of its state at the end of each stage, so that whoever trains a stage again can compare.

    chain[i] = SHA-256(chain[i - 1], state[i], ranks[i])

`state` is of all that the next stage is learned from; `ranks` of where each test query stood after this one.
"""

import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kinoray.config import digest_of
from kinoray.metrics import Cells
from kinoray.training.checkpoint import digests_of, state_digest
from kinoray.training.stages import Stage


class Link(NamedTuple):
    """Two digests of the end of a stage."""

    state: str
    ranks: str


def chain_of(links: Iterable[Link | None]) -> list[str | None]:
    """The chain, a digest for each stage; None for a stage that an older version trained, which noted no digests."""
    chain: list[str | None] = []
    for link in links:
        before = chain[-1] if chain else None
        chain.append(None if link is None else digest_of([before, link.state, link.ranks]))
    return chain


def links_in(saved: Sequence[Any], stages: int) -> list[Link | None]:
    """The links of so many stages as a checkpoint keeps them; None where it has none."""
    links: list[Link | None] = [None if pair is None else Link(*pair) for pair in saved[:stages]]
    return links + [None] * (stages - len(links))


def leaves_of(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
    """PART/NAME -> digest of a tensor."""
    return {f"{part}/{name}": digest for part, of in parts.items() for name, digest in digests_of(of).items()}


def state_link(leaves: Mapping[str, str], selections: Sequence[Sequence[int]], features: Mapping[str, str]) -> str:
    """The `state` of a link.

    Args:
        leaves: Digests of the method's tensors, the optimizer's that are kept, and the validation ranks of the stage.
        selections: What each task so far selected.
        features: SHA-256 of each feature file that later stages read.
    """
    return digest_of({"leaves": dict(leaves), "selections": list(map(list, selections)), "features": dict(features)})


def ranks_link(cells: Cells, stage: Stage, queries: Mapping[int, Sequence[tuple[int, str]]]) -> str:
    """The `ranks` of a link: mid-ranks, ties and galleries of a stage's rows of the result matrix, with the queries'
    ids. Names of its own row are without the row."""
    tensors, tested = {}, {}
    for (reading, of_row, task), ranks in cells.items():
        if of_row in stage.rows:
            place = f"{reading}/{task}" if of_row == stage.row else f"{reading}/{of_row}/{task}"
            columns = {"middle": np.float64, "ties": np.int64, "gallery": np.int64}
            for name, kind in columns.items():
                tensors[f"{place}/{name}"] = torch.from_numpy(np.array(getattr(ranks, name), dtype=kind))
            tested[str(task)] = [[int(sample), str(clip)] for sample, clip in queries[task]]
    return state_digest(tensors, {"row": stage.row, "queries": tested})


def processor_of(device: torch.device) -> str:
    """What computes, in words that are the same on machines of one kind."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return " ".join([platform.machine(), *names[:1], torch.backends.cpu.get_cpu_capability()])
