"""What every method must do, packaged or not: one function per promise, its first line the promise in words.

Each takes a `Subject` and raises BrokenPromise with the file and line of what breaks it; an error of the method's own
passes through. `PROMISES` lists them in the order in which they are worth reading.

    @pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
    def test_my_method(promise, tmp_path):
        promise(Subject(find_method("my_method.py"), small_stream(), tmp_path))

`kinoray check` tries all of them on one method, one outcome each.
"""

import copy
import inspect
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from operator import eq
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import torch

from kinoray.backbones.backbone import TwoTower
from kinoray.config import plain
from kinoray.errors import UsageError
from kinoray.execution.run_rank import settings_kept
from kinoray.method import BaseMethod
from kinoray.momentum import Frozen, Momentum
from kinoray.rule import Rule
from kinoray.runs.method_source import MethodSource, find_method, with_learner
from kinoray.runs.resolve import counts_tasks, facts_of
from kinoray.runs.run_spec import RunSpec
from kinoray.testing.engine import (
    built,
    committed_after,
    digest_of_run,
    first_batch,
    fresh_session,
    one_step,
    run_spec,
    spec_on,
    state_of,
)
from kinoray.testing.small_stream import small_stream, suited
from kinoray.testing.subject import Subject
from kinoray.training.checkpoint import load_weights, newest, not_finite
from kinoray.training.optim import names_and_params, total_objective
from kinoray.training.verbs import checked_groups, checked_output, rows_of

Promise = Callable[[Subject], None]
T = TypeVar("T")


class BrokenPromise(AssertionError):
    """What a method does not keep: what is wrong, and the file and line of the method that is to blame."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{what} ({place})" if place else what)
        self.what, self.place = what, place


def expect(holds: bool, what: str, place: str = "") -> None:
    """Raises: BrokenPromise unless it holds."""
    if not holds:
        raise BrokenPromise(what, place)


def place_of(cls: type, verb: str) -> str:
    """`file:line` where a class or one of its bases defines a verb; of `forward` and the like too."""
    code = getattr(inspect.unwrap(getattr(cls, verb)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def file_of(cls: type) -> str:
    """The file that the class was compiled from."""
    functions = [value for value in vars(cls).values() if hasattr(value, "__code__")]
    return functions[0].__code__.co_filename if functions else ""


def place_in(error: BaseException, cls: type) -> str:
    """`file:line` of the method's own deepest line in a traceback; the verb that it names where none is its own."""
    bases = [base for part in (cls, *getattr(cls, "parts", ())) for base in part.__mro__]
    own = {file_of(base) for base in bases if issubclass(base, BaseMethod) and base not in (BaseMethod, Rule)}
    verbs = [name for name in vars(BaseMethod) if inspect.isroutine(getattr(BaseMethod, name))]
    named = [verb for verb in verbs if f"`{verb}`" in str(error)]
    return deepest(error, own) or (place_of(cls, named[0]) if named else "")


def deepest(error: BaseException, files: Collection[str]) -> str:
    """`file:line` of the deepest line of some files in a traceback; "" where it has none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f"{frame.filename}:{frame.lineno}" for frame in reversed(frames) if frame.filename in files), "")


def short(place: str) -> str:
    """A place relative to the current folder where it lies in it."""
    path, _, line = place.rpartition(":")
    here = Path.cwd()
    inside = path and Path(path).is_absolute() and Path(path).is_relative_to(here)
    return f"{Path(path).relative_to(here)}:{line}" if inside else place


def travels_between_processes(subject: Subject) -> None:
    """Config and method's class travel between processes, and a copy of the method is the method."""
    spec, cls, settings = subject.spec, subject.cls, subject.spec.run.settings
    config = cls.Config(**settings)
    arrived = cloudpickle.loads(cloudpickle.dumps(spec)).run.method.load()
    same = plain(arrived.Config(**settings)) == plain(config) == settings
    expect(same, "a Config built of its own values has other values", place_of(cls, "__init__"))
    method = built(spec)  # not pickled, which torch refuses of parametrizations (LoRA): processes pass on tensors
    differ = _differing(state_of(method), state_of(copy.deepcopy(method)))
    expect(not differ, f"a copy of the method has another {_first(differ)}", place_of(cls, "__init__"))


