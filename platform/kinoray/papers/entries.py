"""What an entry of `kinoray reproduce` is: a figure or table of a paper, as data.

An entry says what is run, what is shown of it, what was published, and what the paper says of it: in words, and as
claims that measured numbers answer. `catalogue` holds them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kinoray.papers.claims import Claim


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What all entries have."""

    title: str
    place: str
    """Paper and place in it."""
    published: str
    """What was published, in words."""
    source: str
    """Where the paper says so."""
    claims: tuple[Claim, ...]
    stream: str = "moving-conflict:9"
    """Stream by default: a world that no setting was chosen on."""
    worlds: tuple[str, ...] = ()
    """Worlds or splits of that stream by default, each with every seed; (): the one that it names."""
    paper_stream: str = "cvlm"
    """The stream of the paper."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What is set for all runs."""
    seed: int = 40
    """The first seed by default: none that a setting was chosen with."""
    seeds: int = 3
    """Runs per point or row by default."""
    beside: tuple[str, ...] = ()
    """More numbers for the table."""
    orders: int | str | None = None
    """Orders of the tasks by default, each with every seed; "all", or None: the stream's own alone."""


@dataclass(frozen=True, kw_only=True)
class CurveEntry(Entry):
    """Metrics over a knob, by sweeps over a grid."""

    sweeps: Mapping[str, str]
    """Method -> name of its search sub-space; all of them vary `over` alone. One line in each panel for each."""
    over: str
    """The setting on the horizontal axis."""
    panels: Mapping[str, str]
    """Metric of the test splits -> what the paper calls it: one panel each."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics of the table, those of the panels first."""
        return (*self.panels, *self.beside)


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """A line of a table: a method, or a bound that competes with none."""

    label: str
    """As the paper's table has it."""
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Beside the entry's own."""
    joint: bool = False
    zero_shot: bool = False
    control: str = ""
    """One of `runs.controls` that changes what is trained by less than joint training and zero-shot."""
    backbone: str = ""
    """By name; "": that of the command, or the stream's."""
    paper_settings: Mapping[str, Any] = field(default_factory=dict)
    """What takes the place of some of `settings` on the stream of the paper, where sizes differ."""
    paper_backbone: str = ""
    """What takes the place of `backbone` there."""

    def on_paper_stream(self) -> "MethodRow":
        """The row as it is learned on the stream of the paper."""
        settings = {**self.settings, **self.paper_settings}
        return replace(self, settings=settings, backbone=self.paper_backbone or self.backbone)

    @property
    def is_bound(self) -> bool:
        return self.joint or self.zero_shot

    def is_plain(self, method: str) -> bool:
        """Whether it is that method as it stands."""
        return self.method == method and not (self.settings or self.control or self.is_bound)

    @property
    def has_settings(self) -> bool:
        """Whether it has settings of its own to choose."""
        return not self.is_bound and not self.control


def at_lower_rates(row: MethodRow) -> tuple[MethodRow, ...]:
    """The row at parts of its rate: who learns less forgets less, so a gain over it is one over these, too."""
    return tuple(replace(row, label=f"{row.label}, 1/{n} of its rate", control=f"rate/{n}") for n in (2, 3, 6))


PUBLISHED, SHARED, TUNED, EQUAL = "published", "shared", "tuned", "equal FLOPs"
"""The lines of a row: the paper's own, what was measured at the settings that all share, at its best ones, and at the
shared ones for as many FLOPs as one method takes (`TableEntry.equal_flops`)."""


