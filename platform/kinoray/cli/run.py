"""`kinoray run`: train methods through a stream of tasks."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kinoray
from kinoray.cli import completion, printing
from kinoray.cli.options import CopyTo, Debug, DryRun, Json, Log, Quiet, Runs, Settings, Tags
from kinoray.errors import DONE, FAILED, STOPPED, UsageError

if TYPE_CHECKING:
    from kinoray.runs.request import RunRequest
    from kinoray.runs.result import Result


def run_command(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...",
            help="Names, ./my_method.py, RULE:LEARNER, experiment.yaml.",
            autocompletion=completion.methods,
        ),
    ],
    stream: Annotated[
        str | None,
        typer.Option(help="A stream's name or FOLDER[:OPTIONS]. [moving-cvlm]", autocompletion=completion.streams),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="The towers. [the stream's]")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the run. [0]")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="So many seeds from --seed on, side by side where possible.")
    ] = None,
    num_workers: Annotated[int | None, typer.Option(min=0, help="Training processes; 0: in this one.")] = None,
    per_worker: Annotated[
        str | None, typer.Option(metavar="CPU=N,GPU=N", help="What each asks of Ray, started first where it must be.")
    ] = None,
    settings: Settings = None,
    config: Annotated[Path | None, typer.Option(help="File with options and settings (.yaml, .toml).")] = None,
    joint: Annotated[bool | None, typer.Option("--joint", help="All tasks at once: the upper bound.")] = None,
    zero_shot: Annotated[bool | None, typer.Option("--zero-shot", help="No training: the lower bound.")] = None,
    as_released: Annotated[
        bool | None, typer.Option("--as-released", help="Settings of the authors' code, where it differs.")
    ] = None,
    smoke: Annotated[bool | None, typer.Option("--smoke", help="Two steps a task: does it run at all?")] = None,
    watch: Annotated[
        int | None, typer.Option(min=0, help="Every N steps test the earlier tasks, beside the training. [never]")
    ] = None,
    log: Log = None,
    name: Annotated[
        str | None, typer.Option(help="A readable name for lists and tables. [method and settings]")
    ] = None,
    tags: Tags = None,
    copy_to: CopyTo = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Show Ray's dashboard while it lasts, here.")] = False,
    dry_run: DryRun = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")] = False,
    runs: Runs = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train methods through a stream of tasks. The same command resumes, or shows the finished result."""
    from kinoray.runs.experiment_file import merged, parse_grid, parse_settings
    from kinoray.runs.request import RunRequest

    options: dict[str, Any] = {
        "stream": stream,
        "backbone": backbone,
        "seed": seed,
        "seeds": seeds,
        "num_workers": num_workers,
        "per_worker": parse_settings(per_worker.split(","), "--per-worker", "CPU=4,GPU=1") if per_worker else None,
        "joint": joint,
        "zero_shot": zero_shot,
        "as_released": as_released,
        "smoke": smoke,
        "watch": watch,
        "log": log or None,
        "name": name,
        "tags": tags or None,
        "copy_to": copy_to,
        "runs": runs,
    }
    requests = [
        RunRequest(
            method,
            **merged(in_file, options),
            settings=merged(set_in_file) | given,
            fresh=fresh,
            quiet=quiet,
            dashboard=dashboard,
        )
        for method, in_file, set_in_file in _experiments(methods, config)
        for given in parse_grid(settings or [])
    ]
    if dry_run:
        printing.print_plans([kinoray.dry_run(request) for request in requests], as_json)
        return
    results = _carried_out(requests)
    printing.print_results(results, as_json)
    raise typer.Exit(_exit_code(results))


def _carried_out(requests: "Sequence[RunRequest]") -> "list[Result]":
    """The results of all requests. Ray starts while what the runs need is imported."""
    from kinoray.processes.ray_session import start_ray
    from kinoray.runs.result import Result

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
            raise UsageError(f"{name}: it names no method. Add a line `method: bmu_moco`.")
        for method in named if isinstance(named, list) else [named]:
            yield str(method), merged(base_options, options), merged(base_settings, settings)


def _exit_code(results: "Iterable[Result]") -> int:
    states = {result.state for result in results}
    return FAILED if "failed" in states else STOPPED if states - {"finished"} else DONE
