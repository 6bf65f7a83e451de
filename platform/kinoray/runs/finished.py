"""Finished runs found again at once: which folder a request means, remembered in the user's cache.

Working out a folder's name takes the method's own code, and with it torch (`resolve`). Once that was done, the name is
kept under a digest of what it follows from: the request, the sources of the engine and of all methods, the versions;
data and weights are looked at again. While none of them changes, the same command imports nothing heavy.

Not remembered, and always worked out: methods of the user's own, and those that ask for a reference set.
"""

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.backbones import weight_files, weights_folder
from kinoray.config import digest_of
from kinoray.disk.durable import sha256, write_json
from kinoray.disk.folders import cache_folder, runs_root, seed_label
from kinoray.display.text import printer
from kinoray.runs.method_source import MethodSource, find_method
from kinoray.runs.provenance import changes_since, code_digest, methods_digest, versions
from kinoray.runs.request import RunRequest
from kinoray.runs.result import Result
from kinoray.streams import Stream, load_stream

if TYPE_CHECKING:
    from kinoray.runs.resolve import Resolved


def finished_runs(request: RunRequest) -> list[Result] | None:
    """The results of a request where its folder is remembered and all its runs are finished, by seed; else None.

    None also where they are to be logged, named, tagged or copied: that may not have been done yet.
    Says, as a start would, that they are finished and what has changed since. Raises: UsageError as a start would.
    """
    still_to_do = request.log or request.name or request.tags or request.copy_to
    if request.fresh or still_to_do or not isinstance(request.stream, str):
        return None
    note = _note(request, find_method(request.method))
    if not note.is_file():
        return None
    noted = json.loads(note.read_text(encoding="utf-8"))
    folders = [Path(noted["folder"]) / f"seed-{seed}" for seed in request.all_seeds]
    if not all((folder / "run.json").is_file() for folder in folders):
        return None
    if noted["data"] != _data_of(load_stream(request.stream)) or noted["state"] != _state_of(noted["weights"]):
        return None
    results = [Result(folder) for folder in folders]
    if any(result.state != "finished" for result in results):
        return None
    now = {"digests": {"code": code_digest(), "method": noted["method"]}, "versions": versions()}
    say = printer(request.quiet)
    for result in results:
        label = seed_label(result.folder)
        for line in [*changes_since(result.run, now, label), f"{label} is finished already: {result.folder}"]:
            say(line)
    return results


def remember(request: RunRequest, run: "Resolved") -> None:
    """Keep which folder a request means, for `finished_runs`; `run` is what it was resolved to, with any seed."""
    if run.method.is_own or run.reference is not None or not isinstance(request.stream, str):
        return
    weights = str(weights_folder(run.backbone) or "")
    noted = {
        "folder": str(run.folder.parent),
        "method": run.method.digest,
        "data": _data_of(run.stream),
        "weights": weights,
        "state": _state_of(weights),
    }
    note = _note(request, find_method(request.method))
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, and no run
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, noted)


def _note(request: RunRequest, method: MethodSource) -> Path:
    """The file that says which folder a request means."""
    settings = {name: repr(value) for name, value in request.settings.items()}
    asked = [settings, request.joint, request.zero_shot, request.as_released, request.smoke, request.backbone]
    place = [str(runs_root(request.runs).absolute()), str(Path.cwd()), request.stream, method.name]
    key = digest_of([place, asked, code_digest(), methods_digest(), versions()])
    return cache_folder() / "finished" / f"{key}.json"


def _data_of(stream: Stream) -> list[list[str]]:
    return [[task.name, sha256(task.manifest)] for task in stream.tasks]


def _state_of(weights: str) -> list[list[Any]]:
    """Names, times and sizes of the files of weights; a changed file changes them."""
    files = weight_files(Path(weights) if weights else None)
    return [[str(file), file.stat().st_mtime_ns, file.stat().st_size] for file in files]
