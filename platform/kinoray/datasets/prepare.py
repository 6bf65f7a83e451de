"""`kinoray data prepare`: from a data set's own files to a manifest of the clips that can be read, with what is wrong.

Every file is probed once. Findings are kept as they come, so that a run that was stopped in any way goes on where it
was, and a later one probes only files that are new or changed. The manifest is written last, whole or not at all.
Clips without a file, or with one that cannot be read, are left out of it and listed; short ones stay in.
"""

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinoray.data.manifest import SPLITS, check_row, write_manifest
from kinoray.datasets.probing import Finding, Journal, Part, lasts, looked_at, probe_parts, version_of
from kinoray.datasets.readers import Annotations, describe, read
from kinoray.decoding.video import UnreadableStorage
from kinoray.errors import RunFailed, StorageFull, UsageError
from kinoray.system.durable import write_text
from kinoray.system.folders import prepared_folder
from kinoray.system.locks import hold
from kinoray.system.progress import counting_bar
from kinoray.system.stand_ins import place_here, uri_of
from kinoray.system.text import printable

PROBLEMS = ("missing", "corrupt", "short", "duplicate", "extra")
"""What a list file is written of, where there is any."""
SHORT_SHARE = 0.9
"""A clip is short where its frames cover less of its annotated span."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)

Row = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """What `prepare` did and learned.

    splits: per split the clips `published` (None where not known), `annotated` in the files read, `ready` in the
    manifest, and the captions `captions_published` and `captions`. problems: lines by kind (`PROBLEMS`).
    """

    name: str
    root: str
    """The folder that was read."""
    media_root: str
    """The folder that uris are relative to: the same, unless the reader wrote arrays of its own."""
    layout: str
    manifest: str
    manifest_digest: str
    splits: dict[str, dict[str, int | None]]
    problems: dict[str, list[str]]
    oddities: list[str]
    home_made: list[str]
    """Splits, classes or queries that stand in place of published ones."""
    probed: int
    """Files and spans probed by this run."""
    known: int
    """Those known from earlier runs."""

    def to_json(self) -> dict[str, Any]:
        """Everything, with numbers in place of the lines of problems; those are in the list files beside."""
        folder = Path(self.manifest).parent
        lists = {kind: str(folder / f"{kind}.txt") for kind in PROBLEMS if self.problems[kind]}
        counts = {kind: len(lines) for kind, lines in self.problems.items()}
        return asdict(self) | {"problems": counts, "lists": lists}


def prepare(name: str, root: Path | str, workers: int | None = None, progress: bool = True) -> Report:
    """Read a set's annotations, probe its files, write its manifest and what is wrong with it.

    name: as in `kinoray data list`. root: the folder that holds the set's files, here or in a store (`s3://...`).
    workers: probing tasks at once on Ray (None: one for each CPU); 0: processes of its own. The files lie in
    `prepared_folder(name)`: `manifest.parquet`, `report.json`, and a list for each kind of problem.
    Raises: UsageError for an unknown set, a folder that holds another one or nothing to use, or while another process
    prepares this set; StorageFull; RunFailed where the storage of the data fails. What was probed is kept.
    """
    if workers is not None and workers < 0:
        raise UsageError(f"`workers` must be 0 or more, but got {workers}.")
    describe(name)
    root = place_here(str(root))
    folder = prepared_folder(name)
    busy = f"{name} is being prepared by {{holder}}. Wait for it; what it probes is kept."
    with _one_line_errors(folder), hold(folder, busy):
        for draft in (*folder.glob(".manifest.parquet.*"), *folder.glob("*.draft")):  # of a killed process
            draft.unlink()
        annotations = read(name, root)
        home = str(annotations.root or root)
        problems: dict[str, list[str]] = {kind: [] for kind in PROBLEMS}
        problems["extra"] += map(printable, annotations.extra)
        rows = _with_files(annotations, problems)
        parts = _parts(rows, home)
        journal = Journal(folder)
        _take_over(journal, folder, home, set(parts.values()) - journal.findings.keys())
        todo = [part for part in dict.fromkeys(parts.values()) if part not in journal.findings]
        with counting_bar(f"Probing {name}", len(todo), progress) as advance:
            passing = _probe(todo, home, workers, journal, advance)
        findings = {key: passing.get(part) or journal.findings[part] for key, part in parts.items()}
        rows = _readable(rows, findings, problems)
        problems["duplicate"] += _copies(rows)
        _write_lists(folder, problems)
        if not rows:
            counts = ", ".join(f"{len(problems[kind])} {kind}" for kind in ("missing", "corrupt"))
            raise UsageError(
                f"None of the {len(annotations.rows)} clips of {annotations.data_set.name} can be used: {counts} "
                f"(listed in {folder}). Looked under {uri_of(root)}. Give the folder of the data set's files."
            )
        manifest = write_manifest(rows, folder / "manifest.parquet", Path(home))
        report = Report(
            name=annotations.data_set.name,
            root=uri_of(root),
            media_root=home,
            layout=annotations.layout,
            manifest=str(manifest.path),
            manifest_digest=manifest.digest,
            splits=_splits(annotations, rows),
            problems=problems,
            oddities=annotations.oddities,
            home_made=annotations.home_made,
            probed=len(todo),
            known=len(set(parts.values())) - len(todo),
        )
        write_text(folder / "report.json", json.dumps(report.to_json(), indent=1))
        return report


def _take_over(journal: Journal, folder: Path, root: str, wanted: set[Part]) -> None:
    """Take over what was probed for other sets in the same data folder: splits and variants of a set share files."""
    for other in sorted(path.parent for path in folder.parent.glob("*/report.json") if wanted):
        if other != folder and _root_of(other) == root:
            known = Journal(other).findings
            journal.append({part: known[part] for part in sorted(known.keys() & wanted, key=repr)})
            wanted = wanted - known.keys()


def _root_of(folder: Path) -> str | None:
    """The folder that holds a set's files; None where its report is damaged or being removed."""
    try:
        return json.loads((folder / "report.json").read_text(encoding="utf-8"))["media_root"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _with_files(annotations: Annotations, problems: dict[str, list[str]]) -> list[Row]:
    """Rows that are sound and have a file, each id once."""
    rows, seen = [], set()
    for row in annotations.rows:
        if row["id"] in seen:
            problems["duplicate"].append(f"repeated id: {_id_and_split(row)}")
            continue
        seen.add(row["id"])
        if row.get("uri") is None:
            problems["missing"].append(f"{_id_and_split(row)}{_tab(row.get('video'))}")
            continue
        try:
            check_row(row)
        except UsageError as error:
            problems["corrupt"].append(f"{_id_and_split(row)}\tannotation: {printable(error)}")
            continue
        rows.append(row)
    return rows


def _key(row: Row) -> tuple[str, float | None, float | None]:
    return row["uri"], row.get("start"), row.get("end")


def _parts(rows: Sequence[Row], root: str) -> dict[tuple[str, float | None, float | None], Part]:
    """What there is to probe, with the files' sizes and times now; items of array files need no probe."""
    keys = list(dict.fromkeys(_key(row) for row in rows if row.get("item") is None))
    uris = list(dict.fromkeys(uri for uri, _, _ in keys))
    versions = dict(looked_at(lambda uri: version_of(os.path.join(root, uri)), uris))
    return {key: Part(*key, *versions[key[0]]) for key in keys}


def _probe(
    todo: Sequence[Part], root: str, workers: int | None, journal: Journal, advance: Callable[[int, int], None]
) -> dict[Part, Finding]:
    """Probe what is not known and keep it; returns the findings that another run should not trust."""
    passing: dict[Part, Finding] = {}
    with closing(probe_parts(todo, root, workers)) as lots:
        for pairs in lots:
            journal.append({part: finding for part, finding in pairs if lasts(finding)})
            passing |= {part: finding for part, finding in pairs if not lasts(finding)}
            advance(len(pairs), sum("error" in finding for _, finding in pairs))
    return passing


def _readable(
    rows: Sequence[Row],
    findings: Mapping[tuple[str, float | None, float | None], Finding],
    problems: dict[str, list[str]],
) -> list[Row]:
    """Rows whose clip can be read, with their probed columns."""
    readable = []
    for row in rows:
        finding = findings.get(_key(row), {})
        if "error" in finding:
            problems["corrupt"].append(
                f"{_id_and_split(row)}{_tab(row['uri'])}\t{finding['stage']}: {printable(finding['error'])}"
            )
            continue
        seconds, (_, start, end) = finding.get("duration_s"), _key(row)
        if seconds is not None and end is not None and seconds < SHORT_SHARE * (end - (start or 0.0)):
            problems["short"].append(
                f"{_id_and_split(row)}{_tab(row['uri'])}\t{seconds:.2f} of {end - (start or 0.0):.2f} s"
            )
        readable.append(row | finding)
    return readable


def _copies(rows: Iterable[Row]) -> list[str]:
    """Clips of one content in several splits: what a model is tested on must not be what it was trained on."""
    groups: dict[tuple[str, float | None, float | None], list[Row]] = {}
    for row in rows:
        if row.get("digest"):
            groups.setdefault((row["digest"], row.get("start"), row.get("end")), []).append(row)
    shared = [
        group
        for group in groups.values()
        if len({row["split"] for row in group}) > 1 and len({_origin(row) for row in group}) > 1
    ]
    return [
        "same content: " + " = ".join(f"{_id_and_split(row)}{_tab(row['uri'])}" for row in group) for group in shared
    ]


def _origin(row: Row) -> str:
    """A clip's id; of one that a reader lent to validation (`...@validation`), the id that it has in training."""
    return str(row["id"]).removesuffix("@validation")


def _id_and_split(row: Row) -> str:
    return f"{printable(row['id'])}\t{printable(row.get('split'))}"


def _tab(text: str | None) -> str:
    return f"\t{printable(text)}" if text else ""


def _write_lists(folder: Path, problems: Mapping[str, list[str]]) -> None:
    """A file for each kind of problem that there is; those of before go."""
    for kind, lines in problems.items():
        path = folder / f"{kind}.txt"
        if lines:
            write_text(path, "".join(f"{line}\n" for line in lines))
        else:
            path.unlink(missing_ok=True)


def _splits(annotations: Annotations, rows: Sequence[Row]) -> dict[str, dict[str, int | None]]:
    """Clips and captions of each split: published, in the annotations, in the manifest."""
    published = annotations.data_set
    annotated, ready = (Counter(row["split"] for row in listed) for listed in (annotations.rows, rows))
    captions: Counter[str] = Counter()
    for row in rows:
        captions[row["split"]] += len(row.get("captions") or ())
    return {
        split: {
            "published": published.expected.get(split),
            "annotated": annotated[split],
            "ready": ready[split],
            "captions_published": published.captions.get(split),
            "captions": captions[split],
        }
        for split in SPLITS
        if published.expected.get(split) or annotated[split]
    }


@contextmanager
def _one_line_errors(folder: Path) -> Iterator[None]:
    """Failures of the storage, of the cache's or of the data's, as what to do about them."""
    try:
        yield
    except UnreadableStorage as error:
        raise RunFailed(
            f"{error}. The storage failed; the file may be fine. What was checked is kept: run the same command again "
            "when the storage is back."
        ) from None
    except OSError as error:
        where, why = error.filename or folder, error.strerror or str(error)
        if error.errno in FULL:
            raise StorageFull(
                f"{folder}: {why}: {shutil.disk_usage(folder.parent).free:,} bytes free. What was probed is kept; free "
                "space, or set XDG_CACHE_HOME to another folder, and run the same command again."
            ) from None
        if isinstance(error, PermissionError):
            raise UsageError(
                f"{where}: {why}. Get access to it (or, if it is in the cache, set XDG_CACHE_HOME to another folder), "
                "and run the same command again."
            ) from None
        raise RunFailed(f"{where}: {why}. What was checked is kept; run the same command again.") from None
