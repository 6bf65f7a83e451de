"""Options that several commands have, in the same words."""

from pathlib import Path
from typing import Annotated

import typer

WHICH_RUNS = "Runs: folders, names, patterns ('bmu_*'), or method=M stream=S tag=T SETTING=V."
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; everything else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A word to find the run by; repeatable.")]
Runs = Annotated[Path | None, typer.Option("--runs", help="Folder of all runs. [KINORAY_RUNS, else ./runs]")]
CopyTo = Annotated[
    str | None, typer.Option("--copy-to", metavar="URI", help="Copy finished tasks to s3://BUCKET/PREFIX. [nowhere]")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run; start nothing.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting; A,B: a run with each.")
]
Log = Annotated[
    list[str] | None, typer.Option("--log", metavar="NAME", help="tensorboard, wandb or mlflow, live; repeatable.")
]
