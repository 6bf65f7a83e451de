"""What there is: methods by their file names, streams and backbones. Imports no method and no torch."""

import ast
import re
from pathlib import Path
from typing import Any

from kinoray import backbones, streams
from kinoray.families import family_file
from kinoray.runs.method_source import method_names, methods_folder
from kinoray.runs.result import Result


def list_methods() -> list[dict[str, str]]:
    """Name, kind and first docstring line of every installed method, found by file name."""
    files = {name: methods_folder() / f"{name}.py" for name in method_names()}
    return [{"name": name, "kind": kind_of(file), "about": first_sentence(file)} for name, file in files.items()]


def list_streams() -> list[dict[str, str]]:
    """The streams by name, and how to name a folder."""
    named = [
        {"name": name, "about": first_sentence(family_file(streams.__path__, family)).partition(": ")[2]}
        for name, family in streams.stream_families().items()
    ]
    own = {"name": "FOLDER", "about": "a folder of your own: videos and captions.csv, .jsonl or .parquet"}
    return [*named, own]


def list_backbones() -> list[dict[str, str]]:
    """The backbones by name, and the forms that a name takes."""
    return [{"name": form, "about": about} for form, about in backbones.list_backbones().items()]


def run_line(result: Result) -> dict[str, Any]:
    """One run in one line; `cost_s` is its wall time, None before its first result."""
    outcome = result.outcome  # read once: a list has a thousand of them
    return {
        "name": result.label,
        "stream": result.stream,
        "backbone": result.run["backbone"],
        "seed": result.seed,
        "state": outcome["state"],
        "metrics": outcome.get("metrics", {}),
        "brief": result.protocol.brief,
        "cost_s": outcome.get("cost", {}).get("wall_s"),
        "error": outcome.get("error"),
        "folder": str(result.folder),
    }


def first_sentence(file: Path) -> str:
    """First sentence of a Python file's docstring, read without running the file."""
    return re.split(r"(?<=\.) (?=[A-Z])", first_paragraph(file.read_text(encoding="utf-8")))[0]


def first_paragraph(text: str) -> str:
    """The first paragraph of a Python file's docstring, in one line."""
    return " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())


def kind_of(file: Path) -> str:
    """What a method's file holds: a "rule" that wraps a learner, a "whole" method, or a "learner"; read without running
    the file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    method = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Method"), None)
    if method is None:
        return "learner"
    if any(ast.unparse(base).rpartition(".")[2] == "Rule" for base in method.bases):
        return "rule"
    stated = {ast.unparse(node) for node in method.body if isinstance(node, ast.Assign | ast.AnnAssign)}
    return "whole" if any(line.startswith("whole") and line.endswith("= True") for line in stated) else "learner"
