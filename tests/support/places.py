"""Where the checkout and what lies beside it are."""

import importlib.util
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = REPOSITORY.parent / "shared"
"""Real clips and published annotation files; tests that need them skip, saying so, where they are absent."""


def load_script(path: Path) -> ModuleType:
    """A script that lies outside the package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
