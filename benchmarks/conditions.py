"""Can a stream judge anything? Conditions that the plain learner and its bounds set alone.

    python benchmarks/conditions.py STREAM [--splits 1 2 3] [--seed 0] [--seeds 5] [--runs DIR] [--keep] [--set X=Y]

Runs the plain learner (Base-MoCo; MoCo or SimSiam on pictures) on each split with each seed, its controls, joint
training and zero-shot, and says which condition holds. What all methods share (rate, epochs) was chosen on split 0,
which is not among the defaults: so these splits are unsearched. No compared method is run here, but on
`robots-ctvr-10` and `moving-ctvr-10`: a mean over frames knows no order, so the bound there is joint training of
CLIP-ViP. On `robots-ssl` and `moving-actions` labelled clips are learned from fresh weights, and on what plain MoCo
learned without labels. A finished run is returned, not repeated. `--keep` writes the table into `benchmarks/results/`.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kinoray.data.manifest import read_manifest
from kinoray.execution.run import run_all
from kinoray.papers import frame_fusion
from kinoray.runs.experiment_file import parse_settings
from kinoray.runs.request import RunRequest
from kinoray.runs.result import Result
from kinoray.streams import events, load_stream, world
from kinoray.system.folders import home_of

RESULTS = Path(__file__).parent / "results"
Runs = dict[str, list[list[Result]]]
"""Row -> the runs of each split, by seed."""
Line = tuple[str, str, bool]
"""A condition in words, what was measured, and whether it holds."""
PLAIN: dict[str, dict[str, Any]] = {"base": {}, "joint": {"joint": True}}
ZERO_SHOT = {"zero-shot": {"zero_shot": True}}
RATES = {f"rate/{number}": {"control": f"rate/{number}"} for number in (2, 3, 6)}
HALF_RATE = {"rate/2": RATES["rate/2"]}
"""All that a condition asks for, where runs are long."""
PICTURES: dict[str, dict[str, Any]] = {"joint": {"joint": True}, "random-encoder": {"control": "random-encoder"}}
"""Networks start from fresh weights there, so nothing else is from scratch."""
BLIND = {name: {"control": name} for name in ("order-blind", "first-frame")}


MOCO: dict[str, Any] = {"method": "video_moco", "part": "", "settings": {"dropout": "none", "t": 1.0}}
"""Plain MoCo on a pretext, tested there by neighbours."""
ENCODED = {"encoder": MOCO}
"""Of a row that learns on what that one learned first."""
IN_TIME: dict[str, Any] = {"method": frame_fusion.IN_TIME.method, "settings": frame_fusion.IN_TIME.settings}
"""Of a row that sees the order of four frames, by embeddings that start at zero and must grow in a short run."""
SEES_ORDER = {name: IN_TIME | how for name, how in ({"joint": {"joint": True}} | BLIND).items()} | ZERO_SHOT
"""Rows of a stream whose captions tell the order of frames."""
CONCEPTS = {word for words in world.CONCEPT_WORDS.values() for word in words} - {*events.EVENTS}
"""What a caption of the embedded world names beside its event."""


def in_order(epochs: int) -> dict[str, dict[str, Any]]:
    """Rows of a stream of unlabelled clips whose order is the label; its pretext is learned with labels, too."""
    labels = {"part": "", "settings": {"epochs": epochs}}
    return {
        "base": ENCODED,
        "from-scratch": {},
        "base, at rest": MOCO,
        "random-encoder": MOCO | {"control": "random-encoder"},
        "labels": labels,
        "order-blind": labels | {"control": "order-blind"},
    }


class Ground(NamedTuple):
    """A stream that is to judge."""

    method: str
    rows: dict[str, dict[str, Any]]
    """Row -> options of its runs, and method and part where these are others. The first one names the columns."""
    conditions: Callable[[Runs], list[Line]]
    part: str = ""
    """The set of the stream whose scores count, where it is not the stream itself."""


def mean_of(runs: list[list[Result]], value: Callable[[Result], float]) -> float:
    """Over splits and seeds."""
    return float(np.mean([value(run) for of_split in runs for run in of_split]))


def metric(name: str) -> Callable[[Result], float]:
    return lambda run: number_of(run, name)


def forgotten(run: Result) -> float:
    """Percent of what each task but the last had when it was learned, in the mean."""
    matrix = run.matrix.to_numpy()
    learned, kept = np.diagonal(matrix)[:-1], matrix[-1, :-1]
    return float(100 * np.mean((learned - kept) / learned))


def largest_loss(run: Result) -> float:
    """Percent of all lost points that the task lost that lost most."""
    matrix = run.matrix.to_numpy()
    lost = np.maximum(np.diagonal(matrix)[:-1] - matrix[-1, :-1], 0)
    return float(100 * lost.max() / max(lost.sum(), 1e-9))


def above_chance(run: Result) -> np.ndarray:
    """How many times chance R@1 is, task by task."""
    galleries = last_test(run).groupby("task")["gallery"].first()
    return run.matrix.to_numpy()[-1] / (100 / galleries.to_numpy())


def last_test(run: Result) -> Any:
    """A row for each query of the last test."""
    ranks = run.ranks
    ranks = ranks[ranks["reading"] == ""]
    return ranks[ranks["after_task"] == ranks["after_task"].max()]


def zero_shot_above_chance(runs: Runs) -> np.ndarray:
    """How many times chance zero-shot is, task by task, over splits and seeds."""
    return np.mean([above_chance(run) for of_split in runs["zero-shot"] for run in of_split], axis=0)


def of_sprites(runs: Runs) -> list[Line]:
    ratios = zero_shot_above_chance(runs)
    most = mean_of(runs["base"], largest_loss)
    shown = ", ".join(f"{ratio:.1f}" for ratio in ratios)
    return [
        ("zero-shot at least 10 times chance in the mean", f"{ratios.mean():.1f}", ratios.mean() >= 10),
        ("zero-shot at least 5 times chance on each task", shown, bool((ratios >= 5).all())),
        ("no task loses more than half of all points", f"{most:.0f} % is the most", most <= 50),
        *of_cvlm(runs, 50),
    ]


def of_moving_cvlm(runs: Runs) -> list[Line]:
    ratio = zero_shot_above_chance(runs).mean()
    zero_shot, learned = mean_of(runs["zero-shot"], metric("R@1")), mean_of(runs["base"], metric("R@1_current"))
    return [
        ("zero-shot at least 10 times chance", f"{ratio:.1f}", ratio >= 10),
        ("zero-shot at most 0.8 of R@1 when learned", f"{zero_shot / learned:.2f}", zero_shot <= 0.8 * learned),
        ("R@1 when learned 30 to 75", f"{learned:.1f}", 30 <= learned <= 75),
        *of_cvlm(runs, 55),
    ]


def of_cvlm(runs: Runs, most_forgotten: float) -> list[Line]:
    loss = mean_of(runs["base"], forgotten)
    gap = mean_of(runs["joint"], metric("R@1")) - mean_of(runs["base"], metric("R@1"))
    slower = mean_of(runs["rate/2"], metric("HM")) - mean_of(runs["base"], metric("HM"))
    differences = [
        np.mean([number_of(half, "R@1") - number_of(base, "R@1") for half, base in zip(halves, bases, strict=True)])
        for halves, bases in zip(runs["rate/2"], runs["base"], strict=True)
    ]
    sd = float(np.std(differences, ddof=1)) if len(differences) > 1 else float("nan")
    return [
        (f"the baseline forgets 20 to {most_forgotten} %", f"{loss:.1f} %", 20 <= loss <= most_forgotten),
        ("joint training above final by at least 8", f"{gap:.1f}", gap >= 8),
        ("HM moves by less than 3 at half the rate", f"{slower:+.1f}", abs(slower) < 3),
        ("sd over splits of (half the rate - baseline) at most 1.5", f"{sd:.2f}", sd <= 1.5),
    ]


def of_ctvr(runs: Runs, fewest: int = 600) -> list[Line]:
    joint = mean_of(runs["joint"], metric("R@1"))
    lines = [
        (
            f"joint above {name}",
            f"{joint:.1f} against {(other := mean_of(runs[name], metric('R@1'))):.1f}",
            joint > other,
        )
        for name in BLIND
        if name in runs
    ]
    queries = len(last_test(runs["joint"][0][0]))
    return [*lines, (f"at least {fewest:,} queries", f"{queries:,}", queries >= fewest)]


def of_twins(runs: Runs, fewest: int = 600) -> list[Line]:
    what, order = (mean_of(runs["joint"], metric(f"R@1_{name}")) for name in ("what", "order"))
    return [*of_ctvr(runs, fewest), ("order of joint at least 65", f"{order:.1f}, and what {what:.1f}", order >= 65)]


def of_moving_ctvr(runs: Runs) -> list[Line]:
    joint, zero_shot = mean_of(runs["joint"], metric("R@1")), mean_of(runs["zero-shot"], metric("R@1"))
    oracle = mean_of(runs["joint"], reads_no_event)
    return [
        ("joint above an oracle that reads no event", f"{joint:.1f} against {oracle:.1f}", joint > oracle),
        ("zero-shot at least 60 % of joint", f"{100 * zero_shot / joint:.0f} %", zero_shot >= 0.6 * joint),
        *of_twins(runs, 1000),
    ]


def reads_no_event(run: Result) -> float:
    """R@1 of who knows from a caption all but its event, and draws among the test videos that fit."""
    known = []
    for task in load_stream(run.stream).tasks:
        manifest = read_manifest(task.manifest)
        for row in manifest.clips("test"):
            known.append(frozenset(manifest.caption(int(row), 0).split()) & CONCEPTS)
    return 100 * len(set(known)) / len(known)


def of_ssl(runs: Runs) -> list[Line]:
    labels, blind, moco, scratch, rested, random = (
        mean_of(runs[name], metric("accuracy"))
        for name in ("labels", "order-blind", "base", "from-scratch", "base, at rest", "random-encoder")
    )
    return [
        ("with labels and order at least 80", f"{labels:.1f}", labels >= 80),
        ("with labels, without order 48 to 52", f"{blind:.1f}", abs(blind - 50) <= 2),
        (
            "fresh weights at least 10 points below MoCo's, both fine-tuned",
            f"{scratch:.1f} against {moco:.1f}",
            moco - scratch >= 10,
        ),
        (
            "a random encoder at least 10 points below MoCo's, both at rest",
            f"{random:.1f} against {rested:.1f}",
            rested - random >= 10,
        ),
    ]


def of_pictures(score: str) -> Callable[[Runs], list[Line]]:
    def conditions(runs: Runs) -> list[Line]:
        joint, random = (mean_of(runs[name], metric(score)) for name in ("joint", "random-encoder"))
        gained = joint - mean_of(runs["half the epochs"], metric(score))
        return [
            (
                "a random encoder at least 15 points below joint",
                f"{random:.1f} against {joint:.1f}",
                joint - random >= 15,
            ),
            ("joint gains less than 2 points by its last doubling of epochs", f"{gained:+.1f}", abs(gained) < 2),
        ]

    return conditions


GROUNDS = {
    "moving-cvlm": Ground("base_moco", PLAIN | ZERO_SHOT | HALF_RATE, of_moving_cvlm),
    "sprites-cvlm": Ground("base_moco", PLAIN | ZERO_SHOT | RATES, of_sprites),
    "sprites-ctvr-10": Ground("avg_pool", PLAIN | ZERO_SHOT, of_ctvr),
    "moving-ctvr-10": Ground(
        "avg_pool",
        {"base": {}, "joint, a mean over frames": {"joint": True}} | SEES_ORDER,
        of_moving_ctvr,
    ),
    "robots-ctvr-10": Ground("avg_pool", SEES_ORDER, of_twins),
    "robots-ssl": Ground("classify", in_order(10), of_ssl, "/downstream"),
    "moving-actions": Ground("classify", in_order(40), of_ssl, "/downstream"),
    "shapes-5": Ground("moco", PICTURES, of_pictures("accuracy")),
    "glyphs-cssl": Ground("moco", PICTURES, of_pictures("accuracy")),
    "glyphs-ucl": Ground("simsiam", PICTURES, of_pictures("accuracy")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", choices=GROUNDS)
    parser.add_argument("--splits", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    ground, splits, seeds = GROUNDS[asked.stream], asked.splits, range(asked.seed, asked.seed + asked.seeds)
    searched = parse_settings(asked.set)
    rows = dict(ground.rows)
    if ground.rows is PICTURES:
        epochs = searched.get("epochs", load_stream(f"{asked.stream}:{splits[0]}").recipe.epochs)
        rows["half the epochs"] = {"joint": True, "settings": {"epochs": epochs // 2}}

    def runs_of(
        split: int, settings: dict[str, Any], method: str = ground.method, part: str = ground.part, **options: Any
    ) -> RunRequest:
        return RunRequest(
            method,
            stream=f"{asked.stream}:{split}{part}",
            settings=searched | settings,
            seed=asked.seed,
            seeds=asked.seeds,
            runs=asked.runs,
            quiet=True,
            num_workers=0,
            **options,
        )

    runs: Runs = {}
    for name, row in rows.items():
        options = {"settings": {}} | row
        encoders: list[dict[str, Any]] = [{}] * len(splits)
        if encoder := options.pop("encoder", None):
            learned = run_all([runs_of(split, **encoder) for split in splits])
            encoders = [{"backbone": f"run:{home_of(results[0].folder)}"} for results in learned]
        runs[name] = run_all([runs_of(k, **options, **of) for k, of in zip(splits, encoders, strict=True)])
    page = "\n".join(
        [*head(asked.stream, ground.method, splits, seeds, searched), *table(runs), "", *told(ground, runs)]
    )
    print(page)
    if asked.keep:
        (RESULTS / f"conditions-{asked.stream}.md").write_text(f"{page}\n", encoding="utf-8")


def head(stream: str, method: str, splits: list[int], seeds: range, settings: Mapping[str, Any]) -> list[str]:
    changed = "".join(f", {name}={value}" for name, value in settings.items())
    drawn = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return [
        f"Conditions of `{stream}`, set by {method} and its bounds alone: splits {', '.join(map(str, splits))},",
        f"{drawn}{changed}. Each number is the mean over splits and seeds, ± the standard",
        "deviation of the splits' means. Split 0 chose what all methods share.",
        "",
    ]


def table(runs: Runs) -> list[str]:
    """A row for each kind of run."""
    first = next(iter(runs.values()))[0][0]
    names = [*first.tasks, *(name for name in first.protocol.metrics if name in first.metrics)]
    lines = [f"| row | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for row, of_row in runs.items():
        cells = []
        for name in names:
            values = [[number_of(run, name) for run in of_split] for of_split in of_row]
            means = np.mean(values, axis=1)
            spread = f" ±{np.std(means, ddof=1):.1f}" if len(means) > 1 and name not in first.tasks else ""
            cells.append("-" if np.isnan(means).all() else f"{np.mean(means):.1f}{spread}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def number_of(run: Result, name: str) -> float:
    """A metric, or the last score of a task."""
    if name in run.tasks:
        return float(run.matrix.to_numpy()[-1, run.tasks.index(name)])
    value = run.metrics.get(name)
    return float("nan") if value is None else float(value)


def told(ground: Ground, runs: Runs) -> list[str]:
    """A line for each condition."""
    said = ground.conditions(runs)
    lines = [f"| {words} | {seen} | {'yes' if holds else '**no**'} |" for words, seen, holds in said]
    return ["| condition | measured | |", "| --- | --- | --- |", *lines]


if __name__ == "__main__":
    main()
