"""Search by text and by video: the clip itself comes first, pages are safe, mistakes are one line."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.toys import PerBlock

import kinoray
from kinoray.data.manifest import read_manifest
from kinoray.errors import UsageError
from kinoray.report.search import search
from kinoray.runs.result import Result
from kinoray.runs.run_spec import RunSpec
from kinoray.testing.engine import run_spec, spec_of
from kinoray.testing.small_stream import on_protocol


@pytest.fixture(scope="module")
def finished(micro, tmp_path_factory) -> RunSpec:
    """A run whose store has a block for every task."""
    spec = spec_of("base_moco", on_protocol(micro, "ctvr"), tmp_path_factory.mktemp("runs"))
    assert run_spec(spec)
    return spec


def test_hits_are_clips_of_the_stream_with_their_words(finished) -> None:
    result = kinoray.search(finished.folder, "a red square slides", k=4)
    assert len(result.hits) == 4 and result.query == "a red square slides"
    assert list(result.frame["score"]) == sorted(result.frame["score"], reverse=True)
    for hit in result.hits:
        manifest = read_manifest(finished.tests[finished.names.index(hit.task)])
        row = next(int(r) for r in manifest.clips("test") if manifest.id(int(r)) == hit.id)
        assert hit.captions[0] == manifest.caption(row, 0) and Path(hit.clip.path).is_file()
    again = Result(finished.folder).search("a red square slides", k=4)
    assert again.frame.equals(result.frame)
    assert "a red square slides" in repr(result) and result._repr_html_().count("<img") == 4


def test_a_video_finds_itself(finished) -> None:
    manifest = read_manifest(finished.tests[1])
    row = int(manifest.clips("test")[2])
    result = search(finished.folder, like=manifest.clip(row).path, k=1)
    assert result.hits[0].id == manifest.id(row) and result.hits[0].score == pytest.approx(1.0, abs=1e-4)


def test_a_method_with_a_score_of_its_own_is_asked_block_by_block(micro, tmp_path) -> None:
    spec = spec_of(PerBlock, on_protocol(micro, "ctvr"), tmp_path)
    assert run_spec(spec)
    result = search(spec.folder, "a red square", k=200, method=PerBlock)
    clips = sum(len(read_manifest(path).clips("test")) for path in spec.tests)
    assert len(result.hits) == clips and result.hits[0].score <= 0, "a negative distance"
    assert {hit.task for hit in result.hits} == set(spec.names)


def test_a_hits_words_are_escaped(finished) -> None:
    hostile = "<script>alert(1)</script> {{ 7 * 7 }} \x1b[31m"
    found = search(finished.folder, "a red square", k=1)
    hit = replace(found.hits[0], task=hostile, id=hostile, captions=(hostile,) * 2)
    named = replace(found, hits=(hit,))
    for text, times in ((named.page(), 5), (named._repr_html_(), 3)):
        assert "<script" not in text and "\x1b" not in text
        assert text.count("&lt;script&gt;alert(1)&lt;/script&gt; {{ 7 * 7 }}") == times


def test_the_page(finished, tmp_path) -> None:
    hostile = "<script>alert(1)</script> {{ 7 * 7 }} \x1b[31m"
    result = search(finished.folder, hostile, k=2)
    page = result.write(tmp_path / "new" / "hits.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert page.count("data:image/png;base64,") == 2 and "http" not in page
    for hit in result.hits:
        assert hit.id in page


def test_a_clip_that_has_gone_is_an_empty_frame(finished, tmp_path) -> None:
    from dataclasses import replace

    result = search(finished.folder, "a red square", k=1)
    gone = replace(result.hits[0], clip=replace(result.hits[0].clip, path=str(tmp_path / "gone.mp4"), probe=None))
    assert "data:image/png" in replace(result, hits=(gone,)).page()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "Give either a text or a video"),
        ({"text": "a", "like": "b.mp4"}, "Give either a text or a video"),
        ({"like": "no-such.mp4"}, "no file no-such.mp4"),
        ({"text": "a", "k": 0}, "`k` must be 1 or more"),
        ({"text": "a", "split": "train"}, "no train features"),
    ],
)
def test_mistakes_are_one_line(finished, options, match) -> None:
    with pytest.raises(UsageError, match=match):
        search(finished.folder, **options)
    with pytest.raises(UsageError, match=r"ends in \.html, not hits\.png"):
        search(finished.folder, "a").write("hits.png")


def test_a_file_that_is_no_video_is_named_and_a_missing_one_costs_no_model(finished, tmp_path, monkeypatch) -> None:
    (tmp_path / "corrupt.mp4").write_bytes(b"no video" * 100)
    with pytest.raises(UsageError, match=r"Cannot search with .*corrupt\.mp4: "):
        search(finished.folder, like=tmp_path / "corrupt.mp4")
    monkeypatch.setattr("kinoray.report.search.open_method", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(UsageError, match="There is no file"):
        search(finished.folder, like=tmp_path / "none.mp4")


def test_the_command_prints_hits_and_writes_the_sheet(finished, kino: Callable, tmp_path: Path) -> None:
    code, out, err = kino("search", finished.folder, "a red square", "--k", 2, "--out", tmp_path / "hits.html")
    assert (code, err) == (0, "") and out.count("\n") == 4 and "hits.html" in out
    code, out, _ = kino("search", finished.folder, "a red square", "--k", 2, "--json")
    answer = json.loads(out)
    assert code == 0 and len(answer["hits"]) == 2 and answer["hits"][0]["file"].endswith(".mp4")
    code, _, err = kino("search", finished.folder)
    assert code == 2 and err.startswith("UsageError: Give either a text or a video") and err.count("\n") == 1
