"""What travels to a cluster: the installed package as one folder, the user's own files, and the words of the command.

Nothing here knows Ray. Folders go, never a wheel: Ray installs a wheel with its dependencies, which hides the torch of
the cluster's image. Data, weights and results do not travel; their paths are those of the cluster.
"""

import importlib.util
import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from kinoray.cluster import words as meanings
from kinoray.cluster.install import requirements
from kinoray.cluster.verbs import VERBS, Word, named, parsed
from kinoray.cluster.words import SHIPPED, Upload, absolute
from kinoray.config import digest_of
from kinoray.disk.durable import sha256
from kinoray.errors import UsageError

VERSION = version("kinoray")
PACKAGES = ("kinoray", "kinoray.methods", "kinoray.search_spaces", "kinoray.cluster")
SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*")


@dataclass(frozen=True)
class Shipment:
    """A command made ready for a cluster, in a folder of its own."""

    words: tuple[str, ...]
    """The command with the paths it has on the cluster."""
    modules: tuple[Path, ...]
    """Folders that go on the path: `kinoray/`, and the metadata that tells its version."""
    work: Path
    """Folder in which the job starts; the user's files are in `files/`."""
    files: tuple[str, ...]
    """The user's files, relative to `files/`."""
    notes: tuple[str, ...]
    """What is not sent though the command names it, a line each."""
    runs: str
    """Where the cluster keeps the results; "" where the command leaves none."""
    id: str
    """Name of the job, from the hash of all that is run."""
    environment: Mapping[str, str]
    """Variables of the job."""
    libraries: tuple[str, ...] = ()
    """What pip is asked for on the cluster."""
    unpacks: str = ""
    """Folder beside the runs that shipped folders are put into; "" where there are none."""

    @property
    def entrypoint(self) -> str:
        """One shell command in which every word is quoted; `-P`: a method file named random.py hides nothing."""
        python = ["python", "-P", "-m"]
        unpacking = f"{shlex.join([*python, 'kinoray.cluster.unpack', 'kept', self.unpacks])} && " * bool(self.unpacks)
        return f"{unpacking}cd files && exec {shlex.join([*python, 'kinoray', *self.words])}"


def stage(
    typed: Sequence[str], folder: Path, environment: Mapping[str, str], runs: str | None, install: bool = False
) -> Shipment:
    """Copy into `folder` what the command needs and rewrite its paths.

    typed: the command after `kinoray`. environment: variables of the job, part of its identity. runs: results' folder
    where the command names none; None if it must. install: also the libraries. Paths are read from the current folder.
    Raises: UsageError for a verb that is not submitted, a file that is not here, a path that means nothing there.
    """
    name = named(typed)
    verb = VERBS[name]
    parts = list(parsed(name, typed[len(name.split()) :]))
    root = results_folder(parts, runs) if verb.in_runs else ""
    work = folder / "work"
    upload = Upload(work / "files", work / "kept", root)
    upload.files.mkdir(parents=True)
    final = [*name.split(), *(["--runs", root] if root else [])]
    final += [f"{part.prefix}{part.meaning(part.value, upload)}" for part in parts if part.option != "--runs"]
    libraries = tuple(requirements()) if install else ()
    (upload.files / "job.json").write_text(json.dumps({"words": final, "kinoray": VERSION}, indent=1))
    modules = stage_package(folder)
    identity = digest_of(
        {
            "words": final,
            "files": {short: sha256(upload.files / short) for short in upload.shipped},
            "package": {str(p.relative_to(folder)): sha256(p) for m in modules for p in m.rglob("*") if p.is_file()},
            "environment": dict(environment),
            "libraries": libraries,
        }
    )
    first = next((part.value for part in parts if not part.option), "")
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(first).stem)[:40].strip("-")
    return Shipment(
        words=tuple(final),
        modules=modules,
        work=work,
        files=tuple(upload.shipped),
        notes=tuple(upload.notes),
        runs=root if verb.result else "",
        id="-".join(part for part in (*name.split(), stem, identity[:10]) if part),
        environment=dict(environment),
        libraries=libraries,
        unpacks=f"{root}/{SHIPPED}" if upload.kept.is_dir() else "",
    )


def results_folder(parts: Sequence[Word], otherwise: str | None) -> str:
    """Where the cluster keeps the results: the folder of --runs, else of an experiment file, else of a run that is
    given by its path, else `otherwise`. Raises: UsageError where there is none of them."""
    places = [part.value for part in parts if part.option == "--runs"][-1:]
    for part in parts:
        if part.meaning in (meanings.experiment, meanings.method_or_experiment):
            places += meanings.runs_in(part.value)
        elif part.meaning is meanings.run and not part.option:
            places += meanings.runs_around(part.value)
    places += [otherwise] if otherwise else []
    if not places:
        raise UsageError("Where does the cluster keep the results? Add --runs with a folder that all its nodes see.")
    return absolute(places[0])


def stage_package(folder: Path) -> tuple[Path, Path]:
    """The installed package as one folder `kinoray/`, and beside it what `importlib.metadata` reads its version from.

    An editable install has its four folders in four places; a wheel has them in one. Both give the same tree.
    """
    target = folder / "kinoray"
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        place = target.joinpath(*package.split(".")[1:])
        for source in spec.submodule_search_locations:
            # Times are not copied: Ray packs into a zip, which has no files from before 1980.
            shutil.copytree(source, place, ignore=SKIPPED, copy_function=shutil.copyfile, dirs_exist_ok=True)
    metadata = folder / f"kinoray-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kinoray\nVersion: {VERSION}\n")
    return target, metadata
