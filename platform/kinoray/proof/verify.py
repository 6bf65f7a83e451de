"""`kinoray verify`: what a bundle says, checked: its numbers from its ranks, its chain, and one task trained again.

Nothing of a bundle is executed: it names methods that this kinoray has, or the user gives the file. All that is written
lies in a temporary folder. The three verdicts are never mixed: that another processor or torch ends with another digest
proves nothing against a bundle.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from kinoray.backbones import check_backbone, names_all, weights_digest
from kinoray.config import Recipe, plain
from kinoray.data.manifest import read_manifest
from kinoray.errors import DONE, NOT_REPEATED, SOME_FAILED, BadData, CheckpointCorrupt, UsageError
from kinoray.evaluation.feature_files import write_features
from kinoray.evaluation.protocol import load_protocol
from kinoray.proof.archive import TENSORS, Bundle, read_bundle, read_ranks, read_tensors
from kinoray.proof.bundle import bytes_of, own_folders, reference_of, stages_again
from kinoray.proof.cells import Tested, cells_of, odd_cell
from kinoray.proof.documents import CommitDocument, Request, RunDocument, chosen_task, read_document, seal_of
from kinoray.runs.method_source import MethodSource, find_method, method_names
from kinoray.runs.record import changes, code_digest, versions
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.write_result import numbers_of
from kinoray.streams import Stream, family_of, load_stream, stream_families
from kinoray.streams.own_folder import is_own_folder
from kinoray.system.folders import cache_folder, expanded
from kinoray.system.pool import usable_cores
from kinoray.system.text import PLAIN_NAME, one_line, printable
from kinoray.system.variables import environment
from kinoray.training.chain import Link, chain_of, leaves_of, processor_of, state_link
from kinoray.training.checkpoint import Checkpoint, Position

State = Literal["ok", "unknown", "failed"]
CLOSE = 1e-9
"""Relative difference of a number that another numpy may sum otherwise."""
MOST_WORDS = 500
NEVER_LINKED = ("frames", "tasks")
"""Parts of the cache that a verifier makes anew."""


@dataclass(frozen=True)
class Check:
    """One line of a verdict."""

    run: str
    state: State
    """unknown: it could not be looked at here."""
    words: str


@dataclass(frozen=True)
class Verdict:
    """What came of all checks."""

    checks: tuple[Check, ...]
    """In the order in which they were made."""

    @property
    def words(self) -> str:
        """The verdict: "repeated", "consistent but not repeated" or "failed"."""
        states = {check.state for check in self.checks}
        if "failed" in states:
            return "failed"
        return "consistent but not repeated" if "unknown" in states else "repeated"

    @property
    def exit_code(self) -> int:
        """Of `kinoray verify`."""
        return {"repeated": DONE, "failed": SOME_FAILED}.get(self.words, NOT_REPEATED)


class Wrong(Exception):
    """A check failed; the words name the place."""


class NotHere(Exception):
    """Something to check with is not here; the words say what."""


def verify(
    file: str | Path,
    *,
    method: Any = None,
    stream: str | Stream | None = None,
    tell: Callable[[Check], None] = lambda check: None,
) -> Verdict:
    """Check a bundle, and train one task of each of its runs again.

    Args:
        file: The bundle.
        method: The file, or the class, of a custom method; it is executed if its digest is that of the run.
        stream: The folder of custom data.
        tell: Called with each check as it ends.

    Raises:
        UsageError: The file is no bundle.
    """
    path = expanded(file)
    bundle = read_bundle(path)
    sections = bundle.document.sections.items()
    opened = [_opened(bundle, number, path, section) for section, runs in sections for number in runs]
    checks: list[Check] = []
    for run in opened:
        for check in _checks(run, method, stream):
            checks.append(check)
            tell(check)
    return Verdict(tuple(checks))


@dataclass(frozen=True)
class Opened:
    """A run of a bundle, of the right form and not yet believed."""

    number: str
    document: RunDocument
    request_values: Any
    tested: Tested
    commit: CommitDocument | None
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    faults: Sequence[str]

    @property
    def request(self) -> Request:
        """What it was asked to do."""
        return self.document.request

    @property
    def label(self) -> str:
        """What it is called in a line."""
        return printable(f"{self.request.method} on {self.request.stream}, seed {self.request.seed}")[:120]

    @cached_property
    def links(self) -> list[Link]:
        """Of its chain, as its states and ranks give them."""
        return [Link(*pair) for pair in zip(self.document.states, self.tested.links(self.stages), strict=True)]

    @property
    def stages(self) -> tuple[Any, ...]:
        """What was learned and tested, in order."""
        request = self.request
        return load_protocol(request.protocol).stages(len(request.tasks), request.joint, request.zero_shot)


def _opened(bundle: Bundle, number: str, path: Path, section: str) -> Opened:
    """A run's files, read. Raises: UsageError for wrong forms; what is cut or exchanged is a fault of `Opened`."""
    where, files = f"{path}: runs/{number}", bundle.of_run(number)
    faults = bundle.faults(number)
    if "run.json" not in files or "ranks.parquet" not in files:
        raise UsageError(f"{where} lacks run.json or ranks.parquet.")
    document, values = read_document(RunDocument, files["run.json"], f"{where}/run.json")
    request = document.request
    faults += [] if request.stream == section else [f"run {number} stands in the section of {section}"]
    load_protocol(request.protocol)
    if not 0 < len(request.tasks) <= 1000:
        raise UsageError(f"{where}/run.json names {len(request.tasks)} tasks; 1 to 1,000 are allowed.")
    ranks = f"{where}/ranks.parquet"
    tested = cells_of(read_ranks(files["ranks.parquet"], ranks), len(request.tasks), ranks)
    commit = None
    if "commit.json" in files:
        commit, _ = read_document(CommitDocument, files["commit.json"], f"{where}/commit.json")
    names = {part: f"{part}.safetensors" for part in TENSORS}
    tensors = {p: read_tensors(files[name], f"{where}/{name}") for p, name in names.items() if name in files}
    return Opened(number, document, values["request"], tested, commit, tensors, faults)


