"""`kinoray compare`, `report`, `search`, `export`, `bundle` and `verify`: what is made of runs that are there."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import kinoray
from kinoray.cli import printing
from kinoray.cli.options import WHICH_RUNS, Debug, Json, Quiet, Runs
from kinoray.errors import UsageError
from kinoray.system.text import printable


def compare_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=WHICH_RUNS)],
    metric: Annotated[
        str | None, typer.Option(help="A score of the runs' protocol, such as r5. [its main one]")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the overall metrics: .pdf, .png or .svg.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="All columns, however narrow the terminal.")] = False,
    output: Annotated[str, typer.Option("--format", help="table, markdown or latex.")] = "table",
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare runs in a table like those of the papers. Scores and forgetting per task and overall, means and intervals
    over seeds."""
    from kinoray.runs.finding import select_runs

    comparison = kinoray.compare(select_runs(runs, root), metric)
    if plot is not None:
        from kinoray.report.pictures import write_figure

        write_figure(comparison.plot(), plot)
        print(printable(f"Wrote {plot}."), file=sys.stderr)
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
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, seed or sweep: its folder or its name.")],
    root: Runs = None,
    debug: Debug = False,
) -> None:
    """One self-contained HTML page about a run or a sweep. A run's page shows all its seeds."""
    from kinoray.runs.finding import select_run

    print(kinoray.write_report(select_run(run, root)))


def search_command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A seed's folder, a run of one seed, or its name."),
    ],
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to search for.")] = None,
    like: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A video or picture to search with, instead of TEXT.")
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="How many clips.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="A contact sheet of the hits.")] = None,
    split: Annotated[
        str, typer.Option(help="Features to search: test, or another split that the method stored.")
    ] = "test",
    method: Annotated[str | None, typer.Option(help="The run's method, if the run does not hold its source.")] = None,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find a run's clips that are nearest to a text or a video. Only the query is embedded."""
    from kinoray.report.search import search
    from kinoray.runs.finding import select_run

    result = search(select_run(run, root), text, like=like, k=k, split=split, method=method)
    written = result.write(out) if out is not None else None
    hits = result.frame.astype(object).to_dict("records")
    facts = {"run": result.run, "query": result.query, "hits": hits, "out": written and str(written)}
    lines = [*repr(result).split("\n"), *([f"Wrote {written}."] if written else [])]
    printing.print_answer(facts, lines, as_json)


export_app = typer.Typer(help="Hand runs to other tools.", no_args_is_help=True)


@export_app.command("weights")
def weights_command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A seed's folder, a run of one seed, or its name."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new folder.")] = Path("weights"),
    to: Annotated[str, typer.Option(help="The form: safetensors, hf (for transformers) or open_clip.")] = "safetensors",
    method: Annotated[str | None, typer.Option(help="The run's method, if the run does not hold its source.")] = None,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a run's encoder with a model card. Loads without kinoray: with safetensors, transformers or open_clip."""
    from kinoray.runs.finding import select_run

    folder = kinoray.export_weights(select_run(run, root), out, to=to, method=method)
    print(json.dumps({"folder": str(folder)}) if as_json else printable(f"Wrote {folder}."))


CHECKED = {"ok": "ok     ", "unknown": "unknown", "failed": "FAILED "}


def bundle_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=WHICH_RUNS)],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")],
    stream: Annotated[str | None, typer.Option(help="The runs' stream, if they do not record it.")] = None,
    method: Annotated[str | None, typer.Option(help="The runs' method, where it was a class of a program.")] = None,
    root: Runs = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Pack finished runs into one file for `kinoray verify`. May train a part of each again."""
    from kinoray.runs.finding import select_runs

    path = kinoray.bundle(select_runs(runs, root), out, stream=stream, method=method, quiet=quiet)
    print(json.dumps({"file": str(path)}) if as_json else printable(f"Wrote {path}."))


def verify_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `kinoray bundle` wrote.")],
    method: Annotated[
        str | None, typer.Option(metavar="FILE", help="The runs' method, if it is not kinoray's own.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The runs' data, if no stream of kinoray has them.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a bundle's numbers, and train one task of each run again. Prints a line per check, then the verdict."""

    def tell(check: Any) -> None:
        if not as_json:
            print(printable(f"{CHECKED[check.state]} {check.run}: {check.words}"), flush=True)

    verdict = kinoray.verify(file, method=method, stream=stream, tell=tell)
    facts = {"verdict": verdict.words, "checks": [asdict(check) for check in verdict.checks]}
    printing.print_answer(facts, [verdict.words], as_json)
    raise typer.Exit(verdict.exit_code)
