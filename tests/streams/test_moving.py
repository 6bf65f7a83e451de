"""The embedded stream: its clips are a function of the seed, its files decode, and rendering survives a crash."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from kinoray.errors import StorageFull
from kinoray.streams import moving, rendering, stills, world

SMALL = (3, 2, 2)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    return moving.build(tmp_path_factory.mktemp("cache"), progress=False, clips=SMALL, processes=1)


def frames_of(path):
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def files_of(stream):
    return {
        f"{task.name}/{path.name}": path.read_bytes()
        for task in stream.tasks
        for path in (task.manifest.parent / "clips").iterdir()
    }


def test_a_plan_has_the_manifests_of_a_stream_and_renders_nothing(stream, tmp_path, capsys):
    from kinoray.data.manifest import read_manifest

    with rendering.nothing_rendered():
        planned = moving.build(tmp_path / "cache", clips=SMALL)
        pairs = [
            (read_manifest(a.manifest), read_manifest(b.manifest))
            for a, b in zip(planned.tasks, stream.tasks, strict=True)
        ]
        assert all(ours.digest == theirs.digest for ours, theirs in pairs)
    assert not (tmp_path / "cache").exists() and not planned.tasks[0].manifest.exists()
    assert capsys.readouterr().err == ""


def test_rendering_says_how_far_it_is_without_a_terminal(tmp_path, capsys):
    moving.build(tmp_path, clips=SMALL, processes=1)
    assert "Rendering moving-cvlm (once): 35/35, ETA 0:00" in capsys.readouterr().err


def test_five_tasks_differ_in_size_rate_length_and_number_of_clips(stream):
    assert [task.name for task in stream.tasks] == ["paper", "neon", "tape", "radar", "street"]
    assert stream.protocol == "cvlm" and stream.backbone == "tiny-web"
    for field in ("width_px", "rate_fps", "frames", "clips"):
        assert len({getattr(look, field) for look in world.LOOKS}) == 5
    assert all(look.clips[2] >= 200 for look in world.LOOKS)
    assert sum(look.captions > 1 for look in world.LOOKS) == 2
    assert all(" . " in s for look in world.LOOKS if look.name == "radar" for s in look.sentences)


def test_every_clip_is_h264_of_the_size_rate_and_length_that_its_look_says(stream):
    for look, task in zip(world.LOOKS, stream.tasks, strict=True):
        rows = pq.read_table(task.manifest).to_pylist()
        assert [row["split"] for row in rows] == ["train"] * 3 + ["validation"] * 2 + ["test"] * 2
        for row in rows:
            with av.open(str(task.manifest.parent / row["uri"])) as container:
                video = container.streams.video[0]
                assert (video.codec_context.name, video.width, video.height) == ("h264", look.width_px, look.height_px)
                assert video.average_rate == look.rate_fps
                assert look.frames[0] <= sum(1 for _ in container.decode(video)) <= look.frames[1]
            assert len(row["captions"]) == look.captions == len(set(row["captions"]))


def test_decoded_pixels_are_those_drawn(stream):
    for look, task in zip(moving.LOOKS["moving-cvlm"], stream.tasks, strict=True):
        scene, row = moving.clip_rows(replace(look, clips=SMALL), 0)[1]
        drawn = moving.clip_frames(look, scene, 1, 0)
        decoded = frames_of(task.manifest.parent / row["uri"])
        assert decoded.shape == drawn.shape
        assert np.abs(decoded.astype(int) - drawn).mean() < 12


def test_several_processes_render_the_same_bytes(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "CLIPS_PER_PROCESS", 4)
    other = moving.build(tmp_path, progress=False, clips=SMALL, processes=2)
    assert files_of(other) == files_of(stream)


def test_another_world_seed_gives_other_scenes():
    looks = [replace(look, clips=SMALL) for look in world.LOOKS]
    assert [row for _, row in moving.clip_rows(looks[0], 0)] != [row for _, row in moving.clip_rows(looks[0], 1)]


def test_a_built_stream_is_found_again_without_rendering(stream, monkeypatch):
    monkeypatch.setattr(rendering, "write_video", None)
    again = moving.build(stream.tasks[0].manifest.parents[2], progress=False, clips=SMALL)
    assert again == stream


def test_rendering_that_was_cut_off_is_finished_by_the_next_call(stream, tmp_path, monkeypatch):
    written, whole = [], rendering.write_video

    def dies_at_the_tenth(frames, path, rate_fps):
        written.append(path)
        if len(written) == 10:
            raise KeyboardInterrupt
        whole(frames, path, rate_fps)

    monkeypatch.setattr(rendering, "write_video", dies_at_the_tenth)
    with pytest.raises(KeyboardInterrupt):
        moving.build(tmp_path, progress=False, clips=SMALL, processes=1)
    monkeypatch.setattr(rendering, "write_video", whole)
    assert files_of(moving.build(tmp_path, progress=False, clips=SMALL, processes=1)) == files_of(stream)
    assert not list(tmp_path.rglob("draft-*"))


def test_two_calls_at_once_render_each_clip_once(stream, tmp_path, monkeypatch):
    written, whole = [], rendering.write_video
    monkeypatch.setattr(rendering, "write_video", lambda *given: (written.append(given[1]), whole(*given)))
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(moving.build, tmp_path, 0, False, SMALL, 1) for _ in range(2)]
        first, second = (call.result() for call in calls)
    assert first == second and files_of(first) == files_of(stream)
    assert len(written) == len(set(written)) == len(files_of(stream))


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageFull, match="XDG_CACHE_HOME") as caught:
        moving.build(tmp_path / "file", progress=False, clips=SMALL)
    assert "\n" not in str(caught.value)


LOOKS = [look for looks in moving.LOOKS.values() for look in looks]


def test_no_scene_repeats_within_a_task_so_every_test_clip_is_new():
    for look in LOOKS:
        scenes = [scene for scene, _ in moving.clip_rows(look, 0)]
        assert len({(s.shape, s.colour, s.ground, s.size, s.place) for s in scenes}) == len(scenes) == sum(look.clips)


def test_no_two_concepts_share_a_word():
    words = [word for row in world.CONCEPT_WORDS.values() for word in row]
    assert len(set(words)) == len(words) and all(len(row) == 5 for row in world.CONCEPT_WORDS.values())


def test_captions_name_every_attribute_with_words_of_the_vocabulary():
    known = set(world.vocabulary_words())
    for look in world.LOOKS:
        for scene, row in moving.clip_rows(replace(look, clips=SMALL), 0):
            for caption in row["captions"]:
                words = set(caption.split())
                assert words <= known
                for name in world.ATTRIBUTES:
                    assert words & set(world.CONCEPT_WORDS[look.called(getattr(scene, name))])


def test_captions_that_drift_name_four_of_six_attributes_by_their_own_words():
    known = set(world.vocabulary_words())
    for look in moving.LOOKS["moving-cvlm"]:
        rows = moving.clip_rows(replace(look, clips=SMALL), 0)
        assert sum(len(row["captions"]) for _, row in moving.clip_rows(look, 0)[: look.clips[0]]) == moving.PAIRS
        for scene, row in rows:
            for words in (set(caption.split()) for caption in row["captions"]):
                named = [n for n in world.ATTRIBUTES if words & set(world.CONCEPT_WORDS[getattr(scene, n)])]
                assert words <= known and len(named) == 4


def test_the_web_shows_all_looks_and_misnames_some():
    looks = moving.LOOKS["moving-cvlm"]
    images, captions = stills.web_pairs(2000, 0, looks)
    again, right = stills.web_pairs(2000, 0, looks, wrong=0.0)
    assert images.shape == (2000, 32, 32, 3) and np.array_equal(images, again)
    assert 0.08 < np.mean([a != b for a, b in zip(captions, right, strict=True)]) < 0.12
    assert {word for look in looks for word in look_words(look)} <= set(" ".join(captions).split())


def test_shrinking_averages_boxes():
    frame = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    expected = [[frame[i : i + 2, j : j + 2].mean(axis=(0, 1)) for j in (0, 2)] for i in (0, 2)]
    assert np.array_equal(stills.shrink(frame, 2), np.round(expected))
    flat = np.full((56, 72, 3), 90, dtype=np.uint8)
    assert np.array_equal(stills.shrink(flat, 32), np.full((32, 32, 3), 90))


def test_every_shape_is_drawn_and_none_like_another():
    v, u = np.mgrid[-1:1:41j, -1:1:41j]
    covers = [world.distance_to(shape, u, v) < 0 for shape in world.SHAPES]
    assert all(0.08 < cover.mean() < 0.8 for cover in covers)
    for i, first in enumerate(covers):
        assert all((first != other).mean() > 0.03 for other in covers[:i])


def test_pretraining_shows_only_a_part_of_the_world():
    images, captions = stills.pretraining_pairs(200, seed=0)
    again, _ = stills.pretraining_pairs(200, seed=0)
    assert images.shape == (200, 32, 32, 3) and np.array_equal(images, again)
    words = set(" ".join(captions).split())
    unseen = [word for look in world.LOOKS for word in look_words(look) if word not in words]
    assert len(unseen) > 30


def look_words(look):
    return {word for scene, row in moving.clip_rows(look, 0) for caption in row["captions"] for word in caption.split()}


def test_the_cache_folder_honours_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert moving.cache_folder() == tmp_path / "kinoray"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(moving.cache_folder()) == "/home/somebody/.cache/kinoray"


def test_some_colours_are_called_otherwise_in_some_tasks_and_never_before_them():
    scene = world.Scene("circle", "pink", "black", "small", "left", "slides")
    plain, tape, street = (
        {word for caption in world.captions_of(look, scene, world.generator(0)) for word in caption.split()}
        for look in (world.LOOKS[0], world.LOOKS[2], world.LOOKS[4])
    )
    assert "pink" in plain and "purple" not in plain
    assert "purple" in tape & street and "pink" not in tape | street
    tape_look = world.LOOKS[2]
    assert [tape_look.called(c) for c in ("brown", "white", "red")] == ["white", "brown", "red"]