def _checks(run: Opened, method: Any, stream: str | Stream | None) -> Iterator[Check]:
    """The checks of a run, each as it ends; the first that is not ok is the last."""
    with tempfile.TemporaryDirectory(prefix="kinoray-verify-") as name:
        folder = Path(name)
        try:
            for words in (_files, _numbers, _chain, _task, partial(_commit, folder=folder)):
                yield Check(run.label, "ok", words(run))
            with _own_cache(folder / "cache"):
                resolved = _resolved(run, method, stream, folder)
                yield Check(run.label, "ok", f"method, data and settings are here: {len(run.request.tasks)} tasks")
                yield Check(run.label, "ok", _repeated(run, resolved, folder))
        except Wrong as error:
            yield Check(run.label, "failed", printable(error)[:MOST_WORDS])
        except NotHere as error:
            yield Check(run.label, "unknown", printable(error)[:MOST_WORDS])


# What needs nothing but the bundle


def _files(run: Opened) -> str:
    if run.faults:
        raise Wrong("; ".join(run.faults))
    return "its files are those that the bundle lists"


def _numbers(run: Opened) -> str:
    """Every metric and every cell of a table, from the ranks."""
    protocol = load_protocol(run.request.protocol)
    if odd := odd_cell(run.tested, run.stages, protocol.readings):
        raise Wrong(f"ranks.parquet: {odd}")
    numbers = numbers_of(protocol, run.tested.cells, len(run.request.tasks))
    for kind, found in numbers.items():
        if place := _differing(getattr(run.document, kind), found):
            raise Wrong(f"run.json, {kind}{place} as its ranks give it")
    ranks = sum(len(cell) for cell in run.tested.cells.values())
    shown = ", ".join(f"{n} {v:.1f}" for n in protocol.brief if (v := numbers["metrics"].get(n)) is not None)
    return f"all metrics and cells follow from its {ranks:,} ranks: {shown}"


