"""`kinoray export`: what a run learned, for other tools."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kinoray.cli.options import Debug, Json, Runs
from kinoray.system.text import printable

export_app = typer.Typer(help="Hand runs to other tools.", no_args_is_help=True)


@export_app.command("weights")
def weights_command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A seed's folder, a run of one seed, or its name."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("weights"),
    method: Annotated[str | None, typer.Option(help="The run's method, where it was a file.")] = None,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """A run's encoder as safetensors that load without kinoray."""
    from kinoray.execution.open_method import export_weights
    from kinoray.runs.finding import select_run

    folder = export_weights(select_run(run, root), out, method=method)
    print(json.dumps({"folder": str(folder)}) if as_json else printable(f"Written {folder}."))
