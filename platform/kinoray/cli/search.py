"""`kinoray search`: text to video over a run's feature store."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kinoray.cli.options import Debug, Json, Runs
from kinoray.system.text import printable


def search_command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A seed's folder, a run of one seed, or its name."),
    ],
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to search for.")] = None,
    like: Annotated[Path | None, typer.Option(metavar="FILE", help="A video or picture to search by instead.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="How many clips.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="A contact sheet of the hits.")] = None,
    split: Annotated[str, typer.Option(help="Whose features: test, or what the method had stored.")] = "test",
    method: Annotated[str | None, typer.Option(help="The run's method, where it was a file.")] = None,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find a run's clips that are nearest to a text or a video. Nothing is embedded but the query."""
    from kinoray.report.search import search
    from kinoray.runs.finding import select_run

    result = search(select_run(run, root), text, like=like, k=k, split=split, method=method)
    written = result.write(out) if out is not None else None
    if as_json:
        hits = result.frame.astype(object).to_dict("records")
        shown = {"run": result.run, "query": result.query, "hits": hits, "out": written and str(written)}
        print(json.dumps(shown, indent=1))
        return
    print(repr(result))
    if written is not None:
        print(printable(f"Written {written}."))
