"""kinoray in a notebook: cells run in a real kernel, and every result shows itself as HTML."""

import os
import re
import sys
from pathlib import Path

import pytest

CELLS = (
    """
import kinoray
options = dict(stream=STREAM, smoke=True, num_workers=0, settings={"batch_size": 4})
result = kinoray.run("bmu_moco", **options)
result
""",
    "result.plot()",
    "result.matrix",
    "other = kinoray.run('base_moco', **options)\nkinoray.compare([other, result])",
    "kinoray.run('bmu_moco', seeds=2, **options)",
    "try:\n    kinoray.run('bmu_mocco')\nexcept ValueError as error:\n    print(error)",
)


@pytest.fixture
def own_stream(tmp_path: Path) -> Path:
    """A folder of two tasks with twelve small videos each."""
    import numpy as np
    from support.clips import write_clip

    folder = tmp_path / "mine"
    rng = np.random.default_rng(0)
    lines = ["video,caption,task"]
    for number in range(24):
        write_clip(folder / f"{number}.mp4", rng.integers(0, 255, (4, 32, 32, 3), np.uint8))
        lines.append(f"{number}.mp4,clip number {number},{'ab'[number % 2]}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
def test_results_show_themselves_in_a_notebook(
    own_stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    monkeypatch.setenv("KINORAY_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    manager = AsyncKernelManager(kernel_name="python3")
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="python3", language="python", env=dict(os.environ))
    sources = [CELLS[0].replace("STREAM", repr(str(own_stream))), *CELLS[1:]]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in sources])
    NotebookClient(notebook, km=manager, timeout=300).execute()

    shown, plot, matrix, comparison, seeds, mistake = [_data(cell) for cell in notebook.cells]
    assert "<table" in shown["text/html"] and re.search(
        r">bmu_moco [^<]*</b> on mine, seed 0: finished", shown["text/html"]
    )
    assert "hsl(" in shown["text/html"], "the matrix is a heat map"
    assert "R@1" in shown["text/plain"] and len(shown["text/plain"].splitlines()) <= 5
    assert "image/png" in plot
    assert "<table" in matrix["text/html"]
    assert "base_moco" in comparison["text/html"] and "Overall" in comparison["text/html"]
    assert seeds["text/html"].count("finished") == 2
    assert "Did you mean 'bmu_moco'" in mistake["text"]


def _data(cell) -> dict[str, str]:
    """What a cell showed: its value by type, and what it printed as `text`."""
    shown: dict[str, str] = {}
    for output in cell.outputs:
        shown |= output.get("data", {}) if output["output_type"] == "execute_result" else {}
        if output["output_type"] == "stream" and output["name"] == "stdout":
            shown["text"] = shown.get("text", "") + output["text"]
    return shown
