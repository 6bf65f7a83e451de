"""What a disk can do to a run's folder: damages of one file or folder each, and the run's own command after each.

    python tests/soak/damages.py [--count 200] [--seed 0] [--only N ...] [--json]

Damage n changes the folder of a small run in this process (`num_workers=0`), by turns one that was stopped in its
second task and one that is finished: a file is cut, has a bit flipped or a part zeroed, is removed, or is the same file
of another seed's run; a folder is removed, or a whole checkpoint is one of the other run. What may follow: the run ends
with the `state_digest` that it always has, or one line that names the file. What may not: another digest, a traceback,
a step that the log lacks and nobody said. Then everything is read: what is damaged and read is one line as well.

A flipped bit that leaves `run.json` or `result.json` sound JSON says something else, which nobody can know: those are
counted apart. About ten minutes for 200.
"""

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kinoray
from kinoray.errors import KinorayError
from kinoray.execution import commits, run_monitor
from kinoray.execution.run_monitor import RunMonitor
from kinoray.runs.result import Result
from kinoray.system.durable import read_jsonl
from kinoray.system.folders import seed_label
from kinoray.system.signals import Stopped
from kinoray.testing.small_stream import on_protocol, small_stream

METHOD = "bmu_moco"
STOP_AT = (1, 1)
"""Task and step after which a run is asked to stop."""
STEPS = [(task, step) for task in range(2) for step in range(4)]
RECORDS = ("run.json", "result.json")
UNHARMED = ("lock",)
HIDDEN = "The traceback is in"
KINDS = ("cut", "flip", "zeros", "removed", "another run's", "another run's checkpoint")


@dataclass
class Damage:
    """What was done to a folder."""

    kind: str
    target: Path
    """Relative to the folder."""

    def named_by(self, text: str, run: str) -> bool:
        """Whether a text names the file or the checkpoint that it is in; where all of them are gone, the run."""
        parts = [part for part in self.target.parts if part not in ("checkpoints", "features")]
        all_gone = not parts or (self.kind == "removed" and self.target.parent.name == "checkpoints")
        return any(part in text for part in (*parts, *([run] if all_gone else [])))


def damaged(folder: Path, other: Path, rng: random.Random) -> Damage:
    """Damage something in a folder, with what the same folder of another run has."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in UNHARMED)
    folders = sorted(p for p in folder.rglob("*") if p.is_dir())
    kind = rng.choice(KINDS)
    if kind == "another run's checkpoint":
        place = rng.choice([p for p in folders if p.name.startswith("stage-")])
        replace(place, other / place.relative_to(folder))
        return Damage(kind, place.relative_to(folder))
    if kind == "removed":
        place = rng.choice(files + folders)
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        return Damage(kind, place.relative_to(folder))
    place = rng.choice(files)
    data = bytearray(place.read_bytes())
    match kind:
        case "cut":
            del data[rng.randrange(len(data)) if data else 0 :]
        case "flip" if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case "zeros":
            start = rng.randrange(len(data)) if data else 0
            end = min(len(data), start + rng.choice((1, 64, 4096)))
            data[start:end] = bytes(end - start)
        case "another run's":
            theirs = other / place.relative_to(folder)
            data = bytearray(theirs.read_bytes() if theirs.is_file() else b"")
    place.write_bytes(data)
    return Damage(kind, place.relative_to(folder))


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Let a run stop in the midst of its second task."""
    asked, run_monitor.FLUSH_S = RunMonitor.stop_requested, -1.0
    RunMonitor.stop_requested = lambda self: self.newest[:2] >= STOP_AT  # type: ignore[method-assign]
    try:
        yield
    finally:
        RunMonitor.stop_requested = asked  # type: ignore[method-assign]


def replace(place: Path, by: Path) -> None:
    """Put a copy of another folder in a folder's place."""
    shutil.rmtree(place)
    shutil.copytree(by, place)


