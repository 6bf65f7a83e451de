"""Make the notebooks from their scripts: `python notebooks/make.py [--execute] [NAME...]`.

A script's cells begin with `# %%`, or `# %% [markdown]` for text. `--execute` runs each notebook from a fresh kernel in an
empty folder and keeps its outputs, without the names and folders of this machine.
"""

import argparse
import getpass
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

HERE = Path(__file__).resolve().parent
SCRIPTS = sorted((HERE / "src").glob("*.py"))
TIMEOUT_S = 600
"""For one cell."""


def cells_of(script: str) -> list[Any]:
    """The cells of a script, without outputs."""
    cells = []
    for part in re.split(r"^# %%", script, flags=re.M)[1:]:
        kind, _, text = part.partition("\n")
        if kind.strip() == "[markdown]":
            cell = nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", text.strip(), flags=re.M))
        else:
            cell = nbformat.v4.new_code_cell(text.strip())
        cell["id"] = f"cell-{len(cells) + 1}"  # nbformat draws one; the same script gives the same notebook
        cells.append(cell)
    return cells


def notebook_of(script: Path) -> Any:
    """A script as a notebook."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells_of(script.read_text("utf-8")), metadata={"kernelspec": kernel})


def execute(notebook: Any, folder: Path) -> Any:
    """Run a notebook's cells in this Python, in a folder; its outputs without what is this machine's alone.

    Raises: nbclient's CellExecutionError.
    """
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    hidden = {"KINORAY_RUNS", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager = AsyncKernelManager(kernel_name="python3")
    manager._kernel_spec = KernelSpec(argv=command, display_name="Python 3", language="python", env=environment)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, km=manager, timeout=TIMEOUT_S, resources=resources).execute(cleanup_kc=True)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # clocks
        if cell.cell_type == "code":
            told = [output for output in cell.outputs if output.get("name") != "stderr"]  # progress, notes of Ray's
            cell.outputs = [_without_machine(output, folder) for output in told]
    return notebook


def _without_machine(value: Any, folder: Path) -> Any:
    """The same with this machine's folders and names taken out of every text; pictures stay as they are."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name.startswith("image/")}
        return type(value)({name: _without_machine(part, folder) for name, part in value.items()} | kept)
    if isinstance(value, list):
        return [_without_machine(part, folder) for part in value]
    if isinstance(value, str):
        return "".join(part if PICTURE.fullmatch(part) else _shown(part, folder) for part in PICTURE.split(value))
    return value


PICTURE = re.compile("(base64,[A-Za-z0-9+/=]+)")


def _shown(text: str, folder: Path) -> str:
    for found, shown in ((str(folder), "."), (str(Path.home()), "~"), (socket.gethostname(), "host")):
        text = text.replace(found, shown)
    return text


def machine_words() -> list[str]:
    """What an output must not hold: folders and names of the machine that made it."""
    words = [str(Path.home()), str(HERE.parent), sys.prefix, socket.gethostname(), tempfile.gettempdir()]
    return words + [f"/{getpass.getuser()}/"]


def main() -> None:
    """Write the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description="Make the notebooks from notebooks/src.")
    parser.add_argument("names", nargs="*", help="as 1_quick_start; without: all")
    parser.add_argument("--execute", action="store_true", help="also run them and keep the outputs")
    chosen = parser.parse_args()
    for script in [script for script in SCRIPTS if not chosen.names or script.stem in chosen.names]:
        notebook = notebook_of(script)
        if chosen.execute:
            with tempfile.TemporaryDirectory(prefix="kinoray-notebook-") as folder:
                execute(notebook, Path(folder).resolve())
        nbformat.write(notebook, HERE / f"{script.stem}.ipynb")
        print(f"Wrote {script.stem}.ipynb")


if __name__ == "__main__":
    main()
