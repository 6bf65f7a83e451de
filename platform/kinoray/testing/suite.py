"""`kinoray check`: all promises on one method, one outcome each."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from kinoray.errors import UsageError
from kinoray.execution.run_rank import settings_kept
from kinoray.method import BaseMethod
from kinoray.runs.method_source import MethodSource, find_method, with_learner
from kinoray.testing.promise import BrokenPromise, place_in, short
from kinoray.testing.promises import PROMISES, Promise
from kinoray.testing.small_stream import small_stream, suited
from kinoray.testing.subject import Subject

DEVICES = "cpu", "cuda"


@dataclass(frozen=True)
class Outcome:
    """Whether a method keeps one promise."""

    promise: str
    """Name of the function in `kinoray.testing.promises`."""
    words: str
    kept: bool
    what: str = ""
    """What breaks it, in one line."""
    place: str = ""
    """`file:line` of what breaks it."""
    seconds: float = 0.0


def check(method: str | Path | type[BaseMethod] | MethodSource, device: str = "cpu") -> Iterator[Outcome]:
    """Try every promise on a method, given as `kinoray.run` takes it (a rule by itself around its protocol's default
    learner); yields as they are tried, in about a minute.

    Runs in this process and two of its own, without Ray, on a stream of 110 small videos that is rendered into the
    cache folder once; nothing else is left behind.

    device: cpu, or cuda to learn on the GPU, in bfloat16 as a run does, where torch refuses what it cannot repeat; two
    ranks meet on the CPU all the same.
    Raises: UsageError where the method is not found or does not load, or the device is not there.
    """
    check_device(device)
    source, small = find_method(method), small_stream()
    source = with_learner(source, suited(source, small).protocol)
    source.load()
    with tempfile.TemporaryDirectory(prefix="kinoray-check-") as folder, settings_kept():
        subject = Subject(source, small, Path(folder), device=device)
        for promise in PROMISES:
            yield outcome_of(promise, subject)


def check_device(device: str) -> None:
    """Raises: UsageError for one that torch cannot compute on."""
    if device not in DEVICES:
        raise UsageError(f"device={device!r}: use one of {', '.join(DEVICES)}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device='cuda', but torch sees no GPU here. `kinoray doctor` tells what it sees.")


def outcome_of(promise: Promise, subject: Subject) -> Outcome:
    """Try one promise; whatever the method raises breaks it."""
    words, began = (promise.__doc__ or promise.__name__).strip().splitlines()[0], time.monotonic()
    what = place = ""
    try:
        promise(subject)
    except BrokenPromise as error:
        what, place = error.what, short(error.place)
    except Exception as error:
        what, place = f"{type(error).__name__}: {error}", short(place_in(error, subject.cls))
    return Outcome(promise.__name__, words, not what, " ".join(what.split()), place, time.monotonic() - began)
