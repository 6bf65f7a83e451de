"""`kinoray reproduce`: a figure or table of a paper, measured beside what was published."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinoray.cli.options import Debug, Json, takes_options
from kinoray.errors import DONE, SOME_FAILED, UsageError
from kinoray.sweeps.request import MEASURED, SweepRequest

if TYPE_CHECKING:
    from kinoray.papers.reproduction import Reproduction


@takes_options(SweepRequest, MEASURED)
def reproduce_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Without it, all are listed.")] = None,
    stream: Annotated[
        str | None, typer.Option(help="A stream's name, or FOLDER[:OPTIONS] as ./videos:ctvr. [one of kinoray's]")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs per point or row. [the figure's or table's]")] = None,
    seed: Annotated[int | None, typer.Option(help="First of the seeds. [the figure's or table's]")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Of all its runs.")] = None,
    retry: Annotated[str | None, typer.Option(metavar="failed", help="Run failed points again.")] = None,
    tune: Annotated[bool, typer.Option("--tune", help="Search each row's own best settings first.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Run even if published clips are missing.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Copy the table to benchmarks/results.")] = False,
    clips: Annotated[
        list[Path] | None, typer.Option("--clip", help="A video for attention maps. [clips of the stream]")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Measure a paper's figure or table beside the published one. Run it again to resume.

    Writes CSV, LaTeX, PNG, SVG, JSON and a Markdown page. Exit code 3: runs failed, or a paper's claim does not hold.
    """
    from kinoray.cli import printing
    from kinoray.papers.catalogue import listed, parts_of
    from kinoray.runs.experiment_file import merged, parse_settings

    if name is None:
        printing.print_list("reproductions", listed(), as_json)
        return
    if retry not in (None, "failed"):
        raise UsageError(f"--retry {retry}: only failed points can be tried again. Give --retry failed.")
    from kinoray.cluster.results import print_folders
    from kinoray.papers.reproduce import reproduce

    options = merged(options, {"stream": stream, "seeds": seeds, "seed": seed})
    held = parse_settings(settings or [])
    chosen: dict[str, Any] = {"keep": keep, "tune": tune, "partial": partial, "clips": clips or ()}
    made = [reproduce(part, settings=held, retry=bool(retry), **chosen, **options) for part in parts_of(name)]
    if options.get("dry_run"):
        if "runs" in made[0]:
            printing.print_rows_to_run([row for part in made for row in part["runs"]], as_json)
        else:
            printing.print_plans([made[0]], made[0], as_json)
        return
    if as_json:
        told = [part.to_json() | {"folder": str(part.folder)} for part in made]
        print(json.dumps(told[0] if len(told) == 1 else told, indent=1))
    else:
        print("\n\n".join(map(repr, made)))
    print_folders("table", [part.folder for part in made])
    raise typer.Exit(max(map(exit_code, made)))


def exit_code(made: "Reproduction") -> int:
    """3 where runs failed or are missing, and where a statement of the paper does not hold."""
    return SOME_FAILED if made.failed or made.missing or made.shown is False else DONE
