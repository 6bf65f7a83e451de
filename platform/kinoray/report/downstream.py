"""What runs on the encoders of other runs (`--backbone run:FOLDER`) found, for the tables of those other runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from kinoray.runs.finding import find_runs
from kinoray.runs.identity import identity, suffixes
from kinoray.runs.result import Result


class Downstream(NamedTuple):
    """A run on another run's encoder, as a column names it."""

    stream: str
    label: str
    """The method with its overrides, and what tells it from other code or data of that label."""


Scores = Mapping[Path, Mapping[Downstream, float]]
"""Folder of a parent's seed -> main score, in percent, of the runs on its encoder."""


def downstream_scores(parents: Sequence[Result]) -> Scores:
    """Of every finished run on the encoder of a parent, in the parent's own runs folder; over its seeds the mean."""
    found: list[tuple[Result, list[Result], float]] = []
    for root in dict.fromkeys(parent.folder.absolute().parent.parent for parent in parents):
        beside = [parent for parent in parents if parent.folder.absolute().parent.parent == root]
        for child in find_runs(root):
            given = parents_of(child, beside)
            if not given or child.state != "finished" or (score := child.metrics.get(child.score)) is None:
                continue
            found.append((child, given, score))
    apart = suffixes(
        [(f"{child.stream} | {child.label}", identity(child.run)._replace(settings="")) for child, *_ in found]
    )  # their backbones are the parents
    scores: dict[Path, dict[Downstream, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (child, given, score), suffix in zip(found, apart, strict=True):
        for parent in given:
            scores[parent.folder][Downstream(child.stream, child.label + suffix)].append(score)
    return {folder: {name: fmean(values) for name, values in of.items()} for folder, of in scores.items()}


def parents_of(child: Result, parents: Iterable[Result]) -> list[Result]:
    """Those whose encoder the child was given, of the same runs folder: named by its seed's folder, or by its run's and
    the child's seed. Only names count, so that the child may have been started from elsewhere."""
    kind, _, argument = child.run["backbone"].partition(":")
    named = ("", *Path(argument).parts)

    def is_given(parent: Result) -> bool:
        *_, run, seed = parent.folder.absolute().parts
        return named[-2:] == (run, seed) or (named[-1] == run and child.seed == parent.seed)

    return [parent for parent in parents if is_given(parent)] if kind == "run" else []
