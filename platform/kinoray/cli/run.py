"""`kinoray run`: train methods through a stream of tasks."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kinoray
from kinoray.cli import completion, printing
from kinoray.cli.options import CopyTo, Debug, DryRun, Json, Log, Quiet, Runs, Settings, Tags
from kinoray.display.text import printer
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
    """The results of all requests; what is known to be finished needs neither torch nor Ray."""
    from kinoray.runs.finished import finished_runs
    from kinoray.runs.result import Result

    known = [finished_runs(request) for request in requests]
    results: list[Result] = []
    unfinished = [request for request, finished in zip(requests, known, strict=True) if finished is None]
    _hand_over(unfinished)
    _start_ray(unfinished)
    with _one_ray(unfinished):
        for request, finished in zip(requests, known, strict=True):
            if finished is None:
                made = kinoray.run(request)
                finished = [made] if isinstance(made, Result) else list(made)
            results += finished
    return results


def _hand_over(requests: "Sequence[RunRequest]") -> None:
    """Leave runs to the process that `kinoray up` has ready for them, if any, and end with it. With --debug they stay
    here, and so does what does without Ray, or is no command of its own."""
    program = Path(sys.argv[0])
    is_command = program.name == "kinoray" or program.parts[-2:] == ("kinoray", "__main__.py")
    if requests and is_command and "--debug" not in sys.argv and all(r.num_workers != 0 for r in requests):
        from kinoray.processes.hand_over import hand_over

        if (code := hand_over()) is not None:
            raise typer.Exit(code)


def _start_ray(requests: "Sequence[RunRequest]") -> None:
    """Start Ray while the runs that will want it are prepared, which imports torch; not beside one in this process,
    whose signals it would take."""
    if requests and not requests[0].dashboard and all(request.num_workers != 0 for request in requests):
        from kinoray.processes.ray_session import start_beforehand

        first = requests[0]
        abreast = first.seeds and first.num_workers is None  # in tasks, for the most part
        ranks = 0 if abreast else first.num_workers or 1
        start_beforehand(printer(first.quiet), ranks)


def _one_ray(requests: "Sequence[RunRequest]") -> AbstractContextManager[None]:
    """One start of Ray for all methods, unless at most one of them has anything left to do there."""
    if len(requests) < 2:
        return nullcontext()
    from kinoray.processes.ray_session import ray_session

    on_ray = [r for r in requests if r.num_workers != 0 and (r.fresh or not _is_finished(r))]
    return ray_session(on_ray[0].dashboard, printer(on_ray[0].quiet)) if len(on_ray) > 1 else nullcontext()


def _is_finished(request: "RunRequest") -> bool:
    from kinoray.runs.result import Result

    plan = kinoray.dry_run(request)
    folders = [Path(plan["folder"]) / f"seed-{seed}" for seed in plan["seeds"]]
    return all((folder / "result.json").is_file() and Result(folder).state == "finished" for folder in folders)


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
