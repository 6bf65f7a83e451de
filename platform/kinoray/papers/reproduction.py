"""What every reproduction has: a figure or table of a paper as measured, judged beside what was published.

`curves` and `tables` say how the numbers come together. Every number is of the test splits; nothing is chosen by them.
"""

import json
import platform
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import psutil

from kinoray.config import digest_of
from kinoray.papers.claims import Claim
from kinoray.papers.entries import Entry
from kinoray.papers.statements import Statement, counted, judged
from kinoray.report.columns import TextTable
from kinoray.report.statistics import NO, SMALLER, YES, Sample
from kinoray.system.pool import usable_cores
from kinoray.system.text import markdown_table, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kinoray.runs.result import Result

DPI = 130
JUDGED = (
    "A statement is answered by the 95 % intervals of its differences, paired by run and corrected for as many as it "
    "makes (Holm): yes above zero, no below; smaller than the paper's where less than half of the published difference "
    "is left; else it cannot be seen at this size. A statement of which the paper has no number in points claims any "
    "difference."
)


@dataclass(frozen=True)
class Facts:
    """What the runs behind a reproduction have in common."""

    stream: str
    backbone: str
    seeds: Sequence[int]
    smoke: bool
    settings: Mapping[str, Any]
    """Held for all runs, beside the entry's own."""
    code: str
    """Digest of the engine's code."""
    sources: Sequence[str]
    """Names of the folders that the numbers come from."""
    cautions: Sequence[str] = ()
    """What must be read with the numbers of those (`runs.cautions`)."""
    partial: bool = False
    """Whether published clips were missing."""
    orders: int = 1
    """Orders of the tasks, each with every seed."""
    worlds: Sequence[str] = ()
    """Worlds or splits of the stream, each with every seed; (): the one that it names."""


def facts_of_data(results: Sequence["Result"]) -> dict[str, Any]:
    """`cautions` and `partial` of the facts about some runs."""
    lines = dict.fromkeys(line for result in results for line in result.cautions)
    return {"cautions": list(lines), "partial": any(r.run.get("shortfalls", {}).get("partial") for r in results)}


