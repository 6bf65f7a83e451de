"""`kinoray rm` and `kinoray prune`: give disk space back."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kinoray.cli import completion
from kinoray.cli.options import WHICH_RUNS, Debug, Json, Runs
from kinoray.display.text import printable, size
from kinoray.errors import UsageError

if TYPE_CHECKING:
    from kinoray.runs.removal import Removal

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def rm_command(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help=f"{WHICH_RUNS} Also sweeps.", autocompletion=completion.runs)
    ],
    trials: Annotated[bool, typer.Option("--trials", help="With a sweep also the runs that it made.")] = False,
    yes: Yes = False,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove runs and sweeps for good. One that is running is refused; nothing outside the runs folder is touched."""
    from kinoray.runs.removal import find_removal, trials_of
    from kinoray.runs.selection import select_runs

    removals = (find_removal(str(folder), root) for folder in select_runs(runs, root))
    named = {removal.folder: removal for removal in removals}
    if trials:
        named |= {trial.folder: trial for folder in list(named) for trial in trials_of(folder)}
    inside = {folder for folder in named if any(other in folder.parents for other in named)}
    _remove([removal for folder, removal in named.items() if folder not in inside], yes, as_json)


def prune_command(
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go; remove nothing.")] = False,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove what nothing goes on with. What --fresh set aside, and what ended sweeps left of trials given up."""
    from kinoray.runs.removal import set_aside_in
    from kinoray.sweeps.leftovers import unfinished_trials

    removals = [*set_aside_in(root), *unfinished_trials(root)]
    if dry_run and as_json:
        would = {"would_remove": [str(each.folder) for each in removals], "bytes": sum(each.bytes for each in removals)}
        print(json.dumps(would, indent=1))
    elif dry_run:
        _show(removals)
    else:
        _remove(removals, yes, as_json)


def _remove(removals: "list[Removal]", yes: bool, as_json: bool) -> None:
    from kinoray.runs.removal import remove

    if removals and not yes:
        _show(removals)
        if not sys.stdin.isatty():
            raise UsageError("Nobody is there to be asked. Say --yes to remove this.")
        typer.confirm("Remove this for good?", abort=True, err=True)
    freed = remove(removals)
    if as_json:
        folders = [str(removal.folder) for removal in removals]
        print(json.dumps({"removed": folders, "bytes": freed}, indent=1))
    else:
        print(f"Removed {len(removals)} folders, {size(freed)} freed.")


def _show(removals: "list[Removal]") -> None:
    """A line for each folder, on stderr."""
    for removal in removals:
        why = f"  ({removal.why})" if removal.why else ""
        print(printable(f"{size(removal.bytes):>8}  {removal.folder}{why}"), file=sys.stderr)
    total = sum(removal.bytes for removal in removals)
    print(f"{size(total):>8}  in {len(removals)} folders", file=sys.stderr)
