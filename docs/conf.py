"""The site: `make docs` builds docs/_build/html, warnings are errors."""

import re
import tomllib
from pathlib import Path
from typing import Any

project = "kinoray"
author = "the kinoray developers"
PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
version = release = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nb_execution_mode = "off"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"kinoray {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False

default_role = "code"
maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"exclude-members": "__new__"}
python_display_short_literal_types = True
# What `kinoray` gives by name is documented there; its members' own modules say the same names again.
suppress_warnings = ["ref.python", "myst.header"]


LABEL = re.compile(r"^(Shapes?|Ranges?|Gradient|Raises|Returns|Yields|Source|Differs):\s*")


def as_restructured_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: what is indented behind an empty line is an equation or an example, and a literal
    block; `Shapes:` and its like begin a paragraph; what else is indented goes on with the line before."""
    told: list[str] = []
    in_block = in_list = False
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("    ") and not before.strip():
            told += [] if in_block else ["::", ""]
            in_block = True
        elif line.strip() and not line.startswith("    "):
            told += [""] if in_block or LABEL.match(line) else []
            in_block = False
        in_list = bool(line.strip()) and not in_block and (in_list or line.startswith("- "))
        prose = _escaped(LABEL.sub(r"**\1:** ", line.strip()), bool(LABEL.match(line)))
        told.append(line if in_block else f"  {prose}" if in_list and not line.startswith("- ") else prose)
    lines[:] = told


def _escaped(line: str, is_labelled: bool) -> str:
    """A line of prose, in which only `code` and its label are marked."""
    label, rest = line.split(":** ", 1) if is_labelled else ("", line)
    parts = re.split(r"(`[^`]*`)", rest)
    told = [part if part.startswith("`") else re.sub(r"[*|]|(?<=\w)_(?=\W|$)", r"\\\g<0>", part) for part in parts]
    return (f"{label}:** " if is_labelled else "") + "".join(told)


def with_notebooks_as_pages(app: Any, name: str, source: list[str]) -> None:
    """Links to notebooks lead to their pages, which are made of `docs/examples`, a link to the notebooks.

    By name: Sphinx follows the link where it is given a path, and knows no page there.
    """
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./notebooks/(\w+)\.ipynb\)", r"{doc}`\1 <examples/\2>`", source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", with_notebooks_as_pages)
    app.connect("autodoc-process-docstring", as_restructured_text)
