"""The embedded CTVR stream: categories told apart by the order of frames alone, tasks of one or two of them."""

import av
import numpy as np
import pytest

from kinoray.data.manifest import read_manifest
from kinoray.errors import UsageError
from kinoray.streams import events, load_stream, moving_ctvr, stills, world

SMALL = (2, 1, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def build(folder, num_tasks: int, num_events: int = 1):
    return moving_ctvr.build("small", num_tasks, num_events, clips=SMALL, cache=folder, progress=False, processes=1)


def table_of(task):
    return read_manifest(task.manifest).table.to_pylist()


def pixels(scene: events.EventScene, seed: int = 0, frames: int = 9) -> np.ndarray:
    return events.draw(scene, frames, world.generator(seed)).astype(np.int64)


def test_streams_of_ten_and_twenty_tasks_share_their_videos(folder):
    ten, twenty = build(folder, 10), build(folder, 20)
    assert (ten.protocol, ten.backbone, len(ten.tasks), len(twenty.tasks)) == ("ctvr-twins", "tiny-clip", 10, 20)
    assert twenty.protocol == "ctvr", "twins are in two tasks there"
    assert len(list(folder.iterdir())) == 1
    for number, task in enumerate(ten.tasks):
        both = [table_of(twenty.tasks[2 * number + side]) for side in (0, 1)]
        assert table_of(task) == both[0] + both[1]
        manifest = read_manifest(task.manifest)
        assert {row["label"] for row in table_of(task)} == set(events.EVENTS[2 * number : 2 * number + 2])
        assert [len(manifest.clips(split)) for split in ("train", "validation", "test")] == [4, 2, 2]
        for row in table_of(task):
            assert len(row["captions"]) == (3 if row["split"] == "train" else 1)
            with av.open(str(manifest.root / row["uri"])) as container:
                assert sum(1 for _ in container.decode(video=0)) == 4


def test_a_longer_video_has_three_events_and_says_so(folder):
    stream = build(folder, 20, num_events=3)
    row = table_of(stream.tasks[0])[0]
    assert row["captions"][0].count(" , then it ") == 2
    with av.open(str(read_manifest(stream.tasks[0].manifest).root / row["uri"])) as container:
        assert sum(1 for _ in container.decode(video=0)) == 12


@pytest.mark.parametrize("event", [pair[0] for pair in events.PAIRS])
def test_an_event_backwards_is_its_opposite_and_none_repeats_itself(event):
    scene = events.scenes_of(event, 1, 1, world_seed=0)[0]
    twin = events.scenes_of(events.opposite(event), 1, 1, world_seed=0)[0]
    assert (scene.shape, scene.colour, scene.ground) == (twin.shape, twin.colour, twin.ground)
    forward, backward = pixels(scene), pixels(twin)
    assert np.abs(forward[::-1] - backward).max() <= 1
    assert np.abs(forward - backward).max() > 30
    for first in range(len(forward)):
        for second in range(first):
            if event != "opens":  # a rim that closes to its middle is full from then on
                assert np.abs(forward[first] - forward[second]).max() > 3


def test_what_pairs_share_tells_their_videos_apart_nowhere_but_in_time():
    """A model that knows no order cannot tell a test video from its opposite's."""
    scenes = {c: events.scenes_of(c, 39, 1, world_seed=3) for c in events.EVENTS}
    for forward, backward in events.PAIRS:
        kinds = [[(s.shape, s.colour, s.ground) for s in scenes[c]] for c in (forward, backward)]
        assert kinds[0] == kinds[1] and len(set(kinds[0])) == 39


def test_what_is_tested_was_never_shown_and_is_the_same_in_all_categories():
    def shown(category: str, split: str) -> list[frozenset[str]]:
        concepts = {word: concept for concept, said in world.CONCEPT_WORDS.items() for word in said}
        rows = [drawing.row for drawing in moving_ctvr.drawings(category, 1, 2, moving_ctvr.CLIPS)]
        ours = [row["captions"][0].split() for row in rows if row["split"] == split]
        return [frozenset(concepts[word] for word in words if word in concepts and word != category) for words in ours]

    tested = {category: shown(category, "test") for category in events.EVENTS}
    assert all(seen == tested["rises"] and len(set(seen)) == 60 for seen in tested.values())
    assert not set(tested["rises"]) & set(shown("rises", "validation"))
    for forward, backward in events.PAIRS:
        learned = shown(forward, "train")
        assert learned == shown(backward, "train") and len(set(learned)) == moving_ctvr.SCENES
        assert not set(learned) & {*tested["rises"], *shown("rises", "validation")}


def test_twins_stand_in_one_task_and_their_ids_say_so(folder):
    for task in build(folder, 10).tasks:
        ids = [row["id"] for row in table_of(task)]
        assert len({id.rpartition("/")[0] for id in ids}) == len(ids) / 2
    rises, sinks = (moving_ctvr.drawings(name, 1, 0, SMALL)[0].row for name in events.PAIRS[0])
    assert (rises["id"], sinks["id"]) == ("rises-sinks00/rises", "rises-sinks00/sinks")


def test_captions_name_what_is_seen_with_words_of_the_look_and_of_the_vocabulary():
    known = {*world.vocabulary_words(), *events.vocabulary_words()}
    for category in events.EVENTS:
        look = events.look_of(category)
        for number, scene in enumerate(events.scenes_of(category, 5, 3, world_seed=1)):
            captions = events.captions_of(scene, 4, world.generator(number))
            assert len(set(captions)) == 4
            for caption in captions:
                words = set(caption.split())
                assert words <= known and set(scene.events) <= words
                for concept in (scene.shape, scene.colour, scene.ground):
                    assert words & set(world.CONCEPT_WORDS[look.called(concept)])
            later = zip(scene.events, scene.events[1:], strict=False)
            assert all(second not in (first, events.opposite(first)) for first, second in later)


def test_worlds_differ_and_a_world_that_is_no_number_is_refused():
    first, second = (events.scenes_of("rises", 5, 1, world_seed=seed) for seed in (0, 1))
    assert first != second and first == events.scenes_of("rises", 5, 1, world_seed=0)
    with pytest.raises(UsageError, match=r"moving-ctvr-10:x.*whole number"):
        load_stream("moving-ctvr-10:x")


def test_stills_of_events_speak_the_words_of_their_looks_and_show_what_events_come_to():
    images, captions = stills.event_pairs(40, seed=0)
    again, _ = stills.event_pairs(40, seed=0)
    assert images.shape == (40, 32, 32, 3) and np.array_equal(images, again) and len(set(captions)) > 30
    fixed = {word for sentence in events.SENTENCES for word in sentence.split() if not word.startswith("{")}
    for words in map(str.split, captions):
        (event,) = set(words) & set(events.EVENTS)
        column = events.look_of(event).column
        own = {word for said in world.CONCEPT_WORDS.values() for word in (said[0], said[column])}
        assert set(words) <= own | fixed | {event}
    words = set(" ".join(captions).split())
    assert any(first in words and second in words for first, second in events.PAIRS)


def test_the_stream_is_filmed_and_pre_training_is_not():
    """Grey stays grey, a colour loses a part of itself to the next one, and no light is added."""
    grey, red = np.full((1, 2, 2, 3), 90, np.uint8), np.zeros((1, 2, 2, 3), np.uint8)
    red[..., 0] = 200
    assert np.array_equal(events.filmed(grey), grey)
    assert events.filmed(red)[0, 0, 0].tolist() == [180, 20, 0]
    drawing = moving_ctvr.drawings("rises", 1, 0, SMALL)[0]
    assert np.array_equal(drawing.draw(), drawing.draw())
    words = drawing.row["captions"][0].split()
    scenes = events.scenes_of("rises", 120, 1, 0)
    scene = next(scene for scene in scenes if {*scene.shown} <= {*words})
    plain = events.draw(scene, 4, world.generator(0, 102, 0, 0))
    assert np.array_equal(drawing.draw(), events.filmed(plain)) and not np.array_equal(drawing.draw(), plain)
