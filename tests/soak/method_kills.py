"""Does every method survive? Kill its run at random moments, go on with the same command, compare the end bit by bit.

    python tests/soak/method_kills.py [--json] [--kills 5] [--seed S] [--concurrent 2] [--only NAME ...] [--keep FOLDER]

Every method that comes with kinoray, and every rule around every learner that a protocol joins it with, on a small
stream of two tasks under the first protocol that it suits, in one process (`num_workers=0`); VideoMoCo also on a 3D
network, its encoder probed and fine-tuned. A run is learned to its end undisturbed; a second one gets `--kills`
SIGKILLs, each followed by the same command. Every other one comes after a number of steps drawn at random, the rest in
what follows the last step of a task: selections, evaluations, commits. The two runs' `state_digest`, logged records,
ranks and scores must be equal. In one row all kills come while exemplars are chosen. A pair that does not go together
must say so before anything is committed. `kills.py` does the same to one method and all that is around it: Ray's
workers, decoders, actors and machines.

A process imports everything once, and each run is a fork of it. Bar: 0 mismatches. About 10 minutes.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

STEPS = 24
"""Optimizer steps of each of the two tasks."""
COMMIT_EVERY_S, COMMIT_SHARE = 0.2, 0.5
"""Instead of the engine's: the tasks take seconds, and kills should find commits inside them."""
PAUSE_S = 0.3
"""How long at most after a drawn record a kill comes."""
LIMIT_S = 300.0
"""How long a run may take to its end."""
POLL_S = 0.005
SELECTIONS = "selections.txt"


@dataclass(frozen=True)
class Row:
    """What is learned."""

    name: str
    method: str
    protocol: str
    backbone: str = ""
    """In place of a small one of the kind that the method needs."""
    settings: dict[str, Any] = field(default_factory=dict)
    parent: "Row | None" = None
    """Learned first, undisturbed: its encoder is the backbone."""
    selecting: bool = False
    """Whether every kill comes in the midst of choosing exemplars by k-means."""


def all_rows() -> list[Row]:
    """Every method and pair under the first protocol that it suits, and VideoMoCo's two halves on a network of its own
    kind: the pretext with its generator at work, its encoder probed and fine-tuned."""
    from kinoray.errors import UsageError
    from kinoray.rule import Rule
    from kinoray.runs.method_source import find_method, method_names

    classes = {name: find_method(name).load() for name in method_names()}
    learners = [name for name, cls in classes.items() if not issubclass(cls, Rule)]
    rows = [Row(name, name, (classes[name].suits or ("cvlm",))[0]) for name in learners]
    for rule in classes.keys() - set(learners):
        for learner in (name for name in learners if classes[name].suits):
            with contextlib.suppress(UsageError):  # no protocol joins them
                name = f"{rule}:{learner}"
                rows.append(Row(name, name, find_method(name).load().suits[0]))
    pretext = Row("video_moco on video", "video_moco", "video-ssl", "tiny-3d", {"dropout_from": 0.25, "queue_size": 64})
    downstream = [
        Row(f"classify, {train}", "classify", "cvlm", settings={"train": train}, parent=pretext)
        for train in ("all", "head")
    ]
    pictures = [
        Row("bmu_moco_views on pictures", "bmu_moco_views", "ucl", "tiny-cnn"),
        Row("probe of moco", "classify", "ucl", settings={"train": "head"}, parent=Row("moco", "moco", "ucl")),
        Row("ccsl:moco, selecting", "ccsl:moco", "cssl", selecting=True),
    ]
    return sorted([*rows, pretext, *downstream, *pictures], key=lambda row: row.name)


@dataclass(frozen=True)
class End:
    """What a finished run left, without its clocks."""

    digest: str
    log: list[dict[str, Any]]
    tests: dict[str, Any]
    ranks: bytes


def end_of(runs: Path) -> End | None:
    """None where the run has not finished."""
    folder = next((path.parent for path in runs.glob("*/seed-0/result.json")), None)
    if folder is None:
        return None
    result = json.loads((folder / "result.json").read_text())
    if result["state"] != "finished":
        return None
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    log = [{name: value for name, value in record.items() if name != "time_s"} for record in log]
    tests = {name: result[name] for name in ("metrics", "matrix", "queries", "tested_ids")}
    ranks = folder / "ranks.parquet"
    return End(result["state_digest"], log, tests, ranks.read_bytes() if ranks.exists() else b"")


