"""The notebooks: made from their scripts, free of this machine's names, and running from a fresh kernel."""

import base64
import importlib.util
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import pytest
from PIL import Image
from support.places import REPOSITORY

from kinoray.streams import moving
from kinoray.streams.rendering import nothing_rendered

FOLDER = REPOSITORY / "notebooks"
SCRIPTS = sorted((FOLDER / "src").glob("*.py"))
MAX_BYTES = 200_000


def make() -> Any:
    spec = importlib.util.spec_from_file_location("make_notebooks", FOLDER / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def notebook(script: Path) -> Any:
    return nbformat.read(FOLDER / f"{script.stem}.ipynb", as_version=4)


def test_a_scripts_cells_are_cut_at_their_marks() -> None:
    text, code = make().cells_of("# %% [markdown]\n# # Head\n#\n# Text.\n\n# %%\na = 1\n\n# a comment\nb = 2\n")
    assert (text.cell_type, text.source) == ("markdown", "# Head\n\nText.")
    assert (code.cell_type, code.source) == ("code", "a = 1\n\n# a comment\nb = 2")
    assert [text.id, code.id] == ["cell-1", "cell-2"]


def test_names_of_the_machine_go_from_texts_and_not_from_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = make()
    monkeypatch.setattr(tools.socket, "gethostname", lambda: "vm")
    output = {"text": "on vm in /here", "data": {"image/png": "ABvm", "text/html": "vm <img src=data:;base64,vm+/vm==>"}}
    assert tools._without_machine(output, Path("/here")) == {
        "text": "on host in .",
        "data": {"image/png": "ABvm", "text/html": "host <img src=data:;base64,vm+/vm==>"},
    }


def test_there_is_a_notebook_of_every_script() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {script.stem for script in SCRIPTS}
    assert len(SCRIPTS) == 6


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_says_what_its_script_says(script: Path) -> None:
    wanted = make().cells_of(script.read_text(encoding="utf-8"))
    kept = notebook(script).cells
    assert [(c.cell_type, c.source) for c in kept] == [(c.cell_type, c.source) for c in wanted], (
        "run python notebooks/make.py --execute"
    )
    assert wanted[0].cell_type == "markdown" and wanted[0].source.startswith("# ")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_is_kept_of_its_outputs_is_small_whole_and_of_no_machine(script: Path) -> None:
    file = FOLDER / f"{script.stem}.ipynb"
    assert file.stat().st_size < MAX_BYTES
    text = file.read_text(encoding="utf-8")
    outputs = [output for cell in notebook(script).cells if cell.cell_type == "code" for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    told = "".join(
        part
        for output in outputs
        for kind, part in {**output.get("data", {}), "text": output.get("text", "")}.items()
        if not kind.startswith("image/")
    )
    told = re.sub(r"base64,[A-Za-z0-9+/=]+", "", told)
    leaked = [word for word in make().machine_words() if word in told]
    assert not leaked
    assert not re.search(r"/(home|root|work|Users|tmp|var)/|site-packages", told)
    assert "RAY_AUTH_TOKEN=" not in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_its_pictures_are_whole(script: Path) -> None:
    outputs = [output.get("data", {}) for cell in notebook(script).cells for output in cell.get("outputs", ())]
    pictures = [data["image/png"] for data in outputs if "image/png" in data]
    pictures += re.findall("base64,([A-Za-z0-9+/=]+)", "".join(data.get("text/html", "") for data in outputs))
    for picture in pictures:
        Image.open(BytesIO(base64.b64decode(picture))).load()


@pytest.fixture(scope="module")
def few_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which the embedded streams have a fourteenth of their clips."""
    cache = tmp_path_factory.mktemp("cache")
    for name in moving.NAMES:
        with nothing_rendered():
            whole = moving.build(cache / "kinoray", name=name).tasks[0].manifest.parents[1].name
        few = moving.build(cache / "kinoray", clips=(48, 12, 12), progress=False, name=name).tasks[0].manifest.parents[1]
        (few.parent / whole).symlink_to(few)
    return cache


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_runs_from_a_fresh_kernel(
    script: Path, few_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(few_clips))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    tools = make()
    notebook = tools.notebook_of(script)
    for cell in notebook.cells:
        cell.source = re.sub(r'"(max_steps|epochs)": \d+', r'"\1": 2', cell.source)
    done = tools.execute(notebook, tmp_path)
    results = [cell for cell in done.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in results)
    assert any(output.output_type == "execute_result" for cell in results for output in cell.outputs)