def _differing(said: Any, found: Any) -> str:
    """The first place where two values differ, and how; "" where they agree."""
    if isinstance(said, dict) and isinstance(found, dict) and set(said) == set(found):
        return next((f" {n}{place}" for n in found if (place := _differing(said[n], found[n]))), "")
    if isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        pairs = enumerate(zip(said, found, strict=True), 1)
        return next((f" {n}{place}" for n, (a, b) in pairs if (place := _differing(a, b))), "")
    if isinstance(said, int | float) and isinstance(found, int | float):
        return "" if math.isclose(said, found, rel_tol=CLOSE, abs_tol=CLOSE) else f": {said}, but {found}"
    return "" if said == found else f": {str(said)[:60]}, but {str(found)[:60]}"


def _chain(run: Opened) -> str:
    chain, stages = run.document.chain, len(run.stages)
    if not len(chain) == len(run.document.states) == stages:
        raise Wrong(f"run.json, chain: it has {len(chain)} digests for {stages} tasks")
    for number, (said, found) in enumerate(zip(chain, chain_of(run.links), strict=True), 1):
        if said != found:
            raise Wrong(f"run.json, chain: the digest of task {number} is not that of its state and ranks")
    return f"the chain holds together over {stages} task{'s' * (stages > 1)}"


def _task(run: Opened) -> str:
    seal = seal_of(run.request_values, run.document.chain, [link.ranks for link in run.links])
    if run.document.seal != seal:
        raise Wrong("run.json, request: it is not the one that was sealed with this chain and these ranks")
    task = chosen_task(seal, len(run.stages))
    if run.document.task != task:
        raise Wrong(f"run.json, task: it is {run.document.task}, but the seal gives {task}")
    return f"task {task} of {len(run.stages)} is the one to train again"


def _commit(run: Opened, folder: Path) -> str:
    """The state before the task is that of the chain."""
    task, commit = run.document.task, run.commit
    if task == 1:
        if commit is not None or run.tensors:
            raise Wrong("commit.json: there is no state before task 1")
        return "it is trained from the beginning"
    if commit is None or "method" not in run.tensors:
        raise Wrong("commit.json or method.safetensors is missing")
    if commit.stage != task - 1:
        raise Wrong(f"commit.json is the state after task {commit.stage}, but task {task} is to be trained")
    found = leaves_of({part: run.tensors.get(part, {}) for part in ("method", "optimizer")})
    for name, digest in found.items():
        if commit.leaves.get(name) != digest:
            raise Wrong(f"{name.replace('/', '.safetensors, ', 1)} does not match commit.json")
    given = {f"method/{name}" for name in commit.given}
    lacking = [n for n in commit.leaves if n not in found and n not in given and not n.startswith("validation/")]
    if lacking or given & set(found):
        raise Wrong(f"commit.json: {(lacking or sorted(given & set(found)))[0]} does not match the tensors")
    features = {name: of.sha256 for name, of in commit.features.items()}
    if state_link(commit.leaves, commit.selections, features) != run.document.states[task - 2]:
        raise Wrong(f"commit.json is not the state of the chain after task {task - 1}")
    _put_features(run, folder / "features")
    return f"the state before task {task} is that of the chain"


def _put_features(run: Opened, folder: Path) -> dict[str, Any]:
    """Write the feature files that the task reads; what a checkpoint says of them. Raises: Wrong, NotHere."""
    assert run.commit is not None
    facts, tensors = {}, run.tensors.get("features", {})
    if set(tensors) != set(run.commit.features):
        raise Wrong("features.safetensors does not hold what commit.json names")
    for name, of in run.commit.features.items():
        split, _, task = name.partition("/")
        if not task.isdecimal() or len(task) > 3 or split not in ("train", "validation", "test"):
            raise Wrong(f"commit.json: {name!r} names no features")
        values = tensors[name]
        if values.ndim < 2 or len(values) != len(of.ids) or not values.numel() or values.dtype != torch.float32:
            raise Wrong(f"features.safetensors, {name}: {tuple(values.shape)} does not fit {len(of.ids)} clips")
        facts[name] = write_features(folder, split, int(task), of.after_task, of.ids, values)
        if facts[name]["sha256"] != of.sha256:
            if changed := _changed_versions(run.request):
                raise NotHere(f"features.safetensors, {name}, cannot be compared: {changed}")
            raise Wrong(f"features.safetensors, {name} does not match commit.json")
    return facts