KEPT = "kept KB"
"""What a row keeps from task to task (`memory`)."""
GFLOP = "GFLOP"
"""Of all training steps of a run (`training.flops`)."""
TRAINABLE = "trained M"
"""Millions of parameters that a row trains, of all tasks together."""
DRIFT = "query drift"
"""How far the first task's test queries have moved at the end (`report.page`), times 100."""
LATE = "late R@1"
"""Mean score on the last third of the tasks, each among its own clips and right after it was learned."""
LEAN = "lean to what stays"
"""By how much more than evenly an attention looks at what does not change, in percent of its weight (`maps`)."""
FINE_TUNED, FINE_TUNED_2 = "fine-tuned", "fine-tuned 2"
"""Accuracy of the run that comes then (`TableEntry.then`), on the stream's first and second downstream set."""
FINE_TUNED_OCCLUDED = "fine-tuned, occluded"
"""The same accuracy of the first, on clips some of whose frames are partly covered (`occlusion`)."""
ENTROPY, ENTROPY_OCCLUDED, ENTROPY_RISE = "entropy", "entropy occluded", "entropy rise"
"""Mean entropy of that run's predictions in nats, on complete clips, on occluded ones, and the difference."""
LOWER_IS_BETTER = ("FR", "MedR", "MeanR", "BWF", "BWF_own", TRAINABLE, DRIFT, ENTROPY, ENTROPY_OCCLUDED, ENTROPY_RISE)
OTHER_UNITS = (KEPT, GFLOP, TRAINABLE, "MedR", "MeanR")
"""What depends on the size of network, data or gallery: a published difference is none to be held to elsewhere."""
LOSS_FALL = "loss fall"
"""By how much the loss fell within a task, "2:loss fall"."""


@dataclass(frozen=True, kw_only=True)
class TableEntry(Entry):
    """Methods by rows. Claims are about the rows' labels; a metric of one task is "2:FR", counted from 1."""

    rows: tuple[MethodRow, ...]
    score: str = "R@1"
    """The score of the cells; FR and HM are those of it."""
    overall: tuple[str, ...] = ()
    """The columns where the table has no numbers of single tasks; (): score and FR of each task, then score, FR, HM."""
    drawn: tuple[str, ...] = ()
    """Which columns the picture `overall` draws; (): the last three."""
    picture: Literal[
        "overall", "current", "task_curves", "losses", "memory", "plasticity", "so_far", "queries", "steps", "orders"
    ] = "overall"
    """What is drawn of the runs: a function of `pictures`."""
    drawn_tasks: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Which tasks a picture by tasks shows, counted from 1."""
    then: str = ""
    """The method that then runs on each row's encoder and each downstream set of the stream (`FINE_TUNED`)."""
    published_only: tuple[str, ...] = ()
    """Rows of the published numbers that are not run, first in the table."""
    table: str = ""
    """The rows of the published numbers (`data/*.csv`); "": none are known."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """The same on other streams, by their names."""
    across: Mapping[str, str] = field(default_factory=dict)
    """Column -> what stands for X in the stream's name ("shapes-X:9") and in the rows' methods ("ccsl:X"): the columns
    are the score on several streams, or with several learners. {}: all columns are of the same runs. The difference of
    two columns is "A - B"."""
    tuned: bool = False
    """Whether the rows are run a second time, each at its own best settings (`tuned`)."""
    budget: str | Mapping[str, Any] = "budget"
    """What those are searched in: the name of a sub-space that each method has, or one space for all rows."""
    equal_flops: str = ""
    """The method of the column `EQUAL`: rows are run once more for its FLOPs; "": there is no such column."""
    search_seeds: int = 1
    """Runs of each trial of that search, from seed 0 on: more where seeds differ by as much as settings."""

    def published_in(self, stream: str) -> str:
        """The rows of the published numbers that belong to a stream; "": none are known."""
        return self.tables.get(stream.partition(":")[0], self.table)

    def runs_of(self, label: str) -> dict[str, str]:
        """Name of each kind of run of a row -> its column of `across`; the label -> "" where there are none."""
        return {f"{label}, {column}": column for column in self.across} or {label: ""}


def filled(name: str, value: str) -> str:
    """The name of a stream or method with what stands for X in it (`TableEntry.across`)."""
    return re.sub(r"\bX\b", value, name)


@dataclass(frozen=True, kw_only=True)
class MapEntry(Entry):
    """Where trained methods look in clips. Claims are about their attentions: "name", in a shot "pan: name", of one of
    several rows "row: name"."""

    rows: tuple[MethodRow, ...]
    clips: int = 1
    """How many test clips of each task are looked at."""
    shots: tuple[str, ...] = ()
    """Kinds of shots (`maps.SHOTS`) that each clip is made into; (): as it is."""
