"""`kinoray sweep`: search a method's settings with Ray Tune and Optuna."""

import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kinoray.cli import completion
from kinoray.cli.options import CopyTo, Debug, DryRun, Json, Log, Quiet, Runs
from kinoray.cli.printing import print_lines, print_outline
from kinoray.display.text import printable
from kinoray.errors import DONE, FAILED, SOME_FAILED, STOPPED, UsageError

if TYPE_CHECKING:
    from kinoray.sweeps.request import SweepRequest
    from kinoray.sweeps.result import SweepResult

FRESH_SEEDS = 3
"""Seeds of the command that a sweep ends with: the fewest that give an interval worth reading."""


def sweep(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="A name, or ./my_method.py.", autocompletion=completion.methods)
    ],
    stream: Annotated[
        str, typer.Option(help="A stream's name or FOLDER[:OPTIONS].", autocompletion=completion.streams)
    ] = "moving-cvlm",
    trials: Annotated[int | None, typer.Option(help="Trials in all. [32; a grid: all its points]")] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LOW:HIGH[:log], NAME=A,B,C; a name in the method's SPACES; a YAML file. [SPACE]"),
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(help="tpe, qmc, random or grid. [tpe; grid where lists alone are typed]")
    ] = None,
    objective: Annotated[
        list[str] | None, typer.Option(help="Metric to aim at; given several times: their Pareto front. [the stream's]")
    ] = None,
    then: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="Run it on each trial's encoder, on the downstream sets; aim at its metric."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per trial, advancing task by task together.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="First of the seeds; also seeds the sampler.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="The towers. [the stream's]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Held for all; A,B,C: tried.")
    ] = None,
    concurrent: Annotated[int | None, typer.Option(help="Trials at a time. [what the cluster holds]")] = None,
    workers_per_trial: Annotated[
        int | None, typer.Option(help="Ray workers of each trial; 0: in its process. [by the size of the towers]")
    ] = None,
    time_budget: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after so long.")] = None,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Give up trials that fall behind.")] = True,
    keep: Annotated[float, typer.Option(help="Share of the trials that pruning keeps after each task.")] = 0.5,
    keep_best: Annotated[int, typer.Option(help="Trials whose checkpoints stay, beside the last; -1: all.")] = 5,
    storage: Annotated[str | None, typer.Option(metavar="URL", help="Data base of the study. [a file]")] = None,
    retry: Annotated[str | None, typer.Option(metavar="failed", help="Run failed trials again.")] = None,
    warm_start: Annotated[str | None, typer.Option(metavar="SWEEP", help="Try its best settings first.")] = None,
    share_prefixes: Annotated[
        bool, typer.Option("--share-prefixes/--no-share-prefixes", help="Train once what trials have in common.")
    ] = True,
    smoke: Annotated[bool, typer.Option("--smoke", help="Two steps a task.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files of the trials.")] = False,
    log: Log = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Show the study in optuna-dashboard, here.")] = False,
    copy_to: CopyTo = None,
    name: Annotated[str | None, typer.Option(help="The sweep's folder. [from a hash of all this]")] = None,
    dry_run: DryRun = False,
    runs: Runs = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search a method's settings. The same command goes on, more --trials extend, a finished sweep is shown."""
    from kinoray.sweeps.request import SweepRequest
    from kinoray.sweeps.sweep import sweep as run_sweep
    from kinoray.sweeps.typed_space import typed_space

    if retry not in (None, "failed"):
        raise UsageError(f"--retry {retry}: only failed trials can be tried again. Give --retry failed.")
    typed = typed_space(space or [], settings or [])
    request = SweepRequest(
        method,
        stream=stream,
        trials=trials,
        space=typed.space,
        sampler=sampler or ("grid" if typed.is_grid else "tpe"),
        objective=_split(objective),
        then=then,
        seeds=seeds,
        seed=seed,
        backbone=backbone,
        settings=typed.settings,
        concurrent=concurrent,
        workers_per_trial=workers_per_trial,
        time_budget_s=time_budget,
        prune=keep if prune else False,
        keep_best=None if keep_best == -1 else keep_best,
        storage=storage,
        runs=runs,
        name=name,
        retry=retry is not None,
        warm_start=warm_start,
        share_prefixes=share_prefixes,
        smoke=smoke,
        tensorboard=tensorboard,
        log=log or (),
        dashboard=dashboard,
        copy_to=copy_to,
        dry_run=dry_run,
        quiet=quiet,
    )
    result = run_sweep(request)
    if dry_run:
        print_outline(result, as_json)
        return
    _print_sweep(result, as_json, winners_command(request, result))
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


def winners_command(request: "SweepRequest", result: "SweepResult") -> str:
    """What to type to run the winner on seeds that chose nothing; "" where no trial is complete."""
    from kinoray.runs.command import run_words

    best = result.best
    if best is None:
        return ""
    settings = result.record["settings"] | best.params
    words = run_words(str(request.method), str(request.stream), request.backbone, settings)
    words += ["--seed", str(max(result.record["seeds"]) + 1), "--seeds", str(FRESH_SEEDS)]
    words += ["--runs", str(request.runs)] if request.runs else []
    return shlex.join([*words, *["--smoke"] * request.smoke])


def _print_sweep(result: "SweepResult", as_json: bool, run_winner: str = "") -> None:
    """The winner, what counts, and the page with everything else."""
    from kinoray.report.page import write_report

    page = str(write_report(result.folder))
    if as_json:
        print(json.dumps(result.to_json() | {"report": page, "run_winner": run_winner}, indent=1))
        return
    print(repr(result))
    if len(result.objectives) > 1:
        print("Pareto front:")
        print_lines(*result.pareto.drop(columns=["state", "error"]).to_string(index=False).splitlines())
    importance = result.importance
    if importance:
        print("Importance: " + ", ".join(f"{printable(k)} {v:.0%}" for k, v in importance.items()))
    if result.saved_s:
        print(f"Pruning saved about {result.saved_s:.0f} s of training.")
    if result.prefix_saved_s:
        print(f"Shared prefixes saved about {result.prefix_saved_s:.0f} s of training.")
    print(f"Report: {page}")
    if run_winner:
        print(printable(f"The winner on fresh seeds: {run_winner}"))
    left = result.states["running"] + result.states["waiting"]
    if left:
        print(f"{left} trials are left; the same command goes on.", file=sys.stderr)
