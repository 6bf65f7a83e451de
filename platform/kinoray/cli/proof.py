"""`kinoray bundle` and `kinoray verify`: results as a file that a stranger can check."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kinoray.cli.options import WHICH_RUNS, Debug, Json, Quiet, Runs
from kinoray.system.text import printable

WORDS = {"ok": "ok     ", "unknown": "unknown", "failed": "FAILED "}


def bundle_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=WHICH_RUNS)],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")],
    stream: Annotated[str | None, typer.Option(help="The runs' stream, where they do not tell.")] = None,
    method: Annotated[str | None, typer.Option(help="The runs' method, where it was a class.")] = None,
    root: Runs = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Finished runs as one file that `kinoray verify` checks. May train a part of each again."""
    import kinoray
    from kinoray.runs.finding import select_runs

    path = kinoray.bundle(select_runs(runs, root), out, stream=stream, method=method, quiet=quiet)
    print(json.dumps({"file": str(path)}) if as_json else printable(f"Written {path}."))


def verify_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `kinoray bundle` wrote.")],
    method: Annotated[str | None, typer.Option(metavar="FILE", help="The file of a method of one's own.")] = None,
    stream: Annotated[str | None, typer.Option(metavar="FOLDER", help="Data of one's own.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a bundle's numbers, and train one task of each run again. A line for each check, then the verdict."""
    import kinoray

    def tell(check: Any) -> None:
        if not as_json:
            print(printable(f"{WORDS[check.state]} {check.run}: {check.words}"), flush=True)

    verdict = kinoray.verify(file, method=method, stream=stream, tell=tell)
    if as_json:
        print(json.dumps({"verdict": verdict.words, "checks": [asdict(check) for check in verdict.checks]}, indent=1))
    else:
        print(verdict.words)
    raise typer.Exit(verdict.exit_code)
