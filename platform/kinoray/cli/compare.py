"""`kinoray compare`, `report` and `export`: the table of several runs, the page of one, its weights."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

import kinoray
from kinoray.cli import printing
from kinoray.cli.options import WHICH_RUNS, Debug, Json, Runs
from kinoray.errors import UsageError
from kinoray.system.text import printable


def compare_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=WHICH_RUNS)],
    metric: Annotated[str | None, typer.Option(help="A score of the runs' protocol, as r5. [its main one]")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the overall metrics: .pdf, .png or .svg.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="All columns, however narrow the terminal.")] = False,
    output: Annotated[str, typer.Option("--format", help="table, markdown or latex.")] = "table",
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """The papers' table of runs. Scores and forgetting per task and overall, means and intervals over seeds."""
    from kinoray.runs.finding import select_runs

    comparison = kinoray.compare(select_runs(runs, root), metric)
    if plot is not None:
        from kinoray.report.pictures import write_figure

        write_figure(comparison.plot(), plot)
        print(printable(f"Written {plot}."), file=sys.stderr)
    if as_json:
        printing.print_warnings(comparison)
        print(json.dumps(comparison.to_json(), indent=1))
    elif output == "table":
        printing.print_comparison(comparison, wide)
    elif output in ("markdown", "latex"):
        printing.print_warnings(comparison)
        print(comparison.markdown() if output == "markdown" else comparison.latex(), end="")
    else:
        raise UsageError(f"There is no format {output!r}. Use table, markdown or latex.")


def report_command(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    root: Runs = None,
    debug: Debug = False,
) -> None:
    """One self-contained HTML page about a run or a sweep. A run's page shows all its seeds."""
    from kinoray.runs.finding import select_run

    print(kinoray.write_report(select_run(run, root)))


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
