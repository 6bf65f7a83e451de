"""Minutes of rendering are begun only for what can run: a wrong word is refused before."""

from pathlib import Path

import pytest

from kinoray.execution.extend import read_task
from kinoray.streams import rendering
from kinoray.streams.rendering import checked_first, nothing_rendered


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(rendering, "_render", lambda *_: pytest.fail("rendered"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "bmu_moco", "--set", "m_ht=1"], "m_ht"),
        (["run", "bmu_moco", "--set", "m_hat=2"], "m_hat=2"),
        (["sweep", "bmu_moco", "--space", "m_ht=0:1"], "m_ht"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_rendered(words: list[str], message: str, kino, tmp_path) -> None:
    code, out, err = kino(*words, "--runs", tmp_path / "runs")
    assert (code, out, len(err.splitlines())) == (2, "", 1) and message in err


def test_a_wrong_task_is_too() -> None:
    with pytest.raises(Exception, match=r"radr.*radar"):
        read_task("moving-cvlm:3/radr")


def test_what_is_only_described_is_not_rendered(kino) -> None:
    code, out, _ = kino("describe", "moving-cvlm")
    assert code == 0 and "radar" in out


def test_the_outer_check_is_done_once_and_renders_nothing(tmp_path: Path) -> None:
    seen = []

    def check(name: str) -> None:
        seen.append(name)
        rendering.rendered("toy", drawings, ["x"], tmp_path)

    with checked_first(lambda: check("outer")), checked_first(lambda: check("inner")):
        assert rendering.FIRST.get() is not None
        with nothing_rendered():
            rendering.rendered("toy", drawings, ["x"], tmp_path)
        with pytest.raises(pytest.fail.Exception, match="rendered"):
            rendering.rendered("toy", drawings, ["x"], tmp_path)
    assert seen == ["outer"] and rendering.FIRST.get() is None


def drawings(name: str) -> list[rendering.Drawing]:
    """The toy source's clips."""
    return []
