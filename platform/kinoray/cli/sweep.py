"""`kinoray sweep`: search a method's settings with Ray Tune and Optuna."""

import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinoray.cli.options import Debug, Json, methods_like, takes_options
from kinoray.cli.printing import print_lines, print_plans
from kinoray.errors import DONE, FAILED, SOME_FAILED, STOPPED, UsageError
from kinoray.sweeps.request import KEEP_BEST, PRUNE_KEEPS, SweepRequest
from kinoray.system.text import printable

if TYPE_CHECKING:
    from kinoray.sweeps.result import SweepResult

FRESH_SEEDS = 3
"""Seeds of the command that a sweep ends with: the fewest that give an interval worth reading."""


@takes_options(SweepRequest)
def sweep(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="A name, or ./my_method.py.", autocompletion=methods_like)
    ],
    space: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LOW:HIGH[:log] or NAME=A,B,C; a YAML file; a space of `kinoray describe`. [its own]"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting for all trials; NAME=A,B,C tries each value."),
    ] = None,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Give up trials that fall behind.")] = True,
    keep: Annotated[
        float, typer.Option(help="Share of trials that pruning keeps, from half of the tasks on.")
    ] = PRUNE_KEEPS,
    keep_best: Annotated[
        int, typer.Option(help="How many best trials keep their checkpoints, besides the newest; -1: all.")
    ] = KEEP_BEST,
    retry: Annotated[str | None, typer.Option(metavar="failed", help="Run failed trials again.")] = None,
    as_json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Search a method's settings. Run it again to resume; more --trials extend it; a finished sweep is only shown."""
    from kinoray.cluster.results import print_folders
    from kinoray.runs.experiment_file import merged
    from kinoray.sweeps.space import typed_space
    from kinoray.sweeps.sweep import sweep as run_sweep

    if retry not in (None, "failed"):
        raise UsageError(f"--retry {retry}: only failed trials can be tried again. Give --retry failed.")
    typed = typed_space(space or [], settings or [])
    options["objective"] = _split(options["objective"])
    options["sampler"] = options["sampler"] or ("grid" if typed.is_grid else None)
    request = SweepRequest(
        method,
        **merged(options),
        space=typed.space,
        settings=typed.settings,
        prune=keep if prune else False,
        keep_best=None if keep_best == -1 else keep_best,
        retry=retry is not None,
    )
    result = run_sweep(request)
    if request.dry_run:
        print_plans([result], result, as_json)
        return
    _print_sweep(result, as_json, winners_command(request, result))
    print_folders("sweep", [result.folder])
    raise typer.Exit(exit_code(result))


def _split(objective: list[str] | None) -> list[str] | None:
    """`--objective HM,FR` and `--objective HM --objective FR` say the same."""
    return [name for given in objective for name in given.split(",")] if objective else None


def exit_code(result: "SweepResult") -> int:
    """0 done; 3 with failed trials, 1 when all failed; 75 when some are left for the next time."""
    states = result.states
    if states["running"] + states["waiting"]:
        return STOPPED
    if states["fail"]:
        return SOME_FAILED if states["complete"] + states["pruned"] else FAILED
    return DONE


def winners_command(request: SweepRequest, result: "SweepResult") -> str:
    """What to type to run the winner on seeds that chose nothing; "" where no trial is complete."""
    from kinoray.runs.result import run_words

    best = result.best
    if best is None:
        return ""
    settings = result.record["settings"] | best.params
    words = run_words(str(request.method), str(request.stream), str(request.backbone or ""), settings)
    words += ["--seed", str(max(result.record["seeds"]) + 1), "--seeds", str(FRESH_SEEDS)]
    orders = result.record.get("orders", 1)
    words += ["--orders", str(orders)] if orders > 1 else []
    words += ["--runs", str(request.runs)] if request.runs else []
    return shlex.join([*words, *["--smoke"] * request.smoke])


def _print_sweep(result: "SweepResult", as_json: bool, run_winner: str = "") -> None:
    """The winner, what counts, and the page with everything else."""
    from kinoray.report.page import write_report

    page = str(write_report(result.folder))
    if as_json:
        print(json.dumps(result.to_json() | {"report": page, "run_winner": run_winner}, indent=1))
        return
    print_lines(*result.lines, str(result.folder))
    if len(result.objectives) > 1:
        print("Pareto front:")
        print_lines(*result.pareto.drop(columns=["state", "error"]).to_string(index=False).splitlines())
    importance = result.importance
    if importance:
        print(
            f"Importance of the settings in {len(result.complete)} trials: "
            + ", ".join(f"{printable(k)} {v:.0%}" for k, v in importance.items())
        )
    if result.saved_s:
        print(f"Pruning saved about {result.saved_s:.0f} s of training.")
    print(f"Report: {page}")
    if run_winner:
        print(printable(f"To run the winner on fresh seeds: {run_winner}"))
    left = result.states["running"] + result.states["waiting"]
    if left:
        print(f"{left} trials are left; run the same command again to resume.", file=sys.stderr)
