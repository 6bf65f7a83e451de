"""Options that several commands have, in the same words."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; everything else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Runs = Annotated[Path | None, typer.Option("--runs", help="Folder of all runs. [KINORAY_RUNS, else ./runs]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run; start nothing.")]
