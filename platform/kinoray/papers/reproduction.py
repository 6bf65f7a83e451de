"""`kinoray reproduce`: a figure or table of a paper, measured through sweeps and laid beside what was published.

The sweeps are ordinary ones (a grid, nothing pruned), so what is finished is reused, what was stopped goes on, and what
is missing is run. Every point's test metrics are reported; nothing is chosen by them.
"""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from kinoray.config import digest_of
from kinoray.display.text import printable
from kinoray.papers.entries import Claim, Entry
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.samplers import grid
from kinoray.sweeps.space import distributions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Statement(NamedTuple):
    """A claim of the paper and what was measured."""

    words: str
    shown: bool | None
    """By the means over seeds; None where points are missing."""
    margin: float
    """In points; see `Claim.margin`."""
    agree: int
    """How many of the seeds show it each by itself."""
    seeds: int

    def __str__(self) -> str:
        if self.shown is None:
            return f"not measured: {self.words}"
        by_seed = f"; {self.agree} of {self.seeds} seeds each by itself" if self.seeds > 1 else ", one seed"
        return f"{'yes' if self.shown else 'no'}: {self.words} (by {self.margin:+.1f} points{by_seed})"


class Reproduction:
    """A figure or table as measured: `.frame` (a row per run), `.table` (a row per point), `.statements`, `.plot()`."""

    def __init__(self, name: str, entry: Entry, sweeps: list[SweepResult], root: Path) -> None:
        self.name, self.entry, self.sweeps = name, entry, sweeps
        self.stream = sweeps[0].stream
        self.seeds: list[int] = sweeps[0].record["seeds"]
        self.smoke: bool = sweeps[0].record["smoke"]
        self.stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{name}-{self.stream}").strip("-.")
        self.folder = root / "reproductions" / f"{self.stem}-{digest_of([s.folder.name for s in sweeps])[:8]}"
        self.points = list(dict.fromkeys(point for s in sweeps for point in _points(s, entry.over)))
        self.frame = pd.concat([_runs_of(s, entry) for s in sweeps], ignore_index=True)

    @property
    def table(self) -> pd.DataFrame:
        """Method, point, number of seeds; mean and standard deviation over seeds of every metric (nan: none)."""
        rows = []
        for sweep in self.sweeps:
            for point in _points(sweep, self.entry.over):
                part = self._at(sweep.method, point)
                row: dict[str, Any] = {"method": sweep.method, self.entry.over: point, "seeds": len(part)}
                for metric in self.entry.metrics:
                    row |= {metric: part[metric].mean(), f"{metric} std": part[metric].std(ddof=1)}
                rows.append(row)
        return pd.DataFrame(rows)

    @property
    def missing(self) -> list[str]:
        """Points without the results of all seeds, in words, and why."""
        from kinoray.papers.figure import worded

        lines = []
        for sweep in self.sweeps:
            frame = sweep.frame
            for point in _points(sweep, self.entry.over):
                if len(self._at(sweep.method, point)) == len(self.seeds):
                    continue
                known = frame[frame[self.entry.over] == point] if self.entry.over in frame else frame.head(0)
                errors = known["error"].dropna() if "error" in known else known
                was_complete = (known["state"] == "complete").any()
                why = "its run folders are gone" if was_complete else errors.iloc[-1] if len(errors) else "not run yet"
                lines.append(f"{sweep.method}, {self.entry.over} = {worded(point)}: {why}")
        return lines

    @property
    def statements(self) -> list[Statement]:
        """What the paper says of the figure, each statement with what was measured."""
        return [self._measured(claim) for claim in self.entry.claims]

    @property
    def shown(self) -> bool | None:
        """Whether the measured curve shows all that the paper says; None: it was a smoke run, or points are missing."""
        shown = [statement.shown for statement in self.statements]
        return None if self.smoke or self.missing or None in shown else all(shown)

    @property
    def verdict(self) -> str:
        """The same in words."""
        shown = [statement.shown for statement in self.statements]
        count = f"{shown.count(True)} of the paper's {len(shown)} statements hold on the measured means"
        if self.smoke:
            return f"A smoke run, two steps a task: the command works; of the paper it tells nothing. {count}."
        if self.missing or None in shown:
            return f"Points are missing, so it cannot be told yet. {count}."
        return f"{'Yes' if all(shown) else 'In part' if any(shown) else 'No'}: {count}."

    @property
    def courses(self) -> list[str]:
        """How each drawn metric runs over the knob, from the means."""
        from kinoray.papers.figure import course

        lines = []
        for metric, label in self.entry.panels.items():
            for sweep in self.sweeps:
                whose = f" of {sweep.method}" if len(self.sweeps) > 1 else ""
                lines.append(f"{label}{whose}: {course(self.curve(sweep.method, metric), self.entry.over)}")
        return lines

    def curve(self, method: str, metric: str, seed: int | None = None) -> dict[Any, float]:
        """Value at each point: the mean over seeds, or one seed's; nan where there is none."""
        sweep = next(sweep for sweep in self.sweeps if sweep.method == method)
        parts = {point: self._at(method, point) for point in _points(sweep, self.entry.over)}
        if seed is not None:
            parts = {point: part[part["seed"] == seed] for point, part in parts.items()}
        return {point: float(part[metric].mean()) for point, part in parts.items()}

    def _at(self, method: str, point: Any) -> pd.DataFrame:
        return self.frame[(self.frame["method"] == method) & (self.frame[self.entry.over] == point)]

    def _measured(self, claim: Claim) -> Statement:
        method = claim.method or self.sweeps[0].method
        margin = claim.margin(self.curve(method, claim.metric))
        alone = [claim.margin(self.curve(method, claim.metric, seed)) for seed in self.seeds]
        shown = None if margin != margin else margin > 0
        return Statement(claim.words, shown, margin, sum(m > 0 for m in alone), len(alone))

    def plot(self) -> "Figure":
        """The figure."""
        from kinoray.papers.figure import curve_figure

        return curve_figure(self)

    def write(self) -> None:
        """Write NAME.csv, .json, .png, .svg and .md into the folder."""
        from kinoray.papers.figure import write_files

        write_files(self)

    def copy_table(self, place: Path) -> list[Path]:
        """Copy the table (.md without the picture, .json, .csv) into a folder; returns the copies."""
        from kinoray.papers.figure import markdown

        page = place / f"{self.stem}.md"
        page.write_text(markdown(self, picture=False), encoding="utf-8")
        copies = [place / f"{self.stem}{ending}" for ending in (".json", ".csv")]
        for copy in copies:
            shutil.copyfile(self.folder / f"{self.name}{copy.suffix}", copy)
        return [page, *copies]

    def to_json(self) -> dict[str, Any]:
        """The numbers and what they say; no path of this machine."""
        records = [sweep.record for sweep in self.sweeps]
        knob = self.entry.over
        return {
            "name": self.name,
            "title": self.entry.title,
            "place": self.entry.place,
            "published": self.entry.published,
            "stream": self.stream,
            "backbone": records[0]["backbone"],
            "settings": records[0]["settings"],
            "seeds": self.seeds,
            "smoke": self.smoke,
            "sweeps": [sweep.folder.name for sweep in self.sweeps],
            "code": records[0]["digests"]["code"],
            "points": [
                {"method": row["method"], knob: row[knob], "seeds": row["seeds"]}
                | {name: _number(row[name]) for m in self.entry.metrics for name in (m, f"{m} std")}
                for row in self.table.to_dict("records")
            ],
            "runs": [
                {name: value if name == knob else _number(value) for name, value in row.items()}
                for row in self.frame.to_dict("records")
            ],
            "statements": [s._asdict() | {"margin": _number(s.margin)} for s in self.statements],
            "verdict": self.verdict,
            "missing": self.missing,
        }

    def __repr__(self) -> str:
        from kinoray.papers.figure import cells

        rows = cells(self)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
        statements = [f"- {statement}" for statement in self.statements]
        missing = [f"Missing: {line}" for line in self.missing]
        head = f"{self.name} on {self.stream}, test splits, mean ± standard deviation over {len(self.seeds)} seeds"
        return "\n".join(
            printable(line) for line in [head, *lines, self.verdict, *statements, *missing, str(self.folder)]
        )


def _points(sweep: SweepResult, over: str) -> list[Any]:
    """The values of the knob, in the space's order."""
    return [point[over] for point in grid({over: distributions(sweep.record["space"])[over]})]


def _runs_of(sweep: SweepResult, entry: Entry) -> pd.DataFrame:
    """One row per finished run of a sweep's complete trials: method, point, seed, test metrics."""
    rows = [
        {"method": sweep.method, entry.over: trial.params[entry.over], "seed": run.seed}
        | {metric: run.metrics.get(metric) for metric in entry.metrics}
        for trial in sorted(sweep.complete, key=lambda trial: trial.number)
        for run in sweep.trial(trial.number).runs
        if run.state == "finished"
    ]
    columns = ["method", entry.over, "seed", *entry.metrics]
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(entry.metrics, float))
    return frame.drop_duplicates(["method", entry.over, "seed"])


def _number(value: Any) -> Any:
    """A value as JSON has it: nan is null, and floats are short."""
    if isinstance(value, float):
        return None if value != value else round(value, 4)
    return value
