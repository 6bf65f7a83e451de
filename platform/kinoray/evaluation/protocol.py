"""What a protocol is: which stages a run has, how it is validated and tested, and what its numbers are called.

One file of `kinoray.evaluation.protocols` per protocol, with `class Protocol(BaseProtocol)`; its name is the file's,
with `-` for `_`. A user's own file is the same where a stream names it (`./videos:./my_protocol.py`).
Everything is a rank: retrieval ranks the right video among a gallery, classification the right class
among the classes. So result matrices, forgetting, validation, sweeps, tables and reports are the same for all.

The facts are read without torch; a file that needs it imports it inside its verbs.
"""

import importlib
import itertools
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from kinoray import metrics
from kinoray.config import Count, build, config, names_of
from kinoray.errors import UsageError, unknown
from kinoray.evaluation import protocols
from kinoray.metrics import Ranks
from kinoray.source import OwnName, Source, class_of, whole
from kinoray.training.stages import BEFORE, Stage

if TYPE_CHECKING:
    from kinoray.evaluation.tester import Tester

Matrices = Mapping[str, ArrayLike | Sequence[Sequence[float | None]]]
OF_RANKS = ("MedR", "MeanR")
"""Metrics that need the ranks themselves; all others follow from result matrices and numbers of queries."""
MOST_SHOWN = 3
"""Metrics in a line of text."""