def grows_the_same_again(subject: Subject) -> None:
    """A grown state loads into a newly grown method: what `grow` makes depends on the tasks alone."""
    other_seed = replace(subject.spec, run=replace(subject.spec.run, seed=1))
    old, new = built(subject.spec), built(other_seed)
    start = _shapes(old.encoder())
    for task in facts_of(subject.resolved("grown")):
        old.grow(task)
        new.grow(task)
    place = place_of(subject.cls, "grow")
    what = "a task brings `encoder()` weights that it did not have: set `encoder_by_task = True`"
    expect(_shapes(old.encoder()) == start or subject.cls.encoder_by_task, what, place)
    try:
        new.load_state_dict(old.state_dict(), strict=True)
    except RuntimeError as error:
        raise BrokenPromise(
            f"the state of a method after `grow` does not load into a new one: {' '.join(str(error).split())}", place
        ) from None
    differ = _differing(old.state_dict(), new.state_dict())
    expect(not differ, f"after loading, {_first(differ)} has other values", place)


def returns_what_its_verbs_promise(subject: Subject) -> None:
    """`param_groups` and `loss` give groups of its own parameters, scalars, and detached rows."""
    session = fresh_session(subject.spec)
    groups = checked_groups(session.method.param_groups())
    own = {id(p) for p in session.method.parameters()}
    outside = [name for name, p in names_and_params(groups).items() if id(p) not in own]
    what = f"{_first(outside)} trains but belongs to no module of the method, so it would not be saved"
    expect(not outside, what, place_of(subject.cls, "param_groups"))
    _, batch = first_batch(session)
    checked_output(session.method.loss(batch), groups, rows_of(batch))


def trains_only_what_it_names(subject: Subject) -> None:
    """Only the parameters named in `param_groups` get gradients."""
    session = fresh_session(subject.spec)
    groups = session.method.param_groups()
    _, batch = first_batch(session)
    total_objective(checked_output(session.method.loss(batch), groups, rows_of(batch))).backward()
    named = {id(p) for p in names_and_params(groups).values()}
    strays = [name for name, p in session.method.named_parameters() if p.grad is not None and id(p) not in named]
    what = f"{len(strays)} parameters get gradients and are in no group, first {_first(strays)}: freeze or name them"
    expect(not strays, what, place_of(subject.cls, "loss"))


def changes_nothing_in_loss(subject: Subject) -> None:
    """Frozen copies stay frozen, and averages move only in `after_step`."""
    step = one_step(subject.spec)
    for name, module in step["method"].named_modules():
        if not isinstance(module, Frozen):
            continue
        place = place_of(subject.cls, "after_step")
        still = module.follows_training or not any(m.training for m in module.modules())
        expect(still, f"{name} is in train mode", place)
        expect(not any(p.requires_grad for p in module.parameters()), f"{name} has gradients on", place)
        inside = [key for key in step["before"] if key.startswith(f"{name}.")]
        if module.follows_training:  # its batch normalisation remembers what the forward pass saw
            buffers = {f"{name}.{key}" for key, _ in module.named_buffers()}
            inside = [key for key in inside if key not in buffers]
        moved = [key for key in inside if not torch.equal(step["before"][key], step["between"][key])]
        expect(not moved, f"{_first(moved)} moves before `after_step`", place_of(subject.cls, "loss"))
        if not isinstance(module, Momentum):
            moved = [key for key in inside if not torch.equal(step["before"][key], step["after"][key])]
            expect(not moved, f"{_first(moved)} moves; only a Momentum may", place)


def learned(subject: Subject) -> BaseMethod:
    """The method as its usual run left it, in eval mode."""
    checkpoint = newest(Path(subject.whole.folder) / "checkpoints", say=print)
    assert checkpoint is not None
    method = built(subject.spec)
    for task in facts_of(subject.resolved("grown")):
        method.grow(task)
    load_weights(method, checkpoint)
    return method.eval()


