"""`kinoray cluster init`: write out the files that start a cluster."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kinoray.cli.options import Debug, Json
from kinoray.system.text import printable

cluster_app = typer.Typer(help="Files that start a cluster.", no_args_is_help=True)


@cluster_app.command("init")
def init_command(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Without it: what there is.")] = None,
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the files of one kind of cluster, to be changed. Nothing that exists is overwritten."""
    from kinoray.cluster.starting import KINDS, write_cluster_files

    if kind is not None:
        files = [str(file) for file in write_cluster_files(kind, folder)]
        print(json.dumps({"files": files}) if as_json else "\n".join(f"Wrote {printable(file)}" for file in files))
        return
    if as_json:
        print(json.dumps({"kinds": [{"name": known.name, "about": known.about} for known in KINDS.values()]}, indent=1))
        return
    for known in KINDS.values():
        print(f"{known.name:<12}  {known.about}")
