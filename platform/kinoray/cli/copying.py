"""`kinoray copy` and `kinoray fetch`: runs to a store elsewhere, and back."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import kinoray
from kinoray.cli.options import Debug, Json, Runs
from kinoray.display.text import printable

Name = Annotated[str, typer.Argument(metavar="RUN", help="RUN, RUN/seed-N or a sweep, as its folder is named.")]


def copy_command(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Runs, seeds, sweeps: folders, or names in the runs folder.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="URI", help="s3://BUCKET/PREFIX or file:///FOLDER.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read back also what was verified before.")] = False,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Copy runs to S3-compatible storage, every file verified. The same command again sends what is missing."""
    from kinoray.runs.finding import run_folder

    copied = kinoray.copy_runs([run_folder(name, root) for name in runs], to, verify=verify)
    if as_json:
        print(json.dumps({"copied": [asdict(done) for done in copied]}, indent=1))
        return
    for done in copied:
        print(printable(done))


def fetch_command(
    run: Name,
    source: Annotated[str, typer.Option("--from", metavar="URI", help="Where `kinoray copy` put it.")],
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Bring a copied run back, every file verified. In the runs folder it goes on, or is read."""
    folders: list[Path] = kinoray.fetch_run(run, source, root)
    if as_json:
        print(json.dumps({"folders": [str(folder) for folder in folders]}, indent=1))
        return
    for folder in folders:
        print(printable(folder))
