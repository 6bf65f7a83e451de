"""`kinoray run` and `extend`: train methods through a stream of tasks, and through further ones."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kinoray
from kinoray.cli import printing
from kinoray.cli.options import Debug, DryRun, Json, Log, Quiet, methods_like, takes_options
from kinoray.errors import DONE, FAILED, STOPPED, UsageError
from kinoray.runs.request import RunRequest
from kinoray.system.text import printer

if TYPE_CHECKING:
    from kinoray.runs.result import Result


@takes_options(RunRequest)
def run_command(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...",
            help="Names, ./my_method.py, RULE:LEARNER (a rule around a method), experiment.yaml.",
            autocompletion=methods_like,
        ),
    ],
    config: Annotated[Path | None, typer.Option(help="File with options and settings (.yaml, .toml).")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Train methods through a stream of tasks. The same command resumes, or shows the finished result."""
    from kinoray.runs.experiment_file import merged, parse_grid, parse_settings

    settings, per_worker = options.pop("settings"), options.pop("per_worker")
    if per_worker:
        options["per_worker"] = parse_settings(per_worker.split(","), "--per-worker", "CPU=4,GPU=1")
    requests = [
        RunRequest(method, **merged(in_file, options), settings=merged(set_in_file) | given)
        for method, in_file, set_in_file in _experiments(methods, config)
        for given in parse_grid(settings or [])
    ]
    if dry_run:
        plans = [kinoray.dry_run(request) for request in requests]
        printing.print_plans(plans, {"plans": plans}, as_json)
        return
    results = _carried_out(requests)
    printing.print_results(results, as_json)
    raise typer.Exit(_exit_code(results))


def _carried_out(requests: Sequence[RunRequest]) -> "list[Result]":
    """The results of all requests. Ray starts while what the runs need is imported."""
    printer(requests[0].quiet or not sys.stderr.isatty())("Loading PyTorch, the methods and the stream ...")
    from kinoray.runs.result import Result
    from kinoray.system.ray_session import start_ray

    if any(request.num_workers != 0 for request in requests):
        start_ray(requests[0].dashboard)
    results: list[Result] = []
    for request in requests:
        made = kinoray.run(request)
        results += [made] if isinstance(made, Result) else list(made)
    return results


def _experiments(methods: Sequence[str], config: Path | None) -> Iterable[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(method, options, settings) of everything named: methods, and experiment files that name methods."""
    from kinoray.runs.experiment_file import EXPERIMENT_SUFFIXES, merged, read_experiment

    base_options, base_settings = read_experiment(config) if config else ({}, {})
    base_options.pop("method", None)  # the command line names the method
    for name in methods:
        if Path(name).suffix not in EXPERIMENT_SUFFIXES:
            yield name, base_options, base_settings
            continue
        options, settings = read_experiment(name)
        named = options.pop("method", None)
        if not named:
            raise UsageError(f"{name} names no method. Add a line `method: bmu_moco`.")
        for method in named if isinstance(named, list) else [named]:
            yield str(method), merged(base_options, options), merged(base_settings, settings)


def _exit_code(results: "Iterable[Result]") -> int:
    states = {result.state for result in results}
    return FAILED if "failed" in states else STOPPED if states - {"finished"} else DONE


def extend_command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run or seed folder, or a name in the runs folder."),
    ],
    task: Annotated[str, typer.Option(metavar="FILE", help="A task file (.yaml), or STREAM/TASK.")],
    stream: Annotated[str | None, typer.Option(help="The run's stream, if kinoray cannot find it.")] = None,
    method: Annotated[str | None, typer.Option(help="The run's method, if the run does not hold its source.")] = None,
    num_workers: Annotated[int | None, typer.Option(min=0, help="Training processes. [as before]")] = None,
    root: Annotated[Path | None, typer.Option("--runs", help="Folder of all runs. [the run's own]")] = None,
    log: Log = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Let a finished run learn one more task. Nothing earlier is trained again.

    The task file has a line `task: moving-cvlm:3/radar`, or `folder: ./videos` (with captions.csv), and optionally
    `name:`.
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
