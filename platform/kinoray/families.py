"""Things found by name: one file per family in a folder, which states the names that it serves.

A new name is a new file. What a file states is read from its text, so that listing imports nothing.
"""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any


def stated(folders: Iterable[str], constant: str) -> dict[str, Any]:
    """File name without its ending -> the literal that the file assigns to `constant`; in the order of the names.

    folders: a package's `__path__`. Files that do not state the constant are left out. The literals are
    shared between calls: not to be changed.
    """
    stated_by_file = {
        path.stem: _literal(path, path.stat().st_mtime_ns, constant)
        for path in sorted(path for folder in folders for path in Path(folder).glob("*.py"))
    }
    return {stem: literal for stem, literal in stated_by_file.items() if literal is not None}


@cache
def _literal(path: Path, changed_ns: int, constant: str) -> Any | None:
    """What the file assigns to the constant, parsed once for each change of the file; None where it does not."""
    text = path.read_text(encoding="utf-8")
    if f"\n{constant}" not in text:  # parsing is slow, and most files state nothing
        return None
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign):
            continue
        if [target.id for target in node.targets if isinstance(target, ast.Name)] == [constant]:
            return ast.literal_eval(node.value)
    return None


def families(folders: Iterable[str]) -> dict[str, str]:
    """Name -> the family file that lists it in `NAMES`, without its ending."""
    return {name: family for family, names in stated(folders, "NAMES").items() for name in names}


def family_file(folders: Iterable[str], family: str) -> Path:
    """The file of a family that one of the folders holds."""
    return next(path for folder in folders if (path := Path(folder) / f"{family}.py").is_file())