class BaseProtocol(ABC):
    """Base of every protocol: facts as class attributes, and three verbs.

    A *reading* is one way to rank the same queries; "" is the main one, whose matrices have the scores' own names. The
    matrices of another are called "reading/score", and it adds the metrics "score_reading", overall, and "BWF_reading".
    """

    scores: ClassVar[Mapping[str, int]]
    """Score -> the k of its top k, in percent: {"accuracy": 1}. The first chooses weights and fills the matrix."""
    like: ClassVar[str] = ""
    """The protocol whose methods suit this one, too."""
    about: ClassVar[str]
    """What the scores are, in a line for readers of a report."""
    headlines: ClassVar[tuple[str, ...]]
    """Metrics that a page or a notebook shows, the most important first."""
    objective: ClassVar[str]
    """What a sweep optimises where it is not told."""
    default_learner: ClassVar[str] = "base_moco"
    """The method that a rule wraps where it is not told."""
    reads_text: ClassVar[bool] = True
    """Whether queries are captions: then a backbone must read text."""
    readings: ClassVar[tuple[str, ...]] = ("",)
    """The readings that `test` fills, the main one first."""
    pooled: ClassVar[bool] = False
    """Whether overall scores, MedR and MeanR are over all queries; "_tasks" beside them are means over tasks."""

    gallery_grows: ClassVar[bool] = False
    """Whether a test reads the features that were stored after earlier tasks."""

    looks_ahead: ClassVar[bool] = False
    """Whether every task is tested from before the first training on, rather than once it is learned: then the result
    matrix is full, and has a row more (`training.stages.BEFORE`)."""

    name: str
    """As streams name it; `load_protocol` sets it."""

    @property
    def score(self) -> str:
        """The main score."""
        return next(iter(self.scores))

    @property
    def brief(self) -> tuple[str, ...]:
        """The metrics of one line of text."""
        return self.headlines[:MOST_SHOWN]

    @property
    def matrix_names(self) -> list[str]:
        """Names of the result matrices."""
        return [matrix_name(reading, score) for reading in self.readings for score in self.scores]

    @property
    def metrics(self) -> dict[str, str]:
        """Every metric of `summarise` -> which way is better, "max" or "min"."""
        better = dict.fromkeys(self.scores, "max") | dict.fromkeys(OF_RANKS, "min")
        better |= {"FR": "min", "HM": "max", "BWF": "min", f"{self.score}_current": "max"}
        better |= {f"{name}_tasks": better[name] for name in (*self.scores, *OF_RANKS) if self.pooled}
        better |= dict.fromkeys(("Transfer", "Average", "Last"), "max") if self.looks_ahead else {}
        for reading in filter(None, self.readings):
            better |= {_metric_name(reading, name): "max" for name in self.scores} | {f"BWF_{reading}": "min"}
        return better

    @property
    def objectives(self) -> dict[str, str]:
        """The metrics that a sweep can optimise -> "max" or "min": those that follow from result matrices."""
        return {name: better for name, better in self.metrics.items() if not name.startswith(OF_RANKS)}

    def task_columns(self, score: str) -> tuple[str, ...]:
        """Columns of a table under each task.

        Args:
            score: The score asked for.
        """
        return (score, "FR")

    def overall_columns(self, score: str) -> tuple[str, ...]:
        """Columns of a table under "Overall".

        Args:
            score: The score asked for.
        """
        return (score, "FR", "HM")

    def galleries(self, clips: Sequence[int]) -> list[int]:
        """How many clips each task's queries are ranked among at the end; [] where classes are ranked.

        Args:
            clips: Number of test clips of each task.
        """
        return list(clips)

    def score_named(self, text: str) -> str:
        """A score by its name.

        Args:
            text: The name, in any case and without `@`: "r5" is "R@5".

        Raises:
            UsageError: There is no such score.
        """
        known = {_bare(name): name for name in self.scores}
        if _bare(text) not in known:
            names = list(known)
            words = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
            raise UsageError(f"There is no metric {text!r}. Compare by {words}.")
        return known[_bare(text)]

    def stages(self, tasks: int, joint: bool = False, zero_shot: bool = False, held_out: int = 0) -> tuple[Stage, ...]:
        """What is learned and tested, in order.

        Joint training and zero-shot fill the last row only; zero-shot all rows where the others do, too.

        Args:
            tasks: How many.
            joint: All tasks are learned at once.
            zero_shot: Nothing is learned.
            held_out: Sets that are tested like tasks and stand behind them, where the protocol looks ahead.
        """
        all_tasks = tuple(range(tasks))
        tested = tuple(range(tasks + held_out))
        if joint or zero_shot:
            same = (BEFORE, *all_tasks[:-1]) if zero_shot and self.looks_ahead else ()
            return (Stage(0 if joint else None, tested, tasks - 1, one_for_all=True, same_rows=same),)
        if self.looks_ahead:
            return tuple(Stage(task, tested, task, before=() if task else tested) for task in all_tasks)
        return tuple(Stage(task, all_tasks[: task + 1], task) for task in all_tasks)

    @abstractmethod
    def validate(self, tester: "Tester", task: int) -> Ranks:
        """Ranks on the validation split of the task being trained; they choose its weights.

        Args:
            tester: Embeds and ranks with the method as it is.
            task: Index of the task, from 0.

        Returns:
            The ranks, or None to keep the last weights.
        """

    @abstractmethod
    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        """Ranks of every query of a stage's tasks.

        Args:
            tester: Embeds and ranks with the method as it is.
            stage: What was learned, and which tasks are tested.
            split: "test" or "validation".

        Returns:
            Reading -> task index -> ranks.
        """

    def summarise(
        self, matrices: Matrices, queries: Sequence[int] = (), final: Sequence[Ranks] = ()
    ) -> dict[str, float | None]:
        """All metrics of a run; None where one has no meaning.

        Args:
            matrices: As of `metrics_of`.
            queries: As of `metrics_of`.
            final: Ranks of each task's queries after the last training.
        """
        from_ranks = _rank_metrics(final)
        if self.pooled:
            from_ranks = {f"{name}_tasks": value for name, value in from_ranks.items()}
            from_ranks |= _rank_metrics([Ranks.pooled(final)] if final else [])
        return self.metrics_of(matrices, queries) | from_ranks

    def metrics_of(
        self, matrices: Matrices, queries: Sequence[int] = (), score: str | None = None, tasks: int | None = None
    ) -> dict[str, float | None]:
        """The metrics that follow from result matrices: `objectives`.

            overall score = mean over tasks, or, where pooled, sum_t n_t A[last][t] / sum_t n_t of n_t queries

        Args:
            matrices: Result matrices by name (`matrix_names`), each (n, n) for n tasks, in percent.
            queries: Number of each task's queries, where overall scores are pooled.
            score: The one that FR, HM, BWF, the current mean, Transfer, Average and Last are of; None: the main one.
            tasks: As things stood after so many tasks; None: all.
        """
        cut = {name: _first_rows(rows, tasks) for name, rows in matrices.items()}
        score = score or self.score
        main = cut[score]
        scores = {
            _metric_name(reading, name): self._overall(cut[matrix_name(reading, name)], queries)
            for reading, name in itertools.product(self.readings, self.scores)
            if matrix_name(reading, name) in cut
        }
        if self.pooled:
            scores |= {f"{name}_tasks": metrics.final_mean(cut[name]) for name in self.scores if name in cut}
        if self.looks_ahead:
            scores |= {"Transfer": metrics.transfer(main), "Average": metrics.average(main)}
            scores |= {"Last": metrics.final_mean(main)}
        return {
            **scores,
            "FR": metrics.overall_forgetting(main),
            "HM": metrics.harmonic_mean(main),
            "BWF": metrics.backward_forgetting(main),
            **{f"BWF_{r}": _forgetting(cut.get(matrix_name(r, score))) for r in self.readings if r},
            f"{score}_current": metrics.current_mean(main),
        }

    def _overall(self, matrix: np.ndarray, queries: Sequence[int]) -> float | None:
        """The overall score of a result matrix."""
        return _weighted(metrics.final_row(matrix), queries) if self.pooled else metrics.final_mean(matrix)


