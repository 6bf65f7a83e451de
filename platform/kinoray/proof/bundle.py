"""`kinoray bundle`: finished runs as one file that a stranger can check.

Of each run: what was asked, the chain, where every test query stood, and the state before one task, which the verifier
trains again. No source, no pictures, no captions. A finished run has not kept that state: it is trained again up to the
task, and every stage on the way is compared with the chain.
"""

import json
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from kinoray.backbones import names_all, public_name, weights_digest
from kinoray.config import digest_of, plain
from kinoray.data.manifest import read_manifest
from kinoray.decoding.probe import file_digest
from kinoray.errors import ConfigMismatch, KinorayError, UsageError
from kinoray.evaluation.feature_files import read_features
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.run_rank import compute_repeatably, settings_kept
from kinoray.proof.archive import RANKS, read_ranks, write_bundle, write_ranks
from kinoray.proof.cells import cells_of
from kinoray.proof.documents import chosen_task, seal_of
from kinoray.runs.finding import load_all
from kinoray.runs.record import changes, code_digest, describe, replaced_files
from kinoray.runs.reopen import label_of, recorded_request
from kinoray.runs.resolve import Resolved, own_parts, resolve
from kinoray.runs.result import Result
from kinoray.runs.run_spec import alone, describe_ranks
from kinoray.streams import Stream
from kinoray.streams.own_folder import is_own_folder
from kinoray.streams.rendering import rendered_from
from kinoray.system.folders import expanded
from kinoray.system.text import PLAIN_NAME, printer
from kinoray.training.chain import Link, chain_of
from kinoray.training.checkpoint import Checkpoint, Position, verified
from kinoray.training.loop import RunState, train_stream


def bundle(
    runs: str | Path | Result | Sequence[str | Path | Result],
    out: str | Path,
    *,
    stream: str | Stream | None = None,
    method: Any = None,
    quiet: bool = False,
) -> Path:
    """Write finished runs into one file that `kinoray.verify` checks.

    Args:
        runs: Seed folders, run folders with all their seeds, or results.
        out: The file; it must not exist.
        stream: Needed only where a run's folder does not hold it, as of `extend`.
        method: Needed only where a run's folder does not hold it, as of `extend`.
        quiet: Whether no progress is shown.

    Returns:
        The file.

    Raises:
        UsageError: A run is not finished, its code or data changed, it has no chain, or it does not end the same when
            it is trained again.
    """
    path, say = expanded(out), printer(quiet)
    if path.exists():
        raise UsageError(f"{path} exists already; nothing was written. Choose another name or move it away.")
    if not path.parent.is_dir():
        raise UsageError(f"There is no folder {path.parent}. Make it, or give another file.")
    given = [runs] if isinstance(runs, str | Path | Result) else runs
    results = [found for run in given for found in ([run] if isinstance(run, Result) else load_all(run))]
    if not results:
        raise UsageError("There is nothing to bundle: name at least one run.")
    checked = [_checked(result, stream, method) for result in results]  # all, before the first is trained again
    files: dict[str, bytes] = {}
    sections: dict[str, list[str]] = {}
    for number, (result, run) in enumerate(zip(results, checked, strict=True)):
        files |= {f"runs/{number}/{name}": data for name, data in _files_of(result, run, say).items()}
        sections.setdefault(result.stream, []).append(str(number))
    write_bundle(path, f"kinoray {version('kinoray')}", sections, files)
    return path


