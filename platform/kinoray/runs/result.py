"""A run folder, read: `Result` is a read-only view of it (`write_result` writes it).

Reading needs no cluster and resumes nothing; a running, stopped or failed run shows what it has so far. Formats are
plain (JSON, JSON lines, Parquet), so that a result is readable without kinoray.
"""

import html
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kinoray import hooks
from kinoray.errors import Damaged, UsageError, unknown
from kinoray.evaluation.protocol import BaseProtocol, recorded_protocol
from kinoray.runs.cautions import cautions
from kinoray.runs.identity import identity, suffixes
from kinoray.system.durable import read_json, read_jsonl
from kinoray.system.folders import expanded
from kinoray.system.text import as_typed, brief, one_line, operations, printable, show, size
from kinoray.training.stages import BEFORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SWEEP_RECORD = "sweep.json"
"""File in a sweep's folder: what it is and, later, what came of it."""
NAMED = 3
"""So many clips that were left out are named in a line."""
RECORD = dict.fromkeys(("method", "stream", "protocol", "seed", "tasks", "joint", "zero_shot")) | {"config": {}}
"""What every run.json has (`system.durable.read_json`)."""
AGAIN = "give the run's command again, which makes it anew"
BEFORE_TRAINING = "(before training)"
"""Row of tables for what was measured then."""
UNTIED: dict[str, Any] = {"reading": "", "ties": 0, "best": ()}
"""Columns of ranks.parquet that older runs have not, and what they would hold."""


