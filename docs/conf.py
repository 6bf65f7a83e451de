"""The site: `make docs` builds docs/_build/html, warnings are errors."""

import re
import tomllib
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon import Config, GoogleDocstring

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
autodoc_docstring_signature = False
autodoc_default_options = {"exclude-members": "__new__"}
python_display_short_literal_types = True
# What `kinoray` gives by name is documented there; its members' own modules say the same names again.
suppress_warnings = ["ref.python", "myst.header"]


SECTIONS = Config(napoleon_custom_sections=[("Gradient", "returns_style"), ("Source", "returns_style")])
PROSE = re.compile(r"(`[^`]*`)|[*|]|(?<=\w)_(?=\W|$)")
"""Code, or what reStructuredText would take for a mark."""


def as_restructured_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text in the Google form: outside its sections what is indented behind an empty line is an
    equation or an example, a literal block; and nothing but `code` is marked."""
    told: list[str] = []
    in_block = in_section = False
    for before, line in zip(["", *lines], lines, strict=False):
        if line.strip() and not line.startswith(" "):
            in_block, in_section = False, re.fullmatch(r"[A-Z]\w+:", line) is not None
        elif line.startswith("    ") and not before.strip() and not in_block and not in_section:
            told += ["::", ""]
            in_block = True
        told.append(line if in_block else PROSE.sub(lambda found: found[1] or rf"\{found[0]}", line))
    # Not as an extension, which takes an attribute's words before a colon for a type.
    lines[:] = GoogleDocstring(told, SECTIONS).lines()


def with_notebooks_as_pages(app: Any, name: str, source: list[str]) -> None:
    """Links to notebooks lead to their pages, which are made of `docs/examples`, a link to the notebooks.

    By name: Sphinx follows the link where it is given a path, and knows no page there.
    """
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./notebooks/(\w+)\.ipynb\)", r"{doc}`\1 <examples/\2>`", source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", with_notebooks_as_pages)
    app.connect("autodoc-process-docstring", as_restructured_text)
