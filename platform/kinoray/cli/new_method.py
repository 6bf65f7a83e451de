"""`kinoray new method`: files that run as they are, to be filled in."""

import re
from pathlib import Path

from kinoray.errors import UsageError

TEMPLATES = Path(__file__).parent / "templates"


def write_method(name: str, folder: Path, single: bool) -> list[Path]:
    """Write the method's files below `folder` and return them; nothing that exists is overwritten.

    `single` writes NAME.py alone, for `kinoray run ./NAME.py`; otherwise `folder` is the repository's root.
    Raises: UsageError for a name that is no module name, an existing file, or a folder that is no repository.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"A method's name is lower case letters, digits and underscores, but got {name!r}.")
    if single:
        files = {folder / f"{name}.py": "method"}
    else:
        files = {
            folder / "methods" / f"{name}.py": "method",
            folder / "search_spaces" / f"{name}.py": "search_space",
            folder / "tests" / "methods" / f"test_{name}.py": "test_method",
        }
    for file in files:
        if file.exists():
            raise UsageError(f"{file} exists already; nothing was written. Choose another name or move it away.")
        if not file.parent.is_dir():
            raise UsageError(f"There is no folder {file.parent}. Stand in kinoray's repository, or add --single.")
    for file, template in files.items():
        text = (TEMPLATES / f"{template}.py").read_text(encoding="utf-8")
        text = text.replace("kinoray.cli.templates.method", f"kinoray.methods.{name}").replace("my_method", name)
        file.write_text(text, encoding="utf-8")
    return list(files)
