"""The streams over robots, on a stand-in of the set in the layout that fetching and preparing leave."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kinoray.data.manifest import SPLITS, Manifest, read_manifest, write_manifest
from kinoray.data.presets import test_sampling as sampling_in_tests
from kinoray.data.presets import train_sampling
from kinoray.datasets.packages import concept_of, robots, split_of_concept
from kinoray.datasets.prepared import manifest_of
from kinoray.decoding.sampling import Timeline
from kinoray.decoding.write_video import write_video
from kinoray.errors import UsageError
from kinoray.execution.run import run
from kinoray.runs.result import Result
from kinoray.streams import downstream_set, load_stream

EPISODES = 16
STREAMS = ("robots-ssl", "robots-ctvr-10")


@pytest.fixture(scope="module", autouse=True)
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A smaller set, whose clips show how far each task is: a bar that grows by what the episode asks for."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("robots")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(robots, "EPISODES", EPISODES)
        patch.setattr("kinoray.streams.robots.PRETEXT_FROM", EPISODES // 2)
        rows = [
            {
                "id": clip.id,
                "uri": f"{clip.id.replace('/', '-')}.mp4",
                "captions": clip.captions,
                "label": clip.label,
                "task": clip.task,
                "split": split_of_concept(concept_of(clip.id), 0, 0.0),
            }
            for clip in robots.clips({package.name: folder for package in robots.PACKAGES})
        ]
        write_manifest(rows, manifest_of("robots"), folder)
        yield folder


def states(id: str) -> np.ndarray:
    """How far what the first of a pair's tasks does is done, in each frame of a stand-in clip."""
    concept, _, what = id.partition("/")
    task, _, number = concept.rpartition(f"-{robots.LOOK}-")
    shown = np.linspace(*robots.wish(task, int(number))["window"], robots.FRAMES)
    is_first = any(task == next(iter(tasks)) for tasks in robots.PAIRS.values())
    shown = shown if is_first else 1 - shown
    return shown[::-1] if what == "backwards" else shown


def manifests(name: str) -> list[Manifest]:
    stream = load_stream(name)
    return [read_manifest(data.manifest) for data in (*stream.tasks, *stream.downstream)]


@pytest.mark.parametrize("name", [name + way for name in STREAMS for way in ("", ":1")])
def test_no_episode_is_in_two_splits(name: str) -> None:
    splits = defaultdict(set)
    for manifest in manifests(name):
        for split in SPLITS:
            for row in manifest.clips(split):
                splits[concept_of(manifest.id(row))].add(split)
    assert splits and all(len(each) == 1 for each in splits.values())


def test_another_number_cuts_otherwise() -> None:
    first, second = (
        {m.id(row) for row in m.clips("test")} for m in (manifests(f"robots-ssl{k}")[0] for k in ("", ":1"))
    )
    assert first != second
    with pytest.raises(UsageError, match="robots-ssl:x: give the number of the split"):
        load_stream("robots-ssl:x")


def test_the_pretext_and_the_downstream_set_learn_from_other_episodes() -> None:
    pretext, downstream = manifests("robots-ssl")
    stream = load_stream("robots-ssl")
    assert (stream.protocol, stream.backbone) == ("ucl", "tiny-2plus1d")
    learned = [{m.id(row) for split in SPLITS[:2] for row in m.clips(split)} for m in (pretext, downstream)]
    assert not learned[0] & learned[1]
    assert len(downstream.clips("test")) > len(pretext.clips("test")), "all test clips are the downstream set's"
    assert len(set(downstream.labels(downstream.clips("test")))) == 20


def test_a_pair_is_a_task_and_a_caption_stands_for_one_clip_of_the_gallery() -> None:
    stream = load_stream("robots-ctvr-10")
    assert (stream.protocol, [task.name for task in stream.tasks]) == ("ctvr-twins", list(robots.PAIRS))
    seen: dict[str, set[str]] = {split: set() for split in SPLITS[1:]}
    for manifest in manifests("robots-ctvr-10"):
        assert len(set(manifest.labels(range(manifest.table.num_rows)))) == 2
        for split, captions in seen.items():
            ids = [manifest.id(row) for row in manifest.clips(split)]
            ours = [manifest.caption(row, 0) for row in manifest.clips(split)]
            assert len(set(ours)) == len(ours) and not captions & set(ours)
            assert ids[::2] == [f"{concept_of(id)}/forwards" for id in ids[1::2]], "twins side by side"
            captions |= set(ours)


@pytest.mark.parametrize("name", STREAMS)
def test_the_mean_of_the_frames_that_are_read_is_the_same_for_twins(name: str) -> None:
    recipe = load_stream(name).recipe
    assert recipe.sampling == recipe.test_sampling == "uniform"
    for rule in (train_sampling(recipe), sampling_in_tests(recipe, recipe.test_frames)):
        frames = rule.frames(Timeline(robots.FRAMES, lambda: np.arange(robots.FRAMES) / 8), seed=0)
        assert sorted(robots.FRAMES - 1 - frames) == frames.tolist()


def test_the_first_frame_tells_little_and_the_order_all() -> None:
    clips = [clip for clip in robots.clips({p.name: Path() for p in robots.PACKAGES}) if clip.task == "door"]
    does = np.array([clip.label == "opens the door" for clip in clips])
    first, last = np.array([states(clip.id)[[0, -1]] for clip in clips]).T
    assert ((last > first) == does).all()
    thresholds = np.linspace(0, 1, 101)
    best = max(np.mean((first < threshold) == does) for threshold in thresholds)
    assert best < 0.8, "even by the exact state; a picture shows less of it"


def test_both_streams_are_learned(prepared: Path, tmp_path: Path) -> None:
    for manifest in manifests("robots-ctvr-10") + manifests("robots-ssl"):
        for row in range(manifest.table.num_rows):
            path = prepared / manifest.uri(row)
            if not path.is_file():
                frames = np.zeros((robots.FRAMES, 32, 32, 3), np.uint8)
                for frame, state in zip(frames, states(manifest.id(row)), strict=True):
                    frame[:, : round(32 * state)] = 200
                write_video(frames, path, 8)
    ssl = load_stream("robots-ssl")
    for method, stream, settings in (
        ("video_moco", ssl, {"queue_size": 32}),
        ("classify", downstream_set(ssl, "downstream"), {"validations": 1}),
        ("avg_pool", load_stream("robots-ctvr-10"), {"validations": 0}),
    ):
        settings |= {"max_steps": 2, "batch_size": 8}
        result = run(method, stream=stream, settings=settings, num_workers=0, runs=tmp_path, quiet=True)
        assert isinstance(result, Result) and result.state == "finished"
    assert result.metrics["R@1"] <= result.metrics["R@1_what"] and 0 <= result.metrics["R@1_order"] <= 100