# What needs the method and the data


@contextmanager
def _own_cache(folder: Path) -> Iterator[None]:
    """A cache of its own for the block: what the user's holds can be read there, what is made stays in it."""
    home = folder / "kinoray"
    home.mkdir(parents=True)
    usual = cache_folder().absolute()
    there = [entry for entry in usual.glob("*/*") if entry.parent.name not in NEVER_LINKED]
    for entry in there:  # not their folders: what they lack is made in the temporary one
        place = home / entry.relative_to(usual)
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(entry)
    with environment({"XDG_CACHE_HOME": str(folder), "KINORAY_CACHE": str(home / "frames")}):
        yield


def _resolved(run: Opened, method: Any, given: str | Stream | None, folder: Path) -> Resolved:
    """The run, from what is here. Raises: NotHere, Wrong."""
    request = run.request
    source = _method(request, method)
    stream = _stream(request, given)
    if folders := own_folders(request.settings) + own_folders(request.overrides):
        raise NotHere(f"its setting {folders[0]} names a folder of the bundle's maker")
    if not names_all(request.backbone):
        raise NotHere(f"its backbone, {request.backbone}, has weights of the bundle's maker")
    try:
        check_backbone(request.backbone)
        if weights_digest(request.backbone) != request.weights:
            raise NotHere(f"the weights of {request.backbone} differ here")
    except UsageError as error:
        raise NotHere(f"its backbone is not here: {error}") from None
    try:
        resolved = resolve(
            RunRequest(
                source,
                stream=stream,
                backbone=request.backbone,
                seed=request.seed,
                num_workers=0,
                settings=request.overrides,
                joint=request.joint and not request.control,
                zero_shot=request.zero_shot and not request.control,
                control=request.control,
                as_released=request.as_released,
                runs=folder / "runs",
            )
        )
    except Exception as error:  # settings of a stranger: a number beyond what a library takes, say
        raise _by_code(request, f"run.json, request: {one_line(error)[:300]}") from None
    recipe, usual = plain(resolved.recipe), plain(Recipe())
    if request.code != code_digest():  # what came later was not there, which is its default
        recipe = {name: value for name, value in recipe.items() if name in request.recipe or value != usual[name]}
    said = {"settings": request.settings, "recipe": request.recipe, "protocol": request.protocol}
    found = {"settings": resolved.settings, "recipe": recipe, "protocol": resolved.stream.protocol}
    if changed := changes(said, found):
        raise _by_code(request, f"run.json, request: {'; '.join(changed)[:200]}")
    if reference_of(resolved) != request.reference:
        raise NotHere("the reference set of its method differs here")
    return resolved


def _by_code(request: Request, words: str) -> Wrong | NotHere:
    """What a difference means: with the same code it is the bundle's."""
    same = request.code == code_digest()
    return Wrong(words) if same else NotHere(f"another version of kinoray made it ({words})")


def _method(request: Request, given: Any) -> MethodSource:
    """The method: kinoray's own, or the user's by its digest, which is compared before anything is executed."""
    own = [part.digest for part in request.parts if part.own]
    names = request.method.split(":")
    if not own:
        absent = [name for name in names if name not in method_names()]
        if absent or len(names) > 2:
            raise NotHere(f"this kinoray has no method {absent[0] if absent else request.method}")
        return find_method(request.method)
    if given is None:
        raise NotHere(f"it needs the file of its method, {request.method}: give it with --method")
    source = find_method(given)
    if source.own_digests != own:
        raise NotHere(f"{source.name} differs from the code of the run's {request.method}, and was not executed")
    return source