class Result:
    """One run: a method on a stream with a seed. Properties read their file anew, so a running run can be watched.

    Args:
        folder: A seed folder, with its run.json.

    Raises:
        UsageError: There is no run.json.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = expanded(folder)
        if not (self.folder / "run.json").is_file():
            raise UsageError(f"{self.folder} is not a run: it has no run.json. `kinoray list runs` shows all runs.")
        self.run: dict[str, Any] = _as_named_now(read_record(self.folder))
        self.method: str = self.run["method"]
        self.stream: str = self.run["stream"]
        self.protocol: BaseProtocol = recorded_protocol(self.run)
        self.seed: int = self.run["seed"]
        self.tasks: list[str] = self.run["tasks"]
        self.joint: bool = self.run["joint"]
        self.zero_shot: bool = self.run["zero_shot"]
        self.control: str = self.run.get("control", "")
        self.equal_flops: str = self.run.get("equal_flops", {}).get("name", "")
        self.order: int = self.run.get("order", 0)

    @property
    def place(self) -> str:
        """Which of the runs that differ in nothing but the seed and the order of the tasks it is, in words."""
        return f"order {self.order}, seed {self.seed}" if self.order else f"seed {self.seed}"

    @property
    def outcome(self) -> dict[str, Any]:
        """All of result.json; a run that has not written it yet counts as running."""
        return read_outcome(self.folder, self.run.get("run", "")) or {"state": "running"}

    @property
    def state(self) -> str:
        """finished, stopped (can be resumed), failed or running."""
        return self.outcome["state"]

    @property
    def sweep(self) -> str:
        """The sweep that made it as a trial, "" where none did."""
        return made_by(self.folder)

    @property
    def finished_at(self) -> float:
        """When its last result was written, in seconds since 1970; 0 while there is none."""
        file = self.folder / "result.json"
        return file.stat().st_mtime if file.is_file() else 0.0

    @property
    def metrics(self) -> dict[str, float | None]:
        """Headline metrics; recalls in percent, FR in points, ranks counted from 1. None where one has no meaning."""
        return self.outcome.get("metrics", {})

    @property
    def validation_metrics(self) -> dict[str, float | None]:
        """The same metrics on the validation splits: what may choose between settings."""
        return self.outcome.get("validation", {})

    @property
    def cost(self) -> dict[str, float]:
        """Where the time went, in seconds; the number of steps and clips; the bytes of the method's state; `flops`, the
        floating-point operations of all training steps of the tasks so far (`training/flops.py`)."""
        return self.outcome.get("cost", {})

    @property
    def work(self) -> str:
        """What training took and the state takes, in words, as `1.2 TFLOP, state 3.4 MB`; "" where neither is known."""
        kinds = (("flops", operations), ("state_bytes", lambda number: f"state {size(number)}"))
        return ", ".join(words(self.cost[name]) for name, words in kinds if name in self.cost)

    @property
    def error(self) -> str | None:
        """Why the run failed, in one line."""
        return self.outcome.get("error")

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return self.run["config"]

    @property
    def overrides(self) -> dict[str, Any]:
        """Settings that differ from the defaults of the method and of the stream's recipe."""
        return self.config.get("overrides", {})

    @property
    def cautions(self) -> list[str]:
        """What must be read with its numbers, a line each: what chance reaches among a few clips, partial data, clips
        that were left out."""
        return self.cautions_of(None)

    def cautions_of(self, score: str | None) -> list[str]:
        """As `cautions`.

        Args:
            score: Whose level of chance is told; None: the protocol's main one.

        Returns:
            The lines.
        """
        lines = read_jsonl(self.folder / "bad_samples.jsonl", "task", "id") if self.outcome.get("bad_samples") else []
        if not lines:
            return cautions(self.run, score)
        named = [printable(f"{line['task']}/{line['id']}") for line in lines[:NAMED]] + ["..."] * (len(lines) > NAMED)
        clips = "clip was" if len(lines) == 1 else "clips were"
        left_out = f"{len(lines)} {clips} left out, {', '.join(named)}: `bad_samples.jsonl` says why."
        return [*cautions({**self.run, **self._tested_clips(lines)}, score), left_out]

    def _tested_clips(self, left_out: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
        """The test clips of each task, as run.json has them, without those of `left_out` that the last test lacked."""
        ranks, left = self.ranks, Counter(line["task"] for line in left_out)
        last = ranks[(ranks["reading"] == "") & (ranks["after_task"] == ranks["after_task"].max())]
        seen, counts = last.groupby("task")["clip_id"].nunique(), []
        for number, (task, there) in enumerate(zip(self.tasks, self.run.get("test_clips", ()), strict=False)):
            lacking = there - int(seen.get(number, 0))
            counts.append(there - lacking if 0 < lacking <= left[task] else there)
        return {"test_clips": counts} if counts else {}

    @property
    def label(self) -> str:
        """The run's method with its overrides, as tables show it."""
        return self.label_without({})

    def label_without(self, shared: Mapping[str, Any], with_backbone: bool = False) -> str:
        """The label without overrides that go without saying.

        Args:
            shared: Overrides that are left out, by name.
            with_backbone: Whether the label also names the backbone.
        """
        overrides = {"backbone": self.run["backbone"]} | self.overrides if with_backbone else self.overrides
        changed = ", ".join(f"{name}={value}" for name, value in overrides.items() if name not in shared)
        marks = {"joint": self.joint, "zero-shot": self.zero_shot}
        kinds = [self.control] if self.control else [kind for kind, is_so in marks.items() if is_so]
        kinds += ["as released"] if self.run.get("as_released", False) else []
        kinds += [f"FLOPs of {self.equal_flops}"] if self.equal_flops else []
        return " ".join([self.method, *(f"({words})" for words in (changed, *kinds) if words)])

    @property
    def matrix(self) -> "pd.DataFrame":
        """The protocol's main score in percent: rows = after task, columns = task; nan where not measured."""
        return self.matrix_of(self.score)

    @property
    def score(self) -> str:
        """Name of the protocol's main score."""
        return self.protocol.score

    def summary(self, score: str | None = None, tasks: int | None = None, split: str = "test") -> dict[str, Any]:
        """The metrics of the matrices again, without MedR and MeanR: for another score, or after the first tasks alone.

        Args:
            score: The score that FR, HM and BWF are of; None: the main one.
            tasks: After so many tasks, >= 1; None: all.
            split: "test" or "validation".

        Returns:
            Value by metric; {} where the split has no matrices.
        """
        prefix = "" if split == "test" else f"{split}_"
        matrices, queries = self.outcome.get(f"{prefix}matrix"), self.outcome.get(f"{prefix}queries", ())
        return self.protocol.metrics_of(matrices, queries, score, tasks) if matrices else {}

    def matrix_of(self, metric: str, whole: bool = False) -> "pd.DataFrame":
        """The result matrix of a score.

        Args:
            metric: The score, or "reading/score" of another reading (`BaseProtocol.matrix_names`).
            whole: Also a first row of what was measured before training, and columns of held-out sets, where there are
                such.

        Returns:
            Percent, a row per task trained and a column per task; nan where nothing was measured.
        """
        import pandas as pd

        cells = self._cells()
        cells = cells[cells["metric"] == metric]
        first = BEFORE if whole and BEFORE in set(cells["after_task"]) else 0
        names = self.tasks + ([data["name"] for data in self.run.get("held_out", ())] if whole else [])
        numbers, places = range(first, len(self.tasks)), range(len(names))
        matrix = cells.pivot(index="after_task", columns="task", values="value").reindex(index=numbers, columns=places)
        after = [self._after(row) for row in numbers]
        rows, columns = pd.Index(after, name="after task"), pd.Index(names, name="task")
        return pd.DataFrame(matrix.to_numpy(dtype=float), index=rows, columns=columns)

    def own_matrix_of(self, score: str) -> "pd.DataFrame":
        """The matrix of a score among each task's own clips alone, where the protocol has that reading (`own`).

        A row after few tasks can then be compared with one after all of them.

        Args:
            score: A score of the protocol.
        """
        own = self.matrix_of(f"own/{score}")
        return self.matrix_of(score) if own.isna().all(axis=None) else own

    @property
    def frame(self) -> "pd.DataFrame":
        """Tidy: one row per measured cell, with columns method stream seed after_task task metric value."""
        cells = self._cells()
        named = cells.assign(method=self.label, stream=self.stream, seed=self.seed, task=cells["task_name"])
        named["after_task"] = [self._after(row) for row in cells["after_task"]]
        return named[["method", "stream", "seed", "after_task", "task", "metric", "value"]]

    @property
    def losses(self) -> "pd.DataFrame":
        """One row per step of metrics.jsonl (also validation rows, with their own columns)."""
        import pandas as pd

        return pd.DataFrame(read_jsonl(self.folder / "metrics.jsonl", "task", "step"))

    @property
    def watched(self) -> "pd.DataFrame":
        """Main score on the validation split of each earlier task while later ones were learned (`watch=N`): columns
        task, step, earlier, score; no rows where nobody watched."""
        import pandas as pd

        rows = [
            (record["task"], record["step"], int(earlier), score)
            for record in read_jsonl(self.folder / "watched.jsonl", "task", "step")
            for earlier, score in record["scores"].items()
        ]
        return pd.DataFrame(rows, columns=["task", "step", "earlier", "score"])

    @property
    def ranks(self) -> "pd.DataFrame":
        """One row per query and evaluation in each reading: `rank` is a 0-based mid-rank among `gallery` items; `ties`
        others have the same score; `best` are the ids of the first clips found, none in older runs and where classes
        are ranked."""
        columns = ["reading", "after_task", "task", "sample", "clip_id", "rank", "ties", "gallery", "best"]
        frame = _read_table(self.folder / "ranks.parquet", columns)
        for name, value in UNTIED.items():
            if name not in frame:
                frame[name] = [value] * len(frame)
        frame["best"] = [() if ids is None else tuple(ids) for ids in frame["best"]]  # arrays cannot be compared
        return frame

    @property
    def bad_samples(self) -> "pd.DataFrame":
        """One row per clip that could not be used, with the reason."""
        import pandas as pd

        columns = ["task", "id", "uri", "stage", "error", "message"]
        return pd.DataFrame(read_jsonl(self.folder / "bad_samples.jsonl"), columns=columns)

    def plot(self) -> "Figure":
        """The result matrix, and how each task is forgotten."""
        from kinoray.system import plots

        return plots.run_figure(self.matrix, self.score)

    def model(self) -> Any:
        """The trained model, an `OpenedMethod`: `kinoray.open_method` with this run."""
        return hooks.open_method(self)

    def features(self, task: str, split: str = "test") -> "pd.DataFrame":
        """Features of a task's videos that the run has stored (`kinoray.feature_store`), by split and id.

        Args:
            task: The task's name.
            split: "test", or another that the run has stored.

        Raises:
            UsageError: The task is unknown, or nothing is stored of it.
        """
        if task not in self.tasks:
            raise unknown("task", task, self.tasks)
        return hooks.feature_store(self).block(self.tasks.index(task), split).frame

    def search(self, text: str | None = None, **options: Any) -> Any:
        """The clips of the run's feature store that are nearest to a text: `kinoray.search` with this run.

        Args:
            text: What to search for.
            **options: The other arguments of `kinoray.search`.
        """
        return hooks.search(self, text, **options)

    def _after(self, row: int) -> str:
        """A row of the result matrix in words: the task after which it was measured."""
        return BEFORE_TRAINING if row == BEFORE else self.tasks[row]

    def _cells(self) -> "pd.DataFrame":
        return _read_table(self.folder / "matrix.parquet", ["after_task", "task", "task_name", "metric", "value"])

    def __repr__(self) -> str:
        head = f"{self.label} on {self.stream}, {self.place}: {self.state}"
        numbers = "  ".join(f"{name} {show(self.metrics.get(name))}" for name in self.protocol.brief)
        return brief([head, numbers, *([self.error] if self.error else []), *self.cautions[:1]], self.folder)

    def _repr_html_(self) -> str:
        head = f"<b>{html.escape(self.label)}</b> on {html.escape(self.stream)}, {self.place}: {self.state}"
        error = f"<div>{html.escape(printable(self.error))}</div>" if self.error else ""
        numbers = "".join(f"<th style='{CELL}'>{name}</th>" for name in self.protocol.headlines)
        values = "".join(f"<td style='{CELL}'>{show(self.metrics.get(name))}</td>" for name in self.protocol.headlines)
        table = f"<table style='{TABLE}'><tr>{numbers}</tr><tr>{values}</tr></table>"
        matrix = heat_map(self.matrix_of(self.score, whole=True))
        time = f"{self.cost['wall_s']:.0f} s, " if "wall_s" in self.cost else ""
        foot = f"<div style='opacity:.7'>{time}{html.escape(str(self.folder))}</div>"
        notes = "".join(f"<div>{html.escape(printable(line))}</div>" for line in self.cautions)
        return f"<div>{head}{error}{notes}{table}{matrix}{foot}</div>"


class Results(list[Result]):
    """The seeds of one run folder, or several runs: a list that shows itself.

    Args:
        iterable: The results.
    """

    @property
    def frame(self) -> "pd.DataFrame":
        """The tidy frames of all runs, one below the other."""
        import pandas as pd

        return pd.concat([result.frame for result in self], ignore_index=True)

    def plot(self) -> "Figure":
        """How each task is forgotten, and the harmonic mean; runs that differ in nothing but the seed share a line."""
        from kinoray.system import plots

        apart = suffixes([(result.label, identity(result.run)) for result in self])
        labelled = [(result.label + suffix, result.matrix) for result, suffix in zip(self, apart, strict=True)]
        return plots.overview(labelled, self[0].score)

    def __repr__(self) -> str:
        return "\n".join(repr(result) for result in self)

    def _repr_html_(self) -> str:
        return "".join(result._repr_html_() for result in self)


def read_record(folder: Path, more: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """run.json of a run. Raises: Damaged.

    more: what else it must have, as in RECORD.
    """
    return read_json(folder / "run.json", "Put back its own, or run again with --fresh.", {**RECORD, **more})


def _as_named_now(run: dict[str, Any]) -> dict[str, Any]:
    """A record whose stream has another name by now: what `moving-cvlm` was until 0.2.0 is `moving-conflict`."""
    source = run.get("stream_source") or {}
    if source.get("made_from", "").partition(":")[0] != "moving-cvlm" or source.get("backbone") != "tiny":
        return run
    made_from = source["made_from"].replace("moving-cvlm", "moving-conflict")
    return run | {
        "stream": run["stream"].replace("moving-cvlm", "moving-conflict"),
        "stream_source": source | {"made_from": made_from},
    }


def read_sweep(folder: Path, more: Sequence[str] = ()) -> dict[str, Any]:
    """sweep.json of a sweep. Raises: Damaged.

    more: keys that it must have beside what every reader asks of it.
    """
    shape = dict.fromkeys(("method", "stream", "protocol", "objectives", *more))
    return read_json(folder / SWEEP_RECORD, "Put back its own, or give another --name.", shape)


def read_outcome(folder: Path, run: str = "") -> dict[str, Any]:
    """result.json of a run; {} where there is none yet.

    run: its name; "" where that is not known. Raises: Damaged where the file is, or is another run's.
    """
    path, way_on = folder / "result.json", f"Remove it, and {AGAIN}."
    if not path.is_file():
        return {}
    outcome = read_json(path, way_on, {"state": None})
    if run and (owner := outcome.get("run", run)) != run:
        raise Damaged(f"{path} belongs to another run, {owner}. {way_on}")
    return outcome


def _read_table(path: Path, columns: list[str]) -> "pd.DataFrame":
    import pandas as pd

    try:
        return pd.read_parquet(path) if path.is_file() else pd.DataFrame(columns=columns)
    except (OSError, ValueError) as error:
        raise Damaged(
            f"{path} is damaged ({one_line(error)[:200]}). Remove result.json beside it, and {AGAIN}."
        ) from None


def run_words(
    method: str, stream: str, backbone: str | None, settings: Mapping[str, Any], flags: Sequence[str] = ()
) -> list[str]:
    """The words of `kinoray run` up to its settings. backbone: None or "" leaves the stream's. flags: as --joint."""
    words = ["kinoray", "run", method, "--stream", stream, *(["--backbone", backbone] if backbone else []), *flags]
    return words + [word for name, value in settings.items() for word in ("--set", f"{name}={as_typed(value)}")]


def command_of(result: Result) -> str:
    """What to type to make the run elsewhere; "" where its method or stream is no name but a file or an object."""
    run = result.run
    sources = run.get("method_source", {"kind": ""}), run.get("equal_flops", {"kind": "kinoray"})
    stream = run.get("stream_source", {}).get("made_from")
    if (
        not stream
        or {"backbone_source", "protocol_source"} & run.keys()
        or any(part["kind"] != "kinoray" for source in sources for part in source.get("parts", [source]))
    ):
        return ""
    kinds = ("as_released",) if result.control else ("joint", "zero_shot", "as_released")
    flags = [f"--{name.replace('_', '-')}" for name in kinds if run.get(name)]
    flags += ["--control", result.control] if result.control else []
    flags += ["--equal-flops", result.equal_flops] if result.equal_flops else []
    words = run_words(run["method"], str(stream), run["backbone"], result.overrides, flags)
    words += ["--seed", str(result.seed), *(["--orders", str(result.order + 1)] if result.order else [])]
    return shlex.join(words)


MADE_BY = "sweep"
"""File in a run's folder that names the sweep which made it."""


def made_by(folder: Path) -> str:
    """The sweep that made a run, by its folder; "" if none did."""
    mark = folder / MADE_BY
    return mark.read_text(encoding="utf-8").strip() if mark.is_file() else ""


def runs_of_sweep(sweep: Path) -> list[Path]:
    """The folders of the runs that a sweep made, beside its own folder."""
    marks = [mark for place in ("*/seed-*", "*/order-*/seed-*") for mark in sweep.parent.glob(f"{place}/{MADE_BY}")]
    return [folder for folder in sorted(mark.parent for mark in marks) if made_by(folder) == sweep.name]


TABLE = "border-collapse:collapse;margin:.4em 0"
CELL = "padding:.15em .6em;text-align:right;border:1px solid #8886"


def heat_map(matrix: "pd.DataFrame") -> str:
    """A result matrix as an HTML table; colour = score, readable on light and dark pages."""
    head = "".join(f"<th style='{CELL}'>{html.escape(printable(task))}</th>" for task in matrix.columns)
    rows = [f"<tr><th style='{CELL}'>after \\ on</th>{head}</tr>"]
    for name, values in zip(matrix.index, matrix.to_numpy(), strict=True):
        cells = "".join(f"<td style='{CELL};{_shade(value)}'>{show(value)}</td>" for value in values)
        rows.append(f"<tr><th style='{CELL}'>{html.escape(printable(name))}</th>{cells}</tr>")
    return f"<table style='{TABLE}'>{''.join(rows)}</table>"


def _shade(percent: float) -> str:
    """Blue that deepens with the score; the text keeps its contrast on both ends."""
    if math.isnan(percent):
        return ""
    light = 94 - 0.6 * min(max(percent, 0.0), 100.0)
    return f"background:hsl(212 70% {light:.0f}%);color:{'#fff' if light < 58 else '#111'}"
