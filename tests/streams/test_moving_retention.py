"""`moving-retention`: the clips of `moving-cvlm`, three looks told by the names of shapes, two by captions."""

import pytest

from kinoray.backbones import load_backbone
from kinoray.data.manifest import read_manifest
from kinoray.errors import UsageError
from kinoray.streams import Stream, load_stream, moving, moving_retention
from kinoray.streams.prompts import with_protocol


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stream, Stream]:
    cache = tmp_path_factory.mktemp("kept")
    plain = moving.build(cache, clips=(2, 1, 1), progress=False, processes=1)
    return plain, moving_retention.build(cache, clips=(2, 1, 1), progress=False)


def test_clips_are_those_of_the_other_stream_and_classes_have_the_words_of_their_look(
    streams: tuple[Stream, Stream],
) -> None:
    plain, kept = streams
    assert (kept.name, kept.protocol, kept.backbone, kept.recipe) == (
        "moving-retention",
        "retention",
        plain.backbone,
        plain.recipe,
    )
    for then, task in zip(plain.tasks, (*kept.tasks, *kept.held_out), strict=True):
        old, new = (read_manifest(data.manifest) for data in (then, task))
        assert then.name == task.name and old.root == new.root
        assert [old.id(row) for row in range(4)] == [new.id(row) for row in range(4)]
        told = new.table["captions"].to_pylist()
        if task.name in moving_retention.PROMPTS:
            first, second = moving_retention.PROMPTS[task.name]
            words = [text.removeprefix(first.format("")) for text, *_ in told]
            assert told == [[first.format(w)] for w in words[:2]] + [
                [first.format(w), second.format(w)] for w in words[2:]
            ]
            assert new.labels(range(4)) == old.labels(range(4))
        else:
            assert told == old.table["captions"].to_pylist() and new.labels(range(4)) == [None] * 4
    neon = read_manifest(kept.tasks[1].manifest)
    words = {neon.caption(0, 0).removeprefix("look , the ")}
    assert words == {neon.labels([0])[0]}, "neon has its own words for colours and places, not for shapes"


def test_the_backbone_knows_every_word_of_the_prompts(streams: tuple[Stream, Stream]) -> None:
    towers = load_backbone(streams[1].backbone, 32)
    for prompts in moving_retention.PROMPTS.values():
        words = [word for prompt in prompts for word in prompt.replace("{}", "").split()]
        _, mask = towers.tokenize(words, 8)
        assert (mask.sum(axis=1) == 3).all(), "one piece each, between [CLS] and [SEP]"


def test_the_argument_is_a_world_and_whether_tests_tell_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_protocol("3,agnostic") == ("3", "retention-agnostic") and with_protocol("") == ("", "retention")
    asked: list[dict] = []
    monkeypatch.setattr(moving_retention, "build", lambda **options: asked.append(options))
    moving_retention.load("moving-retention", "agnostic,4")
    assert asked == [{"world_seed": 4, "protocol": "retention-agnostic"}]
    with pytest.raises(UsageError, match="moving-retention"):
        load_stream("moving-retention:first")