def _stream(request: Request, given: str | Stream | None) -> Stream:
    """The stream that the user has, with the run's tasks in the order that it learned them. Raises: NotHere."""
    candidates: list[str | Stream] = [] if given is None else [given]
    if request.source:
        safe = PLAIN_NAME.fullmatch(request.source) and family_of(request.source) in stream_families()
        if not safe or is_own_folder(request.source):
            raise NotHere(f"this kinoray has no stream {request.source!r}")
        candidates.append(request.source)
    if not candidates:
        raise NotHere(f"it needs the data of {request.stream}, which are the maker's own: give them with --stream")
    problem = ""
    for candidate in candidates:
        try:
            stream = candidate if isinstance(candidate, Stream) else load_stream(candidate)
        except Exception as error:  # a stranger's name for it
            problem = f"its stream is not here: {one_line(error)[:300]}"
            continue
        here = {task.name: task for task in stream.tasks}
        tasks = tuple(here[name] for name in dict.fromkeys(request.tasks) if name in here)
        other = [task.name for task in tasks if request.data.get(task.name) != read_manifest(task.manifest).digest]
        files = {task.name: read_manifest(task.manifest).files for task in tasks}
        other += [n for n, digest in files.items() if digest and request.files.get(n, digest) != digest]
        if not other and [task.name for task in tasks] == request.tasks:
            return replace(stream, tasks=tasks, protocol=request.protocol)
        problem = f"{stream.name} here is not what the run learned from (tasks {', '.join(other or request.tasks)})"
    raise NotHere("; ".join([problem, *_other_machine(request)]))  # also stored vectors have other last bits there


def _changed_versions(request: Request) -> str:
    return "; ".join(changes(request.versions, versions()))


def _other_machine(request: Request) -> list[str]:
    """In what the machine differs from the one where the run was trained."""
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = [
        ("device", request.device, here.type),
        ("processor", request.processor, processor_of(here)),
        ("threads", request.threads, min(request.threads, usable_cores())),
    ]
    return [f"{name}: {then} -> {now}" for name, then, now in facts if then != now]


def _elsewhere(run: Opened, resolved: Resolved) -> list[str]:
    """What is other here than where the run was trained, so that its last bits may be."""
    request = run.request
    others = _other_machine(request)
    others += [words] if (words := _changed_versions(request)) else []
    others += ["another version of kinoray"] if request.code != code_digest() else []
    rendered = bytes_of(resolved.stream).items() if request.rendered else ()
    others += [f"{name}: other bytes of its videos" for name, now in rendered if request.rendered.get(name) != now]
    methods = [part.digest for part in request.parts] != [part.digest for part in resolved.method.files]
    return [*others, *(["another version of the method"] if methods else [])]


def _repeated(run: Opened, resolved: Resolved, folder: Path) -> str:
    """The task, trained again, ends as the chain says. Raises: Wrong, NotHere."""
    task = run.document.task
    try:
        with closing(stages_again(resolved, run.request.threads, folder / "again", partial(_begin, run))) as stages:
            _, session, _ = next(stages)
            found, wanted = session.links[-1], run.links[task - 1]
    except BadData as error:
        raise NotHere(f"data here cannot be read: {one_line(error)}") from None
    except CheckpointCorrupt as error:
        raise NotHere(f"the backbone's weights differ here: {one_line(error)}") from None
    except Exception as error:  # of a method that meets a state which is none of its own, say
        words = f"task {task} cannot be trained again: {type(error).__name__}: {one_line(error)[:200]}"
    else:
        if found == wanted:
            return f"task {task}, trained again, ends with the chain's digest"
        assert found is not None
        parts = [name for name in Link._fields if getattr(found, name) != getattr(wanted, name)]
        words = f"task {task}, trained again, ends with other digests of its {' and '.join(parts)}"
    elsewhere = _elsewhere(run, resolved)
    raise NotHere(f"{words}, but this is another place: {'; '.join(elsewhere)}") if elsewhere else Wrong(words)


def _begin(run: Opened, folder: Path) -> Checkpoint | None:
    """The commit before the task, in a run's folder."""
    if run.commit is None:
        return None
    home, done = folder / "before", run.commit.stage
    home.mkdir()
    for part in ("method", "optimizer"):
        if part in run.tensors:
            save_file(dict(run.tensors[part]), home / f"{part}.safetensors")
    before = run.stages[done - 1].row
    state = {
        "best_score": -1.0,
        "selections": run.commit.selections,
        "given": run.commit.given,
        "tested": {"features": _put_features(run, folder / "features"), "queries": run.tested.of_row(before)},
        "cost": {},
        "chain": run.links[:done],
    }
    return Checkpoint(home, Position(done), state)