def protocol_names() -> list[str]:
    """Names of the protocols: one file each."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(protocols.__path__))


def load_protocol(name: str) -> BaseProtocol:
    """A protocol by name; it holds facts alone, so there is one of each.

    Args:
        name: A name, or the path of a custom protocol's file.

    Raises:
        UsageError: The name is unknown, with the nearest ones, or a custom protocol does not run.
    """
    return _own_protocol(name.source) if isinstance(name, OwnName) else _load(name)


@cache
def _load(name: str) -> BaseProtocol:
    if name not in protocol_names():
        raise unknown("protocol", name, protocol_names())
    protocol = importlib.import_module(f"{protocols.__name__}.{name.replace('-', '_')}").Protocol()
    protocol.name = name
    return protocol


@cache
def _own_protocol(source: Source) -> BaseProtocol:
    """The protocol of a user's file or class. Raises: UsageError where it does not say what every protocol says."""
    cls: type[Any] = whole(class_of(source, "Protocol", BaseProtocol)[0], source.name)
    if lacking := [fact for fact in ("scores", "about", "headlines", "objective") if not hasattr(cls, fact)]:
        raise UsageError(f"{source.name}: its class lacks {' and '.join(lacking)}. See `kinoray new protocol`.")
    protocol = cls()
    protocol.name = source.name
    facts_of(protocol)
    return protocol


Name = Annotated[str, Field(pattern=r"^[\w@%+./ -]{1,60}$")]
Names = tuple[Name, ...]


@config
class Facts:
    """What a record says of a user's own protocol: what shows results need, for they run no recorded code."""

    scores: dict[Name, Count]
    like: str
    about: str
    headlines: Names
    objective: Name
    reads_text: bool
    readings: tuple[Annotated[str, Field(pattern=r"^[\w-]{0,60}$")], ...]
    pooled: bool
    metrics: dict[Name, Literal["max", "min"]]
    task_columns: dict[Name, Names]
    overall_columns: dict[Name, Names]
    """Of each score."""
    ranks_clips: bool
    """Whether `galleries` gives numbers."""
    own_metrics: bool
    """Whether it computes its metrics itself."""
    looks_ahead: bool = False

    def __post_init__(self) -> None:
        if unknown_ones := [name for name in (*self.headlines, self.objective) if name not in self.metrics]:
            raise ValueError(f"{unknown_ones[0]} is not one of the protocol's `metrics`, {', '.join(self.metrics)}")