class Reproduction(ABC):
    """A figure or table as measured: `.frame` (a row per run), `.table` (as the paper has it), `.statements`.

    Args:
        name: Of the figure or table.
        entry: What is stated about it before measuring.
        facts: Of its runs together: stream, seeds, orders, code.
        root: The runs folder.
    """

    def __init__(self, name: str, entry: Entry, facts: Facts, root: Path) -> None:
        self.name, self.facts = name, facts
        self.entry: Any = entry
        self.stream, self.smoke = facts.stream, facts.smoke
        self.seeds, self.orders = list(facts.seeds), facts.orders
        self.stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{name}-{facts.stream}").strip("-.")
        self.folder = root / "reproductions" / f"{self.stem}-{digest_of(list(facts.sources))[:8]}"

    options: Sequence[str] = ()
    """Words of its command beside stream, seeds and settings."""
    frame: pd.DataFrame
    """A row per finished run, with the metrics of the entry."""

    @property
    @abstractmethod
    def table(self) -> pd.DataFrame:
        """Means over seeds and their spread, a row per point or per cell."""

    @property
    @abstractmethod
    def missing(self) -> list[str]:
        """What has no results of all seeds, in words, and why."""

    def unfinished(self, label: str, runs: Sequence["Result"]) -> list[str]:
        """Seeds of a line without a finished run, in each order of the tasks, in words; bounds have one order.

        Args:
            label: What the line is called.
            runs: Its runs, in any state.
        """
        known = {(run.stream.partition(":")[2], run.order, run.seed): run.state for run in runs}
        orders = 1 if any(run.joint or run.zero_shot for run in runs) else self.orders
        worlds = self.facts.worlds or dict.fromkeys(world for world, _, _ in known) or [""]
        states = {
            (world, order, seed): known.get((world, order, seed), "not run")
            for world in worlds
            for order in range(orders)
            for seed in self.seeds
        }
        return [
            f"{label}, {f'world {world}, ' if self.facts.worlds else ''}{f'order {order}, ' if order else ''}"
            f"seed {seed}: {state}"
            for (world, order, seed), state in states.items()
            if state != "finished"
        ]

    @property
    def statements(self) -> list[Statement]:
        """What the paper says, each statement with what was measured."""
        return [
            judged(claim, self.samples(claim, column), self.effects(claim.metric), column)
            for column in self.settings_columns
            for claim in self.entry.claims
        ]

    @property
    def settings_columns(self) -> list[str]:
        """Names of several columns of measured numbers; [""]: there is one."""
        return [""]

    @abstractmethod
    def samples(self, claim: Claim, column: str = "") -> dict[Any, Sample]:
        """Place -> what each run measured of a claim's metric there, in the figure's order.

        Args:
            claim: A claim of the entry.
            column: One of `settings_columns`.
        """

    def effects(self, metric: str) -> dict[str, float]:
        """Place -> a metric as it was published, where that is known in points.

        Args:
            metric: The metric's name.
        """
        return {}

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Whether runs failed; those may be tried again."""

    @abstractmethod
    def cells(self) -> list[list[str]]:
        """The table as text, head first."""

    @abstractmethod
    def notes(self) -> list[str]:
        """What must be read with it."""

    @abstractmethod
    def plot(self) -> "Figure":
        """The figure."""

    @property
    def shown(self) -> bool | None:
        """Whether all that the paper says was measured; None: a smoke run, or not all of it is decided."""
        answers = {statement.answer for statement in self.statements}
        if self.smoke or self.missing:
            return None
        return False if answers & {NO, SMALLER} else True if answers == {YES} else None

    @property
    def verdict(self) -> str:
        """The same in words."""
        if self.smoke:
            return "A smoke run, two steps a task: the command works; of the paper it tells nothing."
        count = counted(self.statements)
        if self.missing:
            return f"Numbers are missing, so it cannot be told yet; so far {count}."
        return f"{count[0].upper()}{count[1:]}."

    def write(self) -> None:
        """Write NAME.csv, .json, .png, .svg, .tex and .md into the folder."""
        from kinoray.system.plots import svg

        self.folder.mkdir(parents=True, exist_ok=True)
        stem = self.folder / self.name
        self.table.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.10g")
        stem.with_suffix(".json").write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        stem.with_suffix(".tex").write_text(self.latex(), encoding="utf-8")
        figure = self.plot()
        figure.savefig(stem.with_suffix(".png"), dpi=DPI)
        stem.with_suffix(".svg").write_text(svg(figure), encoding="utf-8")
        stem.with_suffix(".md").write_text(self.markdown(), encoding="utf-8")

    def copy_table(self, place: Path) -> list[Path]:
        """Copy page, numbers, table and picture (.md, .json, .csv, .png) into a folder.

        Args:
            place: The folder, which must exist.

        Returns:
            The copies.
        """
        page, record, cells, picture = (place / f"{self.stem}{ending}" for ending in (".md", ".json", ".csv", ".png"))
        page.write_text(self.markdown(picture.name), encoding="utf-8")
        numbers = self.to_json() | {"measured": measured_on(place)}
        record.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        for copy in (cells, picture):
            shutil.copyfile(self.folder / f"{self.name}{copy.suffix}", copy)
        return [page, record, cells, picture]

    def to_json(self) -> dict[str, Any]:
        """The numbers and what they say; no path of this machine."""
        return {
            "name": self.name,
            "title": self.entry.title,
            "place": self.entry.place,
            "published": self.entry.published,
            "stream": self.stream,
            "backbone": self.facts.backbone,
            "settings": dict(self.facts.settings),
            "seeds": self.seeds,
            **({"worlds": list(self.facts.worlds)} if self.facts.worlds else {}),
            **({"orders": self.orders} if self.orders > 1 else {}),
            "smoke": self.smoke,
            "sources": list(self.facts.sources),
            "code": self.facts.code,
            "cautions": list(self.facts.cautions),
            "table": records(self.table),
            "runs": records(self.frame),
            "statements": [as_json(statement.to_json()) for statement in self.statements],
            "verdict": self.verdict,
            "missing": self.missing,
        }

    def markdown(self, picture: str = "") -> str:
        """The page: what was published, what was measured, whether the second shows the first.

        Args:
            picture: Name of its file beside the page; "": as `write` names it.
        """
        entry = self.entry
        parts = [
            f"# {self.name}: {entry.title}",
            f"{entry.place}.",
            f"**Published.** {entry.published} ({entry.source}.)",
            f"**Measured.** {self.verdict}",
            "\n".join(f"- {statement}" for statement in self.statements),
            f"![{self.name}]({picture or f'{self.name}.png'})",
            markdown_table(self.cells()),
            "\n".join(f"- {line}" for line in (*self.facts.cautions, *self.notes())),
            *(["Missing:\n\n" + "\n".join(f"- {line}" for line in self.missing)] if self.missing else []),
            self.setting(),
            f"Made by `{self.command()}`; the same command resumes, or returns what is there.",
        ]
        return "\n\n".join(_safe(part) for part in parts) + "\n"

    def setting(self) -> str:
        """Where and how it was measured, in words."""
        held = ", ".join(f"{name} = {worded(value)}" for name, value in self.facts.settings.items())
        own = self.stream.partition(":")[0] != self.entry.paper_stream
        worlds = ", ".join(self.facts.worlds)
        return (
            f"Stream {self.stream}{f', worlds or splits {worlds}' if worlds else ''}, backbone {self.facts.backbone}, "
            f"seeds {', '.join(map(str, self.seeds))}"
            f"{f' in {self.orders} orders of the tasks' if self.orders > 1 else ''}"
            f"{f'; held: {held}' if held else ''}. Test splits; FR is the sum over tasks, in points. {JUDGED}"
            f"{f' The stream of the paper is {self.entry.paper_stream}: compare orders, not heights.' if own else ''}"
        )

    def command(self) -> str:
        """What makes this again."""
        words = ["kinoray reproduce", self.name]
        words += [f"--stream {self.stream}"] if self.stream != self.entry.stream else []
        words += [f"--seeds {len(self.seeds)}"] if len(self.seeds) != self.entry.seeds else []
        words += [f"--seed {self.seeds[0]}"] if self.seeds[0] != self.entry.seed else []
        for name, value in self.facts.settings.items():
            if self.entry.settings.get(name) != value:
                words.append(f"--set {name}={worded(value)}")
        return " ".join([*words, *self.options, *["--partial"] * self.facts.partial, *["--smoke"] * self.smoke])

    def latex(self) -> str:
        """A booktabs table."""
        head, *body = self.cells()
        notes = (self.setting(), *self.facts.cautions, *self.notes())
        return TextTable([("", name) for name in head], body, notes).latex()

    def __repr__(self) -> str:
        names, *body = self.cells()
        table = pd.DataFrame(body, columns=names).to_string(index=False, justify="left", max_colwidth=None)
        worlds = f" in {len(self.facts.worlds)} worlds or splits" if self.facts.worlds else ""
        head = f"{self.name} on {self.stream}, test splits, {len(self.seeds)} seeds{worlds}"
        statements = [f"- {statement}" for statement in self.statements]
        missing = [f"Missing: {line}" for line in self.missing]
        notes = [*self.facts.cautions, *self.notes()]
        everything = [head, *table.splitlines(), *notes, self.verdict, *statements, *missing, str(self.folder)]
        return "\n".join(printable(line.rstrip()) for line in everything)


def measured_on(checkout: Path) -> dict[str, str]:
    """Commit of a checkout, date and machine, for numbers that are kept."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    cores = usable_cores()
    memory = round(psutil.virtual_memory().total / 2**30)
    machine = f"{cores} cores ({platform.machine()}), {memory} GiB, torch {version('torch')}"
    return {"commit": commit or "unknown", "date": date.today().isoformat(), "machine": machine}


def worded(point: Any) -> str:
    """A point of an axis, or a setting, as text."""
    return f"{point:.10g}" if isinstance(point, float) else str(point)


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them: nan is null, and floats are short."""
    return {
        name: (None if value != value else round(value, 4)) if isinstance(value, float) else value
        for name, value in values.items()
    }


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame's rows for JSON."""
    return [as_json(row) for row in frame.to_dict("records")]  # type: ignore[arg-type]


def _safe(text: str) -> str:
    """Text from data shows as it is: no control characters, no HTML."""
    return "\n".join(printable(line).replace("<", "&lt;") for line in text.split("\n"))
