"""Every message and every help line, for somebody to read: `python tests/soak/messages.py [--help-only]`.

A message is the text of a raised error, or what a function of `SAYING` is given; what is filled in stands in braces.
Whether a sentence must be read twice only a reader can tell.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from kinoray.cli.main import app

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("platform", "methods", "cluster")
SAYING = {"print", "say", "tell", "note", "warn", "info", "show", "unknown"}


def texts(node: ast.AST) -> Iterator[str]:
    """The texts in an expression, whole f-strings as one."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
    elif isinstance(node, ast.Constant):
        yield from [node.value] if isinstance(node.value, str) else []
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def messages(file: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each message of a file; single words are none."""
    raised = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise):
            raised.add(node.exc)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if node in raised or name in SAYING:
                given = [text for argument in node.args for text in texts(argument) if " " in text.strip()]
                yield from ((node.lineno, text.replace("\n", "\\n")) for text in given)


def helps(command: Any, words: str) -> Iterator[str]:
    """The help of a command and of all below it."""
    yield f"$ {words} --help\n{command.get_help(typer.Context(command, info_name=words))}\n"
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{words} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--help-only", action="store_true")
    if not parser.parse_args().help_only:
        for folder in FOLDERS:
            for file in sorted((REPOSITORY / folder).rglob("*.py")):
                for line, text in messages(file):
                    print(f"{file.relative_to(REPOSITORY)}:{line}: {text}")
    print("\n".join(helps(typer.main.get_command(app), "kinoray")))


if __name__ == "__main__":
    main()