def facts_of(protocol: BaseProtocol) -> Facts:
    """What a record says of a custom protocol.

    Args:
        protocol: The protocol.

    Raises:
        UsageError: The facts do not go together.
    """
    by_score = {name: {s: getattr(protocol, name)(s) for s in protocol.scores} for name in COLUMNS}
    formulas = [getattr(type(protocol), name) is getattr(BaseProtocol, name) for name in ("metrics_of", "summarise")]
    made = by_score | {"ranks_clips": bool(protocol.galleries([1])), "own_metrics": not all(formulas)}
    stated = {name: getattr(protocol, name) for name in names_of(Facts) if name not in made}
    return build(Facts, stated | made, f"the protocol {protocol.name}")


COLUMNS = "task_columns", "overall_columns"
FACTS = "scores", "like", "about", "headlines", "objective", "reads_text", "readings", "pooled", "looks_ahead"
"""What `RecordedProtocol` says as it was recorded."""


class RecordedProtocol(BaseProtocol):
    """A custom protocol as a record has it. It tests nothing, and computes no metric that its code computes.

    Args:
        name: The protocol's name in the record.
        facts: What the record says of it.
    """

    def __init__(self, name: str, facts: Facts) -> None:
        self.name, self.facts = name, facts
        for fact in FACTS:
            setattr(self, fact, getattr(facts, fact))

    @property
    def metrics(self) -> dict[str, str]:
        return dict(self.facts.metrics)

    def task_columns(self, score: str) -> tuple[str, ...]:
        return self.facts.task_columns[score]

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return self.facts.overall_columns[score]

    def galleries(self, clips: Sequence[int]) -> list[int]:
        return list(clips) if self.facts.ranks_clips else []

    def metrics_of(self, *matrices: Any, **options: Any) -> dict[str, float | None]:
        return {} if self.facts.own_metrics else super().metrics_of(*matrices, **options)

    def summarise(self, *matrices: Any, **options: Any) -> dict[str, float | None]:
        return {} if self.facts.own_metrics else super().summarise(*matrices, **options)

    def validate(self, tester: "Tester", task: int) -> Ranks:
        raise NotImplementedError

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        raise NotImplementedError


def recorded_protocol(record: Mapping[str, Any]) -> BaseProtocol:
    """The protocol that a record names; no recorded code is run.

    Args:
        record: A run.json, a sweep.json or what becomes one.

    Raises:
        UsageError: The name is unknown, or the facts are none.
    """
    name, source = record["protocol"], record.get("protocol_source")
    if source is None or isinstance(name, OwnName):
        return load_protocol(name)
    return RecordedProtocol(name, build(Facts, source.get("facts", {}), f"the recorded protocol {name}"))


def matrix_name(reading: str, score: str) -> str:
    """What the result matrix of a score in a reading is called.

    Args:
        reading: One of `readings`; "": the main one.
        score: A score of the protocol.
    """
    return f"{reading}/{score}" if reading else score


def _metric_name(reading: str, score: str) -> str:
    return f"{score}_{reading}" if reading else score


def _bare(name: str) -> str:
    return name.lower().replace("@", "")


def _first_rows(rows: ArrayLike | Sequence[Sequence[float | None]], tasks: int | None) -> np.ndarray:
    matrix = metrics.as_matrix(rows).copy()
    if tasks is not None:
        matrix[tasks:] = np.nan
    return matrix


def _rank_metrics(final: Sequence[Ranks]) -> dict[str, float | None]:
    """MedR and MeanR, means over tasks; None before the end."""
    medians = [metrics.median_rank(ranks.middle) for ranks in final]
    means = [metrics.mean_rank(ranks.middle) for ranks in final]
    return {"MedR": float(np.mean(medians)), "MeanR": float(np.mean(means))} if final else dict.fromkeys(OF_RANKS)


def _weighted(row: np.ndarray, queries: Sequence[int]) -> float | None:
    """Mean of a row of scores over all queries; None where a number is missing."""
    if not row.size or np.isnan(row).any() or len(queries) < len(row):
        return None
    return float(np.average(row, weights=queries[: len(row)]))


def _forgetting(matrix: np.ndarray | None) -> float | None:
    return None if matrix is None else metrics.backward_forgetting(matrix)
