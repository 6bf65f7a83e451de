"""`kinoray cluster`, `submit` and `jobs`: files that start a cluster; a command on it, looked after."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kinoray.cli.options import Debug, Json
from kinoray.cli.printing import print_answer
from kinoray.errors import INTERRUPTED, KinorayError, UsageError
from kinoray.system.text import printable

jobs_app = typer.Typer(help="Jobs on a cluster: list, logs, stop, status.", no_args_is_help=True)

Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The cluster's dashboard. [RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else http://127.0.0.1:8265]"
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="As `kinoray jobs list` shows it.")]
WORDS_AS_THEY_ARE = {"allow_interspersed_args": False}
"""Context settings of `submit`: all that stands behind `run` belongs to `run`."""


class Left(KinorayError):
    """Ctrl-C while a job was followed; the job runs on."""

    exit_code = INTERRUPTED


def submit_command(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND ...", help="run, sweep, extend, reproduce, search or data, with all that follows it."
        ),
    ],
    address: Address = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show the job's progress; end with its exit code.")] = False,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of the job's environment.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run the command again even if it has finished.")] = False,
    without_token: Annotated[
        bool, typer.Option("--without-token", help="Allow a cluster on another machine without a token.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Let pip install libraries that the image lacks; never torch or Ray.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a command on a cluster. Submitted again, it is not run twice: its job is found."""
    from kinoray.cluster.submit import submit

    _check(context, words)
    variables = dict(_variable(pair) for pair in env or [])
    if dry_run:
        _show_plan(words, address, variables, install, as_json)
        return
    job = submit(words, address=address, env=variables, again=again, without_token=without_token, install=install)
    code = _follow(job, as_json) if follow else 0
    if as_json:
        print(json.dumps(job.info(), indent=1))
    elif not follow:
        print(f"Follow it: {_command('logs', job)} --follow")
    raise typer.Exit(code)


def _check(context: typer.Context, words: Sequence[str]) -> None:
    """Read the words as the command itself would, so that a wrong one is known before anything is sent."""
    command: Any = context.find_root().command
    left = list(words)
    while hasattr(command, "commands"):
        name, command, left = command.resolve_command(context.find_root(), left or [""])
    command.make_context(f"kinoray {name}", left)


def _variable(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--env {pair}: it must be NAME=VALUE, for example --env KINORAY_DATA=/data.")
    return name, value


def _show_plan(words: Sequence[str], address: str | None, env: dict[str, str], install: bool, as_json: bool) -> None:
    from kinoray.cluster.client import dashboard
    from kinoray.cluster.submit import prepare

    url = dashboard(address)
    with tempfile.TemporaryDirectory(prefix="kinoray-") as folder:
        shipment = prepare(words, Path(folder), url, env, install)
        size = sum(p.stat().st_size for m in shipment.modules for p in m.rglob("*") if p.is_file())
    plan: dict[str, Any] = {"id": shipment.id, "address": url, "entrypoint": shipment.entrypoint}
    plan |= {"files": list(shipment.files), "package_bytes": size, "env": sorted(env), "runs": shipment.runs}
    plan |= {"libraries": list(shipment.libraries)}
    lines = (f"{name}: {', '.join(value) if isinstance(value, list) else value}" for name, value in plan.items())
    print_answer(plan, lines, as_json)


def _follow(job: Any, as_json: bool = False) -> int:
    """The job's lines on stdout (stderr beside JSON). Raises: Left after Ctrl-C."""
    try:
        return job.follow(lambda line: print(line, file=sys.stderr if as_json else sys.stdout, flush=True))
    except KeyboardInterrupt:
        again, stop = _command("logs", job), _command("stop", job)
        raise Left(f"{job.id} is still running. Follow it: {again} --follow. Stop it: {stop}") from None


def _command(verb: str, job: Any) -> str:
    return f"kinoray jobs {verb} {job.id} --address {job.address}"


@jobs_app.command("list")
def list_command(address: Address = None, as_json: Json = False, debug: Debug = False) -> None:
    """The kinoray jobs that the cluster remembers, oldest first."""
    from kinoray.cluster.submit import list_jobs

    rows = list_jobs(address)
    lines = (f"{row['id']:<40}  {row['state']:<8}  {row['started'] or '-':<20}  {row['command']}" for row in rows)
    print_answer({"jobs": rows}, lines, as_json, "No kinoray jobs on this cluster.")


@jobs_app.command("status")
def status_command(id: Id, address: Address = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show the state of a job."""
    from kinoray.cluster.submit import find_job

    row = find_job(id, address).info()
    print_answer(row, (f"{name}: {value}" for name, value in row.items() if value is not None), as_json)


@jobs_app.command("logs")
def logs_command(
    id: Id,
    address: Address = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow until the job ends; exit with its exit code.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What a job has printed."""
    from kinoray.cluster.submit import find_job

    job = find_job(id, address)
    code = _follow(job, as_json) if follow else 0
    if as_json:
        print_answer({"id": job.id, "log": job.logs().splitlines()}, (), as_json)
    elif not follow:
        print(job.logs(), end="")
    raise typer.Exit(code)


@jobs_app.command("stop")
def stop_command(id: Id, address: Address = None, as_json: Json = False, debug: Debug = False) -> None:
    """Stop a job once its state is saved. Submit the same command again to resume it."""
    from kinoray.cluster.submit import find_job

    job = find_job(id, address)
    job.stop()
    row = job.info()
    state = f"has {row['state']}" if row["state"] in ("finished", "failed") else row["state"]
    goes_on = ". Submit it again to resume from the last saved state." if row["state"] == "stopped" else "."
    print_answer(row, [f"{job.id} {state}{goes_on}"], as_json)


cluster_app = typer.Typer(help="Files that start a cluster.", no_args_is_help=True)


@cluster_app.command("init")
def init_command(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Without it, the kinds are listed.")] = None,
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the files of one kind of cluster, for you to adapt. Nothing that exists is overwritten."""
    from kinoray.cluster.starting import KINDS, write_cluster_files

    if kind is not None:
        files = [str(file) for file in write_cluster_files(kind, folder)]
        print(json.dumps({"files": files}) if as_json else "\n".join(f"Wrote {printable(file)}" for file in files))
        return
    kinds = [{"name": known.name, "about": known.about} for known in KINDS.values()]
    print_answer({"kinds": kinds}, (f"{known.name:<12}  {known.about}" for known in KINDS.values()), as_json)
