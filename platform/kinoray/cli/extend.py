"""`kinoray extend`: a finished run learns one more task."""

from pathlib import Path
from typing import Annotated

import typer

from kinoray.cli.options import Debug, Json, Log, Quiet


def extend_command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run or seed folder, or a name in the runs folder."),
    ],
    task: Annotated[str, typer.Option(metavar="FILE", help="A task file (.yaml), or STREAM/TASK.")],
    stream: Annotated[str | None, typer.Option(help="The run's stream, where it was a folder.")] = None,
    method: Annotated[str | None, typer.Option(help="The run's method, where it was a file.")] = None,
    num_workers: Annotated[int | None, typer.Option(min=0, help="Training processes. [as before]")] = None,
    root: Annotated[Path | None, typer.Option("--runs", help="Folder of all runs. [the run's own]")] = None,
    log: Log = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Let a finished run learn one more task. Nothing earlier is trained again.

    The task file has a line `task: moving-cvlm:3/radar`, or `folder: ./videos` (with captions.csv), and maybe `name:`.
    """
    from kinoray.cli import printing
    from kinoray.execution.extend import extend
    from kinoray.runs.finding import select_run
    from kinoray.runs.result import Results

    done = extend(
        select_run(run, root),
        task,
        stream=stream,
        method=method,
        num_workers=num_workers,
        runs=root,
        quiet=quiet,
        log=log or (),
    )
    printing.print_results(done if isinstance(done, Results) else Results([done]), as_json)
