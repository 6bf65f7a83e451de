"""Where steps on a GPU make the host wait for it: for every method, the waits of a step by line of source.

    python benchmarks/host_waits.py [--json] [--keep] [--methods NAME...]

Each method learns two tasks of the small stream that `kinoray check` uses, with torch telling every call that waits
(`torch.cuda.set_sync_debug_mode`); first steps, between which kernels are chosen, do not count. The engine itself waits
once a step, for the numbers of the step before it (`LateLog`); any other wait leaves the GPU idle until the host has
sent it more. Waits of backward passes are not seen: they are other threads'.

Needs a GPU; about five seconds a method.
"""

import argparse
import json
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import kinoray.methods.moco
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.run_rank import compute_repeatably
from kinoray.runs.method_source import find_method, method_names, with_learner
from kinoray.runs.run_spec import alone
from kinoray.testing.engine import spec_of
from kinoray.testing.small_stream import small_stream, suited
from kinoray.training.loop import train_stream

RESULTS = Path(__file__).parent / "results"
STEPS, FIRST = 6, 2
"""Steps a task, and those of them that do not count."""
OURS = tuple(str(Path(str(module.__file__)).parent) for module in (kinoray, kinoray.methods.moco))


def waits_of(name: str, folder: Path) -> Counter[str]:
    """Waits a counted step, `file:line call` by number over all of them."""
    small, source = small_stream(), find_method(name)
    stream = suited(source, small)
    stream = replace(stream, recipe=replace(stream.recipe, max_steps=STEPS, validations=0))
    spec = spec_of(with_learner(source, stream.protocol), stream, folder, device="cuda")
    compute_repeatably(spec, alone(spec))
    places: Counter[str] = Counter()

    class WatchedSession(RankSession):
        """A rank whose waits are noted while it makes steps."""

        @contextmanager
        def batches(self, stage: Any, start: int, state: Any) -> Iterator[Iterator[Any]]:
            with super().batches(stage, start, state) as batches:
                try:
                    yield watched(batches)
                finally:
                    torch.cuda.set_sync_debug_mode("default")

    def watched(batches: Iterator[Any]) -> Iterator[Any]:
        for step, batch in enumerate(batches):
            yield batch
            if step + 1 == FIRST:
                torch.cuda.set_sync_debug_mode("warn")

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            places[_place(traceback.extract_stack())] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        session = WatchedSession(spec, alone(spec), RunMonitor(spec.folder), None)
        for _ in train_stream(session.method, spec.stages, session.recipe, session, session.resume()):
            pass
    session.client.flush()
    return places


def _place(stack: traceback.StackSummary) -> str:
    """The newest of our lines in a stack, and what stands there."""
    ours = [frame for frame in stack if frame.filename.startswith(OURS)]
    frame = ours[-1] if ours else stack[-1]
    parts = Path(frame.filename).parts[-2:]
    return f"{'/'.join(parts)}:{frame.lineno} `{(frame.line or '')[:70]}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write results/host-waits.md")
    parser.add_argument("--methods", nargs="+", default=[])
    options = parser.parse_args()

    counted = 2 * (STEPS - FIRST)
    lines = [f"| {torch.cuda.get_device_name()} | waits a step | where |", "| --- | ---: | --- |"]
    print("\n".join(lines), flush=True)
    numbers = {}
    for name in options.methods or method_names():
        with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
            places = waits_of(name, Path(folder))
        numbers[name] = sum(places.values()) / counted
        where = "<br>".join(f"{count / counted:.2g} x {place}" for place, count in places.most_common())
        lines.append(f"| {name} | {numbers[name]:.2g} | {where} |")
        print(lines[-1], flush=True)
    if options.keep:
        (RESULTS / "host-waits.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