def start(row: Row, home: Path, runs: Path) -> int:
    """Fork a process that carries out the run, or goes on with it; its id."""
    if process := os.fork():
        return process
    code = 1
    try:
        runs.mkdir(parents=True, exist_ok=True)
        output = os.open(runs / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.setsid()
        learn(row, home, runs)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def learn(row: Row, home: Path, runs: Path) -> None:
    """The command that is killed and given again."""
    import kinoray
    from kinoray.execution import commits
    from kinoray.testing.small_stream import on_protocol, small_stream, suited

    commits.COMMIT_EVERY_S, commits.COMMIT_SHARE = COMMIT_EVERY_S, COMMIT_SHARE
    if row.selecting:
        tell_of_selections(runs / SELECTIONS)
    stream = suited(row.method, on_protocol(small_stream(home), row.protocol))
    stream = on_protocol(stream, row.protocol)
    recipe = replace(stream.recipe, max_steps=STEPS, epochs=10 * STEPS)
    backbone = row.backbone or None
    if row.parent:
        (parent,) = (runs.parent / "parent").glob("*/seed-0")
        backbone = f"run:{parent}"
    stream = replace(stream, recipe=recipe)
    options: dict[str, Any] = {"settings": row.settings, "num_workers": 0, "runs": runs, "quiet": True}
    kinoray.run(row.method, stream=stream, backbone=backbone, **options)


def tell_of_selections(file: Path) -> None:
    """Have each k-means leave a line in a file as it begins, and take a moment longer."""
    from sklearn.cluster import KMeans

    fit = KMeans.fit

    def slow_fit(*arguments: Any, **options: Any) -> Any:
        with file.open("a") as opened:
            opened.write("begun\n")
        made = fit(*arguments, **options)
        time.sleep(PAUSE_S)
        return made

    KMeans.fit = slow_fit


def ended(process: int) -> int | None:
    """Its exit status, or the signal as a negative number; None while it runs."""
    done, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def to_the_end(process: int) -> int:
    """Wait for it; its exit status. Raises: TimeoutError."""
    end = time.monotonic() + LIMIT_S
    while (status := ended(process)) is None:
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise TimeoutError(f"nothing for {LIMIT_S:.0f} s")
        time.sleep(POLL_S)
    return status


def records(runs: Path) -> int:
    """How many it has logged."""
    return lines(runs.glob("*/seed-0/metrics.jsonl"))


def selections(runs: Path) -> int:
    """How many it has begun."""
    return lines(runs.glob(SELECTIONS))


def lines(files: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in files)


@dataclass
class Outcome:
    """What came of a row."""

    name: str
    kills: int = 0
    seconds: float = 0.0
    differs: list[str] = field(default_factory=list)
    """What is not equal, or what went wrong."""
    refused: str = ""
    """Why the two do not go together, where the run said so before it committed anything."""


def suffer(home: Path, folder: Path, kills: int, seed: int, row: Row) -> Outcome:
    """A row: a run to its end, and a second one with its kills."""
    began = time.monotonic()
    outcome, draw = Outcome(row.name), random.Random(f"{seed} {row.name}")
    own = own_folder(folder, row.name)
    try:
        if row.parent:
            finish(row.parent, home, own / "parent")
        finish(row, home, own / "whole")
        whole = end_of(own / "whole")
        assert whole is not None
        count = selections if row.selecting else records
        for number, pause_s in moments(whole, times(own / "whole"), kills, draw):
            if row.selecting:  # of the two tasks' selections, in turns
                number, pause_s = selections(own / "killed") + 1 + outcome.kills % 2, draw.uniform(0, PAUSE_S)
            process = start(row, home, own / "killed")
            outcome.kills += killed(process, own / "killed", count, number, pause_s)
        finish(row, home, own / "killed")
        end = end_of(own / "killed")
        outcome.differs += [part for part in vars(whole) if getattr(whole, part) != getattr(end, part, None)]
    except (TimeoutError, RuntimeError) as error:
        output = [line for path in own.glob("*/output.txt") for line in path.read_text().splitlines()]
        last = output[-1] if output else ""
        if last.startswith("kinoray.errors.UsageError: ") and not (own / "killed").exists():
            outcome.refused = last.partition(": ")[2]
        else:
            outcome.differs.append(f"{error} {last}")
    outcome.seconds = time.monotonic() - began
    return outcome


def own_folder(folder: Path, name: str) -> Path:
    """Where the runs of a row lie."""
    return folder / re.sub(r"\W+", "-", name)


def finish(row: Row, home: Path, runs: Path) -> None:
    """Start or go on, to the end. Raises: RuntimeError, TimeoutError."""
    if code := to_the_end(start(row, home, runs)):
        raise RuntimeError(f"the run in {runs.name} ended with {code}")


def times(runs: Path) -> list[float]:
    """When each record was logged, in seconds of the run, and its end."""
    (log,) = runs.glob("*/seed-0/metrics.jsonl")
    clocks = [json.loads(line)["time_s"] for line in log.read_text().splitlines()]
    born = log.stat().st_mtime - clocks[-1]
    return [*clocks, next(log.parent.glob("result.json")).stat().st_mtime - born]


def moments(whole: End, clocks: list[float], kills: int, draw: random.Random) -> list[tuple[int, float]]:
    """Kills in their order: after how many records, and how many seconds after that."""
    lasts = [
        n for n, (a, b) in enumerate(zip(whole.log, [*whole.log[1:], {}], strict=True)) if a["task"] != b.get("task")
    ]
    drawn = []
    for number in range(kills):
        if number % 2:
            last = draw.choice(lasts)
            drawn.append((last + 1, draw.uniform(0, clocks[last + 1] - clocks[last])))
        else:
            drawn.append((draw.randint(1, len(whole.log) - 1), draw.uniform(0, PAUSE_S)))
    return sorted(drawn)


def killed(process: int, runs: Path, count: Callable[[Path], int], wanted: int, pause_s: float) -> bool:
    """Wait until so many are counted, and a moment, and kill; False where the run was faster. Raises: TimeoutError."""
    end = time.monotonic() + LIMIT_S
    while count(runs) < wanted:
        if (status := ended(process)) is not None:
            return _was_faster(status)
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            raise TimeoutError(f"no {wanted} {count.__name__} in {LIMIT_S:.0f} s")
        time.sleep(POLL_S)
    time.sleep(pause_s)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL or _was_faster(status)


def _was_faster(status: int) -> bool:
    if status:
        raise RuntimeError(f"a run ended with {status} by itself")
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--kills", type=int, default=5, help="of each row")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments; printed")
    parser.add_argument("--concurrent", type=int, default=2, help="rows at a time")
    parser.add_argument("--only", nargs="+", default=[], help="names of rows")
    parser.add_argument("--keep", type=Path, help="folder of all runs, which stays")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    import kinoray.execution.run_rank  # noqa: F401  # once for all forks
    from kinoray.testing.small_stream import small_stream

    rows = [row for row in all_rows() if row.name in options.only or not options.only]
    print(f"seed {seed}, {len(rows)} rows", flush=True)
    outcomes = []
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kinoray-kills-")))
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        fork = multiprocessing.get_context("fork")
        pool = stack.enter_context(ProcessPoolExecutor(options.concurrent, mp_context=fork))
        pool.submit(small_stream, folder / "cache").result()  # rendered before two ask for it at once
        work = partial(suffer, folder / "cache", folder, options.kills, seed)
        for done in as_completed([pool.submit(work, row) for row in rows]):
            outcomes.append(outcome := done.result())
            told = f"DIFFERS: {'; '.join(outcome.differs)}" if outcome.differs else outcome.refused or "equal"
            print(f"{outcome.name}: {outcome.kills} kills, {outcome.seconds:.0f} s, {told}", flush=True)
            if not options.keep and not outcome.differs:
                shutil.rmtree(own_folder(folder, outcome.name))
    numbers = {
        "rows": len(outcomes),
        "refused": sum(bool(outcome.refused) for outcome in outcomes),
        "kills": sum(outcome.kills for outcome in outcomes),
        "mismatches": sum(bool(outcome.differs) for outcome in outcomes),
    }
    print(", ".join(f"{name} {value}" for name, value in numbers.items()))
    if options.json:
        print(json.dumps(numbers))
    sys.exit(bool(numbers["mismatches"]))


if __name__ == "__main__":
    main()