def learns_two_tasks(subject: Subject) -> None:
    """Two tasks of four steps end with finite weights, and the encoder or what trains has moved."""
    end = learned(subject)
    encoded, after = end.encoder().state_dict(), end.state_dict()
    infinite = not_finite(encoded)
    expect(not infinite, f"{_first(infinite)} of the encoder is not finite", place_of(subject.cls, "loss"))
    start = fresh_session(subject.spec).method
    trained = {id(p) for p in names_and_params(start.param_groups()).values()}
    moved = any(
        name not in after or not torch.equal(p, after[name]) for name, p in start.named_parameters() if id(p) in trained
    ) or any(
        name in encoded and not torch.equal(value, encoded[name])
        for name, value in start.encoder().state_dict().items()
    )
    expect(moved, "eight steps have moved nothing", place_of(subject.cls, "param_groups"))


def tests_its_encoder(subject: Subject) -> None:
    """What is tested is what `encoder()` gives, unless `encoder_by_task` or, of texts, `per_block` says otherwise."""
    if subject.cls.encoder_by_task:
        return
    method, last = learned(subject), len(subject.stream.tasks) - 1
    encoder = method.encoder()
    _, batch = first_batch(fresh_session(subject.spec))
    with torch.no_grad():
        video, text = batch.video, batch.text
        pairs = {"probe_features": (method.probe_features(video, last), encoder.features(video))}
        embedded = method.embed_video(video, last)
        if not method.tested_by and embedded.dim() == 2:  # frames are scored against each text; no encoder does that
            pairs["embed_video"] = embedded, encoder.embed_video(video)
            if isinstance(encoder, TwoTower) and not method.per_block:
                pairs["embed_text"] = method.embed_text(text, last), encoder.embed_text(text)
    for verb, (tested, encoded) in pairs.items():
        what = f"`{verb}` is not what `encoder()` gives: rules, probes and exports would see another network"
        expect(torch.allclose(tested, encoded, rtol=1e-4, atol=1e-5), what, place_of(subject.cls, verb))


def repeats_itself(subject: Subject) -> None:
    """The same run twice gives the same bits."""
    again = subject.copy("again")
    assert run_spec(again)
    what = "a second run of the same seed ends elsewhere: it draws from a generator of its own, or depends on the time"
    expect(digest_of_run(again) == digest_of_run(subject.whole), what, place_of(subject.cls, "loss"))


def keeps_no_state_in_plain_attributes(subject: Subject) -> None:
    """What changes while training is saved: it stands in parameters and buffers, not in plain attributes."""
    for owner, attribute, place in subject.broken[1]:
        what = f"attribute {attribute} of {owner} is lost at a resume; self.register_buffer keeps it"
        raise BrokenPromise(what, place or place_of(subject.cls, "__init__"))


def resumes_bit_for_bit(subject: Subject) -> None:
    """Stopped and resumed equals never stopped, bit for bit, also in the log."""
    spec, lost = subject.broken
    place = lost[0][2] if lost else place_of(subject.cls, "after_step")
    what = f"a run that was stopped and resumed ends elsewhere{f'; it lost {lost[0][1]}' if lost else ''}"
    expect(digest_of_run(spec) == digest_of_run(subject.whole), what, place)
    expect(_lines(spec) == _lines(subject.whole), "the log of a resumed run repeats, misses or changes a step", place)


def counts_tasks_as_it_says(subject: Subject) -> None:
    """With `uses_num_tasks = False` it learns the same among two tasks and among five."""
    among_five = subject.resolved("tasks", settings={"planned_tasks": 5})
    if counts_tasks(among_five):
        return
    differ = _differing(subject.first_task, committed_after(spec_on(subject.device, among_five), 1), eq)
    what = f"the number of tasks changes {_first(differ)}; set `uses_num_tasks = True`"
    expect(not differ, what, place_of(subject.cls, "__init__"))