def _checked(result: Result, stream: str | Stream | None, method: Any) -> Resolved:
    """The run, resolved anew. Raises: UsageError where it cannot be bundled."""
    label, outcome = label_of(result), result.outcome
    if outcome["state"] != "finished":
        raise UsageError(f"{label} is {outcome['state']}, not finished; finish it with the command that started it.")
    chain = outcome.get("chain", [])
    if not chain or None in chain:
        raise UsageError(
            f"{label} has no chain of digests: an older kinoray started it. Run it again with --fresh to bundle it."
        )
    if result.run.get("held_out"):
        raise UsageError(f"{label} was tested on held-out sets, which a bundle cannot hold. Bundle a run without them.")
    if result.equal_flops:
        raise UsageError(
            f"{label} has its steps from equal_flops={result.equal_flops}, which a bundle cannot hold. Bundle runs "
            "with the recipe's steps."
        )
    if result.run["num_workers"] > 1:
        raise UsageError(
            f"{label} was trained by {result.run['num_workers']} workers, and one process cannot repeat their sums bit "
            "for bit. Run it with --num-workers 1 or 0 and another --runs folder."
        )
    if result.run["digests"]["code"] != code_digest():
        raise UsageError(f"{label}: kinoray's code changed since it was run. Run it again with --fresh to bundle it.")
    run = resolve(recorded_request(result, stream=stream, method=method))
    if own := own_parts(run):
        raise UsageError(f"{label_of(result)}: its {' and '.join(own)} is code of your own, which no bundle holds yet.")
    now = describe(run, result.run["threads"], result.run["num_workers"])
    if result.run["digests"]["method"] != now["digests"]["method"]:
        raise UsageError(
            f"{label}: the method's code changed since it was run. Run it again with --fresh to bundle it."
        )
    kinds = ("method", "recipe")
    if changed := changes({k: result.config[k] for k in kinds}, {k: now["config"][k] for k in kinds}):
        raise ConfigMismatch(
            f"{label} would have other settings today: {'; '.join(changed)}. Run it again with --fresh, then bundle it."
        )
    if replaced := replaced_files(result.run, now):
        raise ConfigMismatch(
            f"Files of {replaced} were replaced since {label} learned from them. Put them back, or run it again."
        )
    return run


def _files_of(result: Result, run: Resolved, say: Callable[[str], None]) -> dict[str, bytes]:
    """A run's files of the bundle."""
    label, outcome = label_of(result), result.outcome
    frame = result.ranks
    ranks = write_ranks({name: frame[name].tolist() for name in RANKS})
    where = f"{result.folder / 'ranks.parquet'}"
    tested = cells_of(read_ranks(ranks, where), len(result.tasks), where)
    links = [Link(*pair) for pair in zip(outcome["states"], tested.links(run.stages), strict=True)]
    if chain_of(links) != outcome["chain"]:
        raise UsageError(f"{label}: ranks.parquet or result.json is not as the run wrote it. Put it back.")
    request = request_of(result, run)
    seal = seal_of(request, outcome["chain"], [link.ranks for link in links])
    task = chosen_task(seal, len(links))
    numbers = {name: outcome[name] for name in ("metrics", "matrix", "queries")}
    document = {"request": request, "chain": outcome["chain"], "states": outcome["states"], **numbers}
    document |= {"seal": seal, "task": task}
    files = {"run.json": _json(document), "ranks.parquet": ranks}
    if task == 1:
        return files
    say(f"{label}: tasks 1 to {task - 1} are trained again, to get the state before task {task} of {len(links)}.")
    with tempfile.TemporaryDirectory(prefix="kinoray-bundle-") as folder:
        return files | _state_before(task, result, run, links, Path(folder))


def _state_before(task: int, result: Result, run: Resolved, links: list[Link], folder: Path) -> dict[str, bytes]:
    """The files of the state before a task; the stages before it are trained again."""
    for done, session, state in stages_again(run, result.run["threads"], folder):
        if session.links[-1] != links[done - 1]:
            raise UsageError(
                f"{label_of(result)}: task {done}, trained again (on {session.processor}), gives other weights than "
                f"the run has (on {result.outcome['processor']}). Bundle it where it was trained."
            )
        if done < task - 1:
            continue
        commit = verified(session.folder / "checkpoints" / Position(done).name)
        features = {name: (fact, read_features(session.tester.store, fact)) for name, fact in session.lasting().items()}
        document = {
            "stage": done,
            "leaves": session.leaves,
            "selections": state.selections,
            "given": commit.state["given"],
            "features": {
                name: {"after_task": fact["after_task"], "sha256": fact["sha256"], "ids": block.ids.to_pylist()}
                for name, (fact, block) in features.items()
            },
        }
        tensors: dict[str, dict[str, Tensor]] = {name: commit.tensors(name) for name in ("method", "optimizer")}
        tensors["features"] = {name: block.features.clone() for name, (_, block) in features.items()}
        packed = {f"{name}.safetensors": save(values) for name, values in tensors.items() if values}
        return {"commit.json": _json(document)} | packed
    raise KinorayError(f"{label_of(result)} has no task {task}.")


