"""`kinoray reproduce`: a figure or table of a paper, measured beside what was published."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinoray.cli.options import Debug, DryRun, Json, Quiet, Runs
from kinoray.errors import DONE, SOME_FAILED, UsageError

if TYPE_CHECKING:
    from kinoray.papers.reproduction import Reproduction


def reproduce_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Without one: what there is.")] = None,
    stream: Annotated[str | None, typer.Option(help="A stream's name or a folder. [an embedded one]")] = None,
    seeds: Annotated[int, typer.Option(help="Runs per point.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="First of the seeds.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="The towers. [the stream's]")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Held for all.")] = None,
    concurrent: Annotated[int | None, typer.Option(help="Points at a time. [what the cluster holds]")] = None,
    retry: Annotated[str | None, typer.Option(metavar="failed", help="Run failed points again.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Copy the table to benchmarks/results here.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Two steps a task.")] = False,
    dry_run: DryRun = False,
    runs: Runs = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure a paper's figure or table beside what was published; the same command goes on.

    Writes CSV, PNG, SVG, JSON and a Markdown page. Exit code 3: points failed, or the trend is not the published one.
    """
    from kinoray.cli import printing
    from kinoray.cli import sweep as cli_sweep
    from kinoray.papers.entries import listed
    from kinoray.runs.experiment_file import parse_settings

    if name is None:
        printing.print_list("reproductions", listed(), Path(), as_json)
        return
    if retry not in (None, "failed"):
        raise UsageError(f"--retry {retry}: only failed points can be tried again. Give --retry failed.")
    from kinoray.papers.reproduce import reproduce

    made = reproduce(
        name,
        keep=keep,
        stream=stream,
        seeds=seeds,
        seed=seed,
        backbone=backbone,
        settings=parse_settings(settings or []),
        concurrent=concurrent,
        runs=runs,
        retry=retry is not None,
        smoke=smoke,
        dry_run=dry_run,
        quiet=quiet,
    )
    if dry_run:
        cli_sweep.print_outline(made, as_json)
        return
    print(json.dumps(made.to_json() | {"folder": str(made.folder)}, indent=1) if as_json else repr(made))
    raise typer.Exit(exit_code(made))


def exit_code(made: "Reproduction") -> int:
    """As the sweeps behind it; 3 also where the measured curve is complete and does not show the published trend."""
    from kinoray.cli.sweep import exit_code as of_sweep

    worst = max(of_sweep(result) for result in made.sweeps)
    return worst or (SOME_FAILED if made.shown is False else DONE)