def two_ranks_equal_one(subject: Subject) -> None:
    """Two ranks equal one, in values, gradients and state."""
    alone, ranks = one_step(subject.spec_of_two, goes_on=True), subject.two_ranks
    loss, after_step = (place_of(subject.cls, verb) for verb in ("loss", "after_step"))
    for rank in ranks:
        expect("error" not in rank, f"on two ranks: {rank.get('error')}", loss)
        for key, value in alone["values"].items():
            found = f"{key} is {value:.6g} on one rank and {rank['values'][key]:.6g} on two"
            what = f"{found}: divide by batch.global_size, take len(batch.ids) / batch.global_size of a penalty"
            what += ", and draw random numbers by batch.normal or batch.uniform"
            expect(abs(rank["values"][key] - value) <= max(1e-6, 1e-5 * abs(value)), what, loss)
        expect(rank["gradients"].keys() == alone["gradients"].keys(), "two ranks train other parameters than one", loss)
        for key, value in alone["gradients"].items():
            near = torch.allclose(rank["gradients"][key], value, rtol=1e-3, atol=2e-5)
            expect(near, f"the gradient of {key} on two ranks is not that of one", loss)
        for key, value in alone["after"].items():
            if "queue" in key or "keys" in key or value.dtype == torch.int64:
                near = torch.allclose(rank["after"][key], value, rtol=1e-4, atol=1e-5)
                expect(near, f"{key} after a step on two ranks is not that of one: use `carry`", after_step)
    differ = _differing(ranks[0]["after"], ranks[1]["after"])
    expect(not differ, f"after a step the two ranks hold another {_first(differ)}: use `carry`, `gather`", after_step)


def _shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def _differing(
    first: dict[str, Any], second: dict[str, Any], equal: Callable[[Any, Any], bool] = torch.equal
) -> list[str]:
    """Names that only one has, or whose tensors differ; equal: of what stands for them."""
    both = [name for name in first if name in second]
    return sorted(first.keys() ^ second.keys()) + [name for name in both if not equal(first[name], second[name])]


def _first(names: list[str]) -> str:
    """The name that a message gives; nothing where all is well."""
    return names[0] if names else ""


def _lines(spec: RunSpec) -> list[dict[str, Any]]:
    lines = map(json.loads, (Path(spec.folder) / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "time_s"} for line in lines]


PROMISES: tuple[Promise, ...] = (
    travels_between_processes,
    grows_the_same_again,
    returns_what_its_verbs_promise,
    trains_only_what_it_names,
    changes_nothing_in_loss,
    learns_two_tasks,
    tests_its_encoder,
    repeats_itself,
    keeps_no_state_in_plain_attributes,
    resumes_bit_for_bit,
    counts_tasks_as_it_says,
    two_ranks_equal_one,
)


DEVICES = "cpu", "cuda"


@dataclass(frozen=True)
class Outcome:
    """Whether a method keeps one promise."""

    promise: str
    """Name of the function in `kinoray.testing.suite`."""
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
            yield outcome_of(promise, subject, lambda error: place_in(error, subject.cls))


def check_device(device: str) -> None:
    """Raises: UsageError for one that torch cannot compute on."""
    if device not in DEVICES:
        raise UsageError(f"device={device!r}: use one of {', '.join(DEVICES)}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device='cuda', but torch sees no GPU here. `kinoray doctor` shows what torch sees.")


def outcome_of(promise: Callable[[T], None], subject: T, place_in: Callable[[Exception], str]) -> Outcome:
    """Try one promise; whatever the method raises breaks it, at a place that is found by the error."""
    words, began = (promise.__doc__ or promise.__name__).strip().splitlines()[0], time.monotonic()
    what = place = ""
    try:
        promise(subject)
    except BrokenPromise as error:
        what, place = error.what, short(error.place)
    except Exception as error:
        what, place = f"{type(error).__name__}: {error}", short(place_in(error))
    return Outcome(promise.__name__, words, not what, " ".join(what.split()), place, time.monotonic() - began)
