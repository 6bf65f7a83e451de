"""`kinoray tag` and `kinoray note`: what people say of runs."""

import json
from typing import Annotated

import typer

from kinoray.cli import completion
from kinoray.cli.options import WHICH_RUNS, Debug, Json, Runs
from kinoray.display.text import printable


def tag_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help=WHICH_RUNS, autocompletion=completion.runs)],
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...", help="Words to find the runs by.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take these tags away.")] = False,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Tag runs. Without a tag, show those that they have."""
    from kinoray.runs.about import name_run, read_about, untag_run
    from kinoray.runs.selection import select_runs, whole_runs

    runs = whole_runs(select_runs([run], root))
    for folder in runs if tags else ():
        untag_run(folder, tags or []) if remove else name_run(folder, tags=tags or [])
    told = {str(folder): list(read_about(folder).tags) for folder in runs}
    if as_json:
        print(json.dumps({"tags": told}, indent=1))
        return
    for place, have in told.items():
        print(printable(f"{place}: {', '.join(have) or 'no tags'}"))


def note_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help=WHICH_RUNS, autocompletion=completion.runs)],
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="One line to keep with the run.")] = None,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep a note with a run. Without a text, show its notes."""
    from dataclasses import asdict

    from kinoray.runs.about import note_run, read_about
    from kinoray.runs.selection import select_run, whole_runs

    (folder,) = whole_runs([select_run(run, root)])
    about = note_run(folder, text) if text else read_about(folder)
    if as_json:
        print(json.dumps({"folder": str(folder), "notes": [asdict(note) for note in about.notes]}, indent=1))
        return
    for note in about.notes:
        print(printable(f"{note.at}  {note.text}"))
