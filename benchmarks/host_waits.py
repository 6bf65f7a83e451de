"""Where steps on a GPU make the host wait for it: for every method, the waits of a step by line of source.

    python benchmarks/host_waits.py [--json] [--keep] [--methods NAME...]

Each method learns two tasks of the small stream that `kinoray check` uses, with torch telling every call that waits
(`torch.cuda.set_sync_debug_mode`); first steps, between which kernels are chosen, do not count. The engine itself waits
once a step, for the numbers of the step before it (`LateLog`); any other wait leaves the GPU idle until the host has
sent it more. Waits of backward passes are not seen: they are other threads'.

Without a GPU the same steps run on the CPU, and what would wait is told by what is called (`Reads`): numbers that the
host reads of tensors, and shapes that depend on numbers. Copies of memory that is not pinned are not seen then.

About five seconds a method.
"""

import argparse
import json
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import kinoray.methods.moco
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.run_rank import compute_repeatably
from kinoray.methods import frame_fusion_moe
from kinoray.runs.method_source import find_method, method_names, with_learner
from kinoray.runs.run_spec import alone
from kinoray.testing.engine import spec_of
from kinoray.testing.small_stream import small_stream, suited
from kinoray.training.loop import train_stream

RESULTS = Path(__file__).parent / "results"
STEPS, FIRST = 6, 2
"""Steps a task, and those of them that do not count."""
COUNTED = 2 * (STEPS - FIRST)
OURS = tuple(str(Path(str(module.__file__)).parent) for module in (kinoray, kinoray.methods.moco))


READS = {"tolist", "numpy", "cpu"}
"""Methods of tensors that read them on the host, beside those that torch dispatches."""
SHAPES = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "equal",
    "is_nonzero",
    "bincount",
}
"""Operators that wait: for a number, or for how many rows they make."""

HOSTS = (
    *("torch/optim/", "torch.distributions.", "transformers/masking_utils.py", "not slots.is_cuda"),
    "training/checkpoint.py",
)
"""What waits for no GPU: the optimizer's counters and single draws are the host's, masks of captions have four
dimensions on a GPU, of which nothing is asked, slots are looked at on a CPU alone; and commits, which are not a
step's."""


class Reads(TorchFunctionMode):
    """Tells of what on a GPU would make the host wait, calls by name (`READS`) and operators (`SHAPES`)."""

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self.note, self.inside = note, False
        self.operators = _Operators(self)

    def __enter__(self) -> "Reads":
        self.operators.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.operators.__exit__(*error)

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if getattr(function, "__name__", "") not in READS:
            return function(*arguments, **(named or {}))
        self.note()
        self.inside = True
        try:
            return function(*arguments, **(named or {}))
        finally:
            self.inside = False


class _Operators(TorchDispatchMode):
    """What reaches torch's kernels."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        name = function.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in arguments[1]
        )
        if (masks or name in SHAPES) and not self.reads.inside:
            self.reads.note()
        return function(*arguments, **(named or {}))


def all_experts(chosen: torch.Tensor, experts: int) -> list[int]:
    """What a GPU sums over (`backbones/experts.py: experts_to_sum`)."""
    return list(range(experts))


def waits_of(name: str, folder: Path) -> Counter[str]:
    """Waits of the counted steps, number by `file:line call`."""
    small, source = small_stream(), find_method(name)
    stream = suited(source, small)
    stream = replace(stream, recipe=replace(stream.recipe, max_steps=STEPS, validations=0))
    gpu = torch.cuda.is_available()
    spec = spec_of(with_learner(source, stream.protocol), stream, folder, device="cuda" if gpu else "cpu")
    compute_repeatably(spec, alone(spec))
    places: Counter[str] = Counter()

    class WatchedSession(RankSession):
        """A rank whose waits are noted while it makes steps."""

        @contextmanager
        def batches(self, stage: Any, start: int, state: Any) -> Iterator[Iterator[Any]]:
            with super().batches(stage, start, state) as batches:
                try:
                    yield watched(batches) if gpu else told(batches)
                finally:
                    if gpu:
                        torch.cuda.set_sync_debug_mode("default")

    def watched(batches: Iterator[Any]) -> Iterator[Any]:
        for step, batch in enumerate(batches):
            yield batch
            if step + 1 == FIRST:
                torch.cuda.set_sync_debug_mode("warn")

    def told(batches: Iterator[Any]) -> Iterator[Any]:
        for step, batch in enumerate(batches):
            with Reads(place) if step >= FIRST else nullcontext():
                yield batch

    def place() -> None:
        stack = traceback.extract_stack()
        if gpu or not any(mark in f"{frame.filename} {frame.line}" for frame in stack for mark in HOSTS):
            places[_place(stack)] += 1

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            place()

    frame_fusion_moe.experts_to_sum = all_experts  # type: ignore[attr-defined]
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

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "told on a CPU"
    lines = [f"| {device} | waits a step | where |", "| --- | ---: | --- |"]
    print("\n".join(lines), flush=True)
    numbers = {}
    for name in options.methods or method_names():
        with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
            places = waits_of(name, Path(folder))
        numbers[name] = sum(places.values()) / COUNTED
        where = "<br>".join(f"{count / COUNTED:.2g} x {place}" for place, count in places.most_common())
        lines.append(f"| {name} | {numbers[name]:.2g} | {where} |")
        print(lines[-1], flush=True)
    if options.keep:
        (RESULTS / "host-waits.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
