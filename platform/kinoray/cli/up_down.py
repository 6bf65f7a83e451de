"""`kinoray up` and `kinoray down`: a Ray kept warm between runs."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from kinoray.cli.options import Debug, Json


def up_command(
    idle_minutes: Annotated[float, typer.Option(help="Ends by itself when unused for so long.")] = 30.0,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="With Ray's dashboard; sweeps with workers want it.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep a Ray warm: the next runs here start sooner. About 2 GB; on loopback alone."""
    from kinoray.processes.up_down import described, up
    from kinoray.processes.warm_ray import find

    known = find()
    if known is None:
        print("Starting Ray ...", file=sys.stderr)
    warm = up(idle_minutes, dashboard)
    if as_json:
        print(json.dumps(asdict(warm), indent=1))
    elif known is not None:
        print(f"It is up already: {described(warm)}.")
    else:
        print(f"Up: {described(warm)}. Its workers are ready in half a minute.")


def down_command(
    force: Annotated[bool, typer.Option("--force", help="Also where runs are on it.")] = False,
    debug: Debug = False,
) -> None:
    """End the Ray that `kinoray up` started, and no other."""
    from kinoray.processes.up_down import down

    warm = down(force)
    print("There is no Ray of `kinoray up`." if warm is None else f"Down: the Ray at {warm.address} has ended.")
