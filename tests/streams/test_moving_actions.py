"""The embedded stream of actions: opposed pairs in the same scenes, a pretext and other scenes beside it."""

from pathlib import Path

import av
import numpy as np
import pytest

from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.errors import UsageError
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.streams import events, family_of, load_stream, moving_actions

EACH = (2, 1, 1)
SMALL = dict.fromkeys(moving_actions.CLIPS, EACH)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_one_task_to_learn_from_and_one_set_beside_it_have_all_actions_in_every_split(cache: Path) -> None:
    stream = moving_actions.build(clips=SMALL, cache=cache, progress=False, processes=1)
    assert (stream.protocol, stream.backbone, stream.recipe.size_px) == ("ucl", "tiny-2plus1d", 32)
    assert ([task.name for task in stream.tasks], [task.name for task in stream.downstream]) == (
        ["pretext"],
        ["downstream"],
    )
    for data in (*stream.tasks, *stream.downstream):
        manifest = read_manifest(data.manifest)
        for split, count in zip(SPLITS, EACH, strict=True):
            labels = manifest.labels(manifest.clips(split))
            assert sorted(labels) == sorted(count * list(events.EVENTS))
    row = manifest.table.to_pylist()[0]
    with av.open(str(manifest.root / row["uri"])) as container:
        assert sum(1 for _ in container.decode(video=0)) == stream.recipe.frames == stream.recipe.test_frames


def mean_pictures(name: str, actions: tuple[str, str]) -> list[np.ndarray]:
    """What is left of each action's first clip without the order of its frames."""
    drawings = moving_actions.drawings(name, 0, {name: (1, 0, 0)})
    clips = [drawing.draw() for drawing in drawings if drawing.row["label"] in actions]
    assert len(clips) == 2
    return [clip.mean(axis=0) for clip in clips]


@pytest.mark.parametrize("pair", [("rises", "sinks"), ("grows", "shrinks"), ("appears", "vanishes")])
def test_only_the_order_of_frames_tells_a_pair_apart(pair: tuple[str, str]) -> None:
    first, second = mean_pictures("pretext", pair)
    _, other = mean_pictures("pretext", (pair[0], "loops"))
    assert np.abs(first - second).mean() < 0.5 * np.abs(first - other).mean()


def test_all_actions_happen_in_the_same_eight_scenes_and_no_two_clips_are_alike() -> None:
    clips = {"pretext": (9, 0, 1), "downstream": (1, 0, 1)}
    made = [drawing for name in clips for drawing in moving_actions.drawings(name, 0, clips)]
    pixels = {drawing.draw().tobytes() for drawing in made}
    assert len(pixels) == len(made) == 20 * 12
    scenes = [events.scenes_of(action, 8, 1, 0, moving_actions.POOLS) for action in events.EVENTS]
    looks = [{(scene.shape, scene.colour, scene.ground) for scene in each} for each in scenes]
    assert len(looks[0]) == 8 and all(each == looks[0] for each in looks)


def test_the_argument_is_the_world_seed() -> None:
    with pytest.raises(UsageError, match="the world seed must be a whole number, as in `moving-actions:1`"):
        load_stream("moving-actions:one")
    drawn = [moving_actions.drawings("pretext", seed, {"pretext": (1, 0, 0)})[0] for seed in (0, 0, 1)]
    first, again, other = [drawing.draw() for drawing in drawn]
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert drawn[0].row["id"] != drawn[2].row["id"], "so data digests differ, too"


def test_a_downstream_set_is_a_stream_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = moving_actions.build("moving-actions:3", clips=SMALL, cache=tmp_path, progress=False, processes=1)
    monkeypatch.setattr(moving_actions, "load", lambda name, argument: small)
    stream = load_stream("moving-actions:3/downstream")
    assert (stream.name, stream.source) == ("moving-actions:3/downstream", "moving-actions:3/downstream")
    assert stream.tasks == small.downstream and not stream.downstream and stream.recipe == small.recipe
    assert [family_of(name) for name in (stream.name, "video-ssl/ucf101-1", "ucl-cifar10:3")] == [
        "moving-actions",
        "video-ssl",
        "ucl-cifar10",
    ]
    run = resolve(RunRequest("classify", stream=stream, runs=tmp_path))
    assert run.recipe.augmentation == "moving-actions" and run.recipe.size_px == small.recipe.size_px
    for wrong in ("moving-actions:3/pretext", "moving-actions:3/downstreams"):
        with pytest.raises(UsageError, match="There is no downstream set of moving-actions:3 named"):
            load_stream(wrong)


@pytest.mark.parametrize("argument", ["9", "a/b", "/data/clips"])
def test_an_argument_may_hold_slashes(argument: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = moving_actions.build("moving-actions", clips=SMALL, cache=tmp_path, progress=False, processes=1)
    arguments = []
    monkeypatch.setattr(moving_actions, "load", lambda name, argument: arguments.append(argument) or small)
    for name in (f"moving-actions:{argument}" + "/" * ("/" in argument), f"moving-actions:{argument}/downstream"):
        assert load_stream(name).source == name
        assert load_stream(load_stream(name).source).name == load_stream(name).name
    assert set(arguments) == {argument}
