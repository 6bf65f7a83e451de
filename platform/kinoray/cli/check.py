"""`kinoray check` and `kinoray new`: does a method do what every method must, and files to begin one with."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kinoray.cli.options import Debug, Json
from kinoray.errors import UsageError
from kinoray.system.text import printable


def check_command(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="A name, ./my_method.py, RULE:LEARNER, or a file with a backbone, protocol or stream.",
        ),
    ],
    device: Annotated[str, typer.Option(help="Train the method on cpu or cuda.")] = "cpu",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Test a method, or your own backbone, protocol or stream. Tries in about a minute all that kinoray asks of it, and
    names each failure with file and line."""
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


new_app = typer.Typer(help="Templates: method, rule, backbone, protocol or stream.", no_args_is_help=True)
TEMPLATES = Path(__file__).parent / "templates"


def write_method(name: str, folder: Path, single: bool, kind: str = "method") -> list[Path]:
    """Write the files of a method, or of another `kind`, below `folder`; nothing that exists is overwritten.

    `single` writes NAME.py alone, for `kinoray run ./NAME.py`; otherwise `folder` is the repository's root.
    Returns: the files.
    Raises: UsageError for a name that is no module name, an existing file, or a folder that is no repository.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"A {kind}'s name is lower case letters, digits and underscores, but got {name!r}.")
    if single:
        files = {folder / f"{name}.py": kind}
    else:
        files = {
            folder / "methods" / f"{name}.py": kind,
            folder / "search_spaces" / f"{name}.py": f"{kind}_space",
            folder / "tests" / "methods" / f"test_{name}.py": f"test_{kind}",
        }
    for file in files:
        if file.exists():
            raise UsageError(f"{file} exists already; nothing was written. Choose another name or move it away.")
        if not file.parent.is_dir():
            raise UsageError(f"There is no folder {file.parent}. Run this in kinoray's repository, or add --single.")
    for file, template in files.items():
        text = (TEMPLATES / f"{template}.py").read_text(encoding="utf-8")
        text = text.replace(f"kinoray.cli.templates.{kind}", f"kinoray.methods.{name}")
        text = text.replace("my_method", name).replace(f"my_{kind}", name)
        file.write_text(text, encoding="utf-8")
    return list(files)


@new_app.command("method")
def method_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Like my_method: lower case, digits, underscores.")],
    single: Annotated[bool, typer.Option("--single", help="One file for `kinoray run ./NAME.py`.")] = False,
) -> None:
    """Write a working method as a template to fill in. Method, search space and test; with --single one file."""
    for file in write_method(name, Path(), single):
        print(f"Wrote {file}")


@new_app.command("rule")
def rule_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Like my_rule: lower case, digits, underscores.")],
    single: Annotated[bool, typer.Option("--single", help="One file for `kinoray run ./NAME.py:LEARNER`.")] = False,
) -> None:
    """Write a working rule as a template to fill in. A rule wraps any learner (a method) and changes its training."""
    for file in write_method(name, Path(), single, kind="rule"):
        print(f"Wrote {file}")


def _new_part(kind: str, what: str, option: str) -> None:
    """A command that writes one file of a kind."""

    def command(name: Annotated[str, typer.Argument(metavar="NAME", help=f"Like my_{kind}.")]) -> None:
        for file in write_method(name, Path(), True, kind):
            print(f"Wrote {file}")

    text = f"Write a working {kind} as a template to fill in. {what} Its file is for `{option}`."
    new_app.command(kind, help=text)(command)


_new_part("backbone", "It turns clips and captions into vectors.", "--backbone ./NAME.py")
_new_part("protocol", "It says how a stream is tested.", "--stream FOLDER:./NAME.py")
_new_part("stream", "It says which tasks there are.", "--stream ./NAME.py")
