"""Errors as a notebook shows them."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

CELL = """import kinoray

def compare(name):
    return kinoray.dry_run(name)

compare("bmu_moca")
"""


def test_a_notebook_shows_three_lines_and_keeps_the_whole_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    shell.run_cell(CELL)
    what, where, whole = capsys.readouterr().out.splitlines()
    assert what.startswith("UsageError: There is no method named 'bmu_moca'. Did you mean 'bmu_moco'")
    assert where == "At line 4: return kinoray.dry_run(name)"
    shell.run_cell(whole.removeprefix("All of it: "))
    assert 'compare("bmu_moca")' in capsys.readouterr().err