def stages_again(
    run: Resolved,
    threads: int,
    folder: Path,
    start: Callable[[Path], Checkpoint | None] = lambda folder: None,
) -> Generator[tuple[int, RankSession, RunState], None, None]:
    """Train the stages of a run again, in this process; yields after each, committed, how many are done.

    threads: of the run's first start. folder: where all is written. start: the commit to go on from, made in the run's
    folder there.
    """
    run = replace(run, folder=folder / run.folder.parent.name / run.folder.name)
    run.folder.mkdir(parents=True)
    spec = describe_ranks(run, threads, 0, torch.cuda.is_available())
    with settings_kept():
        compute_repeatably(spec, alone(spec))
        session = RankSession(spec, alone(spec), RunMonitor(spec.folder), None)
        commit = start(run.folder)
        state = session.restore(commit) if commit is not None else RunState()
        for done in train_stream(session.method, spec.stages, session.recipe, session, state):
            yield done, session, state


def request_of(result: Result, run: Resolved) -> dict[str, Any]:
    """What a run was asked to do, without places on this machine."""
    record = result.run
    source = run.stream.source
    is_named = bool(source) and not is_own_folder(source) and PLAIN_NAME.fullmatch(source) is not None
    is_published = names_all(run.backbone)
    sources = record["method_source"].get("parts", [record["method_source"]])
    own = sorted({"class" if s["kind"] == "class" else "file" for s in sources if s["kind"] != "kinoray"})
    needs = [*([] if is_named and not own_folders(run.settings) else ["data"]), *(f"method {kind}" for kind in own)]
    return {
        "method": run.method.name,
        "parts": [{"name": p.name, "digest": p.digest, "own": p.is_own} for p in run.method.files],
        "stream": run.stream.name,
        "source": source if is_named else "",
        "protocol": run.stream.protocol,
        "tasks": result.tasks,
        "backbone": public_name(run.backbone),
        "weights": weights_digest(run.backbone),
        **{name: getattr(run, name) for name in ("seed", "joint", "zero_shot", "as_released")},
        "control": run.control.name,
        "overrides": run.overrides,
        "settings": run.settings,
        "recipe": plain(run.recipe),
        "data": record["digests"]["data"],
        "files": record["digests"].get("files", {}),
        "rendered": bytes_of(run.stream) if rendered_from(run.stream) else {},
        "reference": reference_of(run),
        "code": record["digests"]["code"],
        "versions": record["versions"],
        **{name: record[name] for name in ("threads", "device", "precision")},
        "processor": result.outcome["processor"],
        "needs": needs if is_published else [*needs, "weights"],
    }


def bytes_of(stream: Stream) -> dict[str, str]:
    """A digest of the bytes of each task's files."""
    digests = {}
    for task in stream.tasks:
        manifest = read_manifest(task.manifest)
        paths = dict.fromkeys(manifest.clip(row).path for row in range(manifest.table.num_rows))
        digests[task.name] = digest_of(list(map(file_digest, paths)))
    return digests


def reference_of(run: Resolved) -> list[str]:
    """Digests of the reference set that a run's method asks for."""
    return [read_manifest(task.manifest).digest for task in run.reference.tasks] if run.reference else []


def own_folders(settings: Mapping[str, Any]) -> list[str]:
    """Settings of a method that name a folder, as that of a reference set may."""
    return [name for name, value in settings.items() if isinstance(value, str) and value and is_own_folder(value)]


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
