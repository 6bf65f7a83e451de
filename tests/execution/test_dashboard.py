"""`kinoray run --dashboard`: Ray's dashboard beside a run, on loopback, for as long as it lasts."""

import itertools
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kinoray.browse import doctor
from kinoray.errors import UsageError
from kinoray.runs.request import RunRequest
from kinoray.streams import Stream

DRIVER = """
import pickle, sys
from pathlib import Path
import kinoray
kinoray.run("base_moco", **pickle.loads(Path(sys.argv[1]).read_bytes()))
"""


def test_a_run_without_ray_has_no_dashboard_of_its() -> None:
    with pytest.raises(UsageError, match="`dashboard` is Ray's, which num_workers=0 does without"):
        RunRequest("base_moco", dashboard=True, num_workers=0)


@pytest.mark.ray
@pytest.mark.slow
def test_its_address_comes_with_the_first_lines_and_it_answers_while_the_run_is_on(
    micro: Stream, tmp_path: Path
) -> None:
    settings = {"queue_size": 16, "epochs": 200, "max_steps": 0}
    options = {"stream": micro, "runs": tmp_path / "runs", "settings": settings, "dashboard": True}
    (tmp_path / "job").write_bytes(pickle.dumps(options))
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, tmp_path / "job"], stderr=subprocess.PIPE, text=True)
    assert driver.stderr is not None
    try:
        lines = list(itertools.islice(filter(str.strip, driver.stderr), 2))
        found = re.fullmatch(r"Starting Ray \.\.\.\nRay's dashboard: http://127\.0\.0\.1:(\d+)\n", "".join(lines))
        assert found, lines
        assert doctor.is_dashboard(int(found[1]))
    finally:
        driver.terminate()
        driver.communicate(timeout=90)