def read_all(result: Result) -> None:
    """What readers look at. Raises: KinorayError, in one line each."""
    _ = result.state, result.metrics, result.matrix, result.ranks, result.losses, result.bad_samples, repr(result)
    store = kinoray.feature_store(result)
    for block in store.blocks:
        store.block(block.task, block.split)
    kinoray.momentum_weights(result)


def verdict(damage: Damage, folder: Path, go: Callable[[], Result], digest: str) -> tuple[str, str]:
    """What followed from a damage, one of `same`, `said`, `refused`, `reads otherwise` and `WRONG`, and the words."""
    record = folder / damage.target
    unknowable = damage.kind in ("flip", "zeros") and damage.target.name in RECORDS and is_json(record)
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            result = go()
            ended = result.outcome["state_digest"]
            logged = [(r["task"], r["step"]) for r in read_jsonl(folder / "metrics.jsonl") if "loss" in r]
            read_all(result)
    except KinorayError as error:
        line = f"{type(error).__name__}: {error}"
        if "\n" in line or HIDDEN in line or not damage.named_by(line, seed_label(folder)):
            return ("reads otherwise" if unknowable else "WRONG"), line
        return "refused", line
    except Exception:
        return "WRONG", traceback.format_exc()
    text = told.getvalue()
    if ended != digest:
        return ("reads otherwise" if unknowable else "WRONG"), f"another digest; {text}"
    said = "metrics.jsonl" in text or "CheckpointCorrupt" in text
    if logged != STEPS and "metrics.jsonl" not in text:
        return "WRONG", f"a hole in the log that nobody said: {logged}; {text}"
    return ("said" if said else "same"), ""


def is_json(file: Path) -> bool:
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of damages")
    parser.add_argument("--json", action="store_true", help="print one object last")
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="kinoray-damages-", ignore_cleanup_errors=True) as place:
        home = Path(place)
        commits.COMMIT_EVERY_S = 1e9  # on a busy machine there would be others
        stream = on_protocol(small_stream(home / "stream"), "ctvr")

        def go(root: Path, seed: int = 0) -> Any:
            return kinoray.run(METHOD, stream=stream, num_workers=0, runs=root, seed=seed)

        folders: dict[str, list[Path]] = {"stopped": [], "finished": []}
        for seed in (0, 1):
            with contextlib.redirect_stderr(io.StringIO()):
                finished = go(home / "finished", seed).folder
                with stopping(), contextlib.suppress(Stopped):
                    go(home / "stopped", seed)
            folders["finished"].append(finished)
            folders["stopped"].append(home / "stopped" / finished.relative_to(home / "finished"))
        digest = Result(folders["finished"][0]).outcome["state_digest"]
        for number in options.only or range(options.count):
            state = ("stopped", "finished")[number % 2]
            own, other = folders[state]
            root = home / "damaged"
            folder = root / own.parent.name / own.name
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(own, folder)
            damage = damaged(folder, other, random.Random(f"{options.seed}-{number}"))
            what, words = verdict(damage, folder, lambda root=root: go(root), digest)  # type: ignore[misc]
            counts[f"{state}, {damage.kind}", what] += 1
            told = f": {words}" if words else ""
            print(f"{number:4d} {state:<8} {damage.kind:<24} {damage.target}: {what}{told}", flush=True)
    kinds = sorted({kind for kind, _ in counts})
    columns = ("same", "said", "refused", "reads otherwise", "WRONG")
    print(f"{'':<36} {'  '.join(columns)}")
    for kind in kinds:
        print(f"{kind:<36} {'  '.join(f'{counts[kind, name]:>{len(name)}}' for name in columns)}")
    totals = {name: sum(counts[kind, name] for kind in kinds) for name in columns}
    if options.json:
        print(json.dumps(totals))
    sys.exit(bool(totals["WRONG"]))


if __name__ == "__main__":
    main()
