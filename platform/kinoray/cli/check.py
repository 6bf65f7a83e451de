"""`kinoray check`: does a method do what every method must?"""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from kinoray.cli.options import Debug, Json
from kinoray.system.text import printable


def check_command(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A name, ./my_method.py, or RULE:LEARNER.")],
    device: Annotated[str, typer.Option(help="cpu or cuda: where it is to learn.")] = "cpu",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Try a method against every promise, in about a minute. Names what breaks which, with file and line."""
    import kinoray

    outcomes = []
    for outcome in kinoray.check(method, device):
        outcomes.append(outcome)
        if not as_json:
            broken = f"  {outcome.what}{f' ({outcome.place})' if outcome.place else ''}"
            print(
                f"ok      {outcome.words}" if outcome.kept else printable(f"FAILED  {outcome.words}{broken}"),
                flush=True,
            )
    if as_json:
        print(json.dumps({"method": method, "promises": [asdict(outcome) for outcome in outcomes]}, indent=1))
    raise typer.Exit(int(not all(outcome.kept for outcome in outcomes)))
