"""The pipeline: plan order, substitutes and records, and the same rows with and without Ray and the cache."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import ray
from loky import get_reusable_executor
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from support import clips
from support.waiting import wait_until

from kinoray.data import guarded, pipeline, process_rows, ray_rows, slots
from kinoray.data.manifest import write_manifest
from kinoray.data.pipeline import ClipReader, TrainReader, decode_clips, decode_rows, decode_slots
from kinoray.data.plan import Replay, TaskPlan, row_seed, step_rows
from kinoray.decoding import frame_cache as frame_caching
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.frame_cache import OFF, Cache
from kinoray.decoding.sampling import Sampling
from kinoray.decoding.video import UnreadableStorage
from kinoray.errors import BadData, RunFailed, UsageError
from kinoray.system import pool

SAMPLES, STEPS, BATCH = (8, 6), (5, 6), 4
RANDOM, UNIFORM = Sampling("random", 3), Sampling("uniform", 4)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Fourteen different tiny videos of 6 to 9 frames."""
    folder = tmp_path_factory.mktemp("videos")
    rng = np.random.default_rng(0)
    for number in range(14):
        noise = rng.integers(0, 255, (6 + number % 4, 4, 4, 3), dtype=np.uint8)
        clips.write_clip(folder / f"{number}.mp4", noise.repeat(4, 1).repeat(4, 2))
    return folder


def manifests_of(videos, folder, bad=()):
    """Two tasks; clip 0 of the first has three captions; clips in `bad` are no videos."""
    paths = []
    for task, number in bad:
        (videos / f"broken{number + 6 * (task == 'two')}.mp4").write_bytes(b"no video")
    for task, first, count in (("one", 0, 6), ("two", 6, 6)):
        rows = [
            {
                "id": f"{task}{i}",
                "uri": f"{'broken' if (task, i) in bad else ''}{first + i}.mp4",
                "captions": ["a", "b", "c"] if (task, i) == ("one", 0) else ["a"],
                "split": "train",
            }
            for i in range(count)
        ]
        paths.append(str(write_manifest(rows, folder / f"{task}.parquet", videos).path))
    return tuple(paths)


def feed_of(manifests, **changes):
    plan = TaskPlan(0, 1, 2, SAMPLES, BATCH, STEPS, changes.pop("replay", Replay("reservoir", 6, 2)))
    return replace(TrainReader(plan, manifests, ("one", "two"), RANDOM, form=FrameForm(8), cache=OFF), **changes)


def clip_reader(manifest, rows, batch=2, cache=OFF):
    return ClipReader(manifest, tuple(rows), UNIFORM, FrameForm(8), batch, cache)


@pytest.fixture
def reader(videos, tmp_path):
    return feed_of(manifests_of(videos, tmp_path))


def assert_same(ours, theirs):
    assert [rows.step for rows in ours] == [rows.step for rows in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert (a.num_current, a.bad) == (b.num_current, b.bad)
        for name in ("task", "sample", "seeds", "video"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), (a.step, name)
            assert getattr(a, name).dtype == getattr(b, name).dtype


def test_rows_come_in_plan_order_with_their_seeds(reader):
    steps = list(decode_rows(reader))
    assert [rows.step for rows in steps] == list(range(STEPS[1]))
    for rows in steps:
        assert np.array_equal(np.stack([rows.task, rows.sample], 1), step_rows(reader.plan, rows.step))
        assert rows.seeds.tolist() == [row_seed(reader.plan, rows.step, slot) for slot in range(BATCH + 2)]
        assert rows.video.shape == (BATCH + 2, 3, 8, 8, 3) and rows.video.dtype == np.uint8
        assert rows.num_current == BATCH and rows.bad == []


@pytest.fixture
def one_process(monkeypatch):
    """What a pool would do happens here, where a test can reach it."""

    def in_pool(_, function, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    monkeypatch.setattr(process_rows, "in_pool", in_pool)


def test_processes_and_starting_later_change_nothing(reader, monkeypatch):
    whole = list(decode_rows(reader))
    assert_same(whole[3:], list(decode_rows(replace(reader, start_step=3))))
    asked: list[int] = []
    in_pool = process_rows.in_pool

    def noted(processes, *call):
        asked.append(processes)
        return in_pool(processes, *call)

    monkeypatch.setattr(process_rows, "in_pool", noted)
    for processes in (1, 3):
        assert_same(whole, list(decode_rows(reader, processes=processes)))
    assert set(asked) == {1, 3}
    assert list(decode_rows(replace(reader, start_step=STEPS[1]))) == []


def test_ranks_together_have_the_global_batch(reader):
    whole = list(decode_rows(reader))
    ranks = [list(decode_rows(replace(reader, rank=rank, world=2))) for rank in (0, 1)]
    for rows, first, second in zip(whole, *ranks, strict=True):
        cut = first.num_current
        assert cut == second.num_current == BATCH // 2
        for name in ("sample", "seeds", "video"):
            a, b = getattr(first, name), getattr(second, name)
            assert np.array_equal(np.concatenate([a[:cut], b[:cut], a[cut:], b[cut:]]), getattr(rows, name))


def test_steps_before_the_memory_holds_anything_have_no_replay(videos, tmp_path):
    reader = feed_of(manifests_of(videos, tmp_path))
    plan = replace(reader.plan, task=0, samples=SAMPLES[:1], steps=STEPS[:1])
    sizes = [len(rows.sample) for rows in decode_rows(replace(reader, plan=plan))]
    assert sizes == [BATCH] + [BATCH + 2] * (STEPS[0] - 1)


def test_a_bad_clip_is_recorded_and_replaced_and_the_rest_stays(videos, tmp_path, reader):
    (tmp_path / "bad").mkdir()
    broken = feed_of(manifests_of(videos, tmp_path / "bad", bad={("two", 2)}))
    whole, mended = list(decode_rows(reader)), list(decode_rows(broken))
    hits = 0
    for rows, other in zip(whole, mended, strict=True):
        hit = (rows.task == 1) & (rows.sample == 2)
        hits += hit.sum()
        assert np.array_equal(rows.sample != other.sample, hit)
        assert np.array_equal(rows.video[~hit], other.video[~hit])
        assert np.array_equal(rows.seeds, other.seeds)
        assert (other.task == rows.task).all() and len(other.bad) == hit.sum()
    assert hits > 3
    record = next(record for rows in mended for record in rows.bad)
    assert {name: record[name] for name in ("task", "id", "uri", "stage")} == {
        "task": "two",
        "id": "two2",
        "uri": "broken8.mp4",
        "stage": "open",
    }
    assert record["error"] == "InvalidDataError" and "Invalid data" in record["message"]


def test_other_captions_of_a_bad_clip_are_not_tried_again(videos, tmp_path):
    reader = feed_of(manifests_of(videos, tmp_path, bad={("one", 0)}))
    plan = replace(reader.plan, task=0, samples=SAMPLES[:1], steps=STEPS[:1], replay=None)
    for rows in decode_rows(replace(reader, plan=plan)):
        assert (rows.sample > 2).all()
        hit = step_rows(plan, rows.step)[:, 1] < 3
        assert len(rows.bad) == hit.sum(), "one record a row, though the clip has three samples"


def test_a_task_without_a_readable_clip_is_one_line(videos, tmp_path):
    reader = feed_of(manifests_of(videos, tmp_path, bad={("two", i) for i in range(6)}))
    with pytest.raises(BadData, match=r"All 6 training clips of task two are unreadable; first broken\d+.mp4: ") as e:
        list(decode_rows(reader))
    assert "\n" not in str(e.value)


def test_a_file_that_the_manifest_names_is_waited_for(videos, tmp_path, reader, monkeypatch, one_process):
    """A mount that blinks makes no clip bad: no substitute, no record, the same rows."""
    expected = list(decode_rows(reader))
    slept: list[float] = []

    def comes_back(wait_s):
        slept.append(wait_s)
        if len(slept) == 2:
            (videos / "away.mp4").rename(videos / "8.mp4")

    monkeypatch.setattr(slots.time, "sleep", comes_back)
    (videos / "8.mp4").rename(videos / "away.mp4")
    assert_same(list(decode_rows(reader)), expected)
    assert slept == list(slots.MISSING_WAITS_S[:2])


def test_a_file_that_stays_away_stops_the_run_and_is_no_bad_clip(videos, tmp_path, reader, monkeypatch, one_process):
    monkeypatch.setattr(slots.time, "sleep", lambda wait_s: None)
    (videos / "8.mp4").rename(videos / "away.mp4")
    try:
        with pytest.raises(RunFailed, match=r"8\.mp4 \(clip two2\) is missing under .*names it\. Bring it back"):
            list(decode_rows(reader))
    finally:
        (videos / "away.mp4").rename(videos / "8.mp4")


def test_failing_storage_stops_the_run(reader, monkeypatch, one_process):
    def fails(*_):
        raise UnreadableStorage("a.mp4: reading failed 3 times")

    monkeypatch.setattr(slots, "fetch_clip", fails)
    with pytest.raises(RunFailed, match="reading failed"):
        list(decode_rows(reader))


def test_closing_early_leaves_the_processes_to_the_next(reader):
    rows = decode_rows(reader)
    first = next(rows)
    rows.close()
    assert_same([first], list(islice(decode_rows(reader), 1)))


def test_test_clips_come_in_order_without_the_bad_ones(videos, tmp_path):
    manifest = manifests_of(videos, tmp_path, bad={("one", 1), ("one", 4)})[0]
    batches = list(decode_clips(clip_reader(manifest, [5, 4, 3, 1, 0])))
    assert [clips.rows.tolist() for clips in batches] == [[5], [3], [0]]
    assert [[record["id"] for record in clips.bad] for clips in batches] == [["one4"], ["one1"], []]
    assert all(clips.video.shape == (len(clips.rows), 4, 8, 8, 3) for clips in batches)
    assert list(decode_clips(clip_reader(manifest, []))) == []
    clips = next(decode_clips(clip_reader(manifest, [1, 4])))
    assert len(clips.rows) == 0 and clips.video.shape == (0, 4, 8, 8, 3) and len(clips.bad) == 2


def test_the_cache_changes_nothing_but_the_counts(videos, tmp_path):
    """Bad clips, their records and substitutes included; in the second pass nothing that can be read is decoded."""
    reader = feed_of(manifests_of(videos, tmp_path, bad={("two", 2), ("one", 0)}))
    cached = replace(reader, cache=Cache(str(tmp_path / "frames")))
    without = list(decode_rows(reader))
    first, second = list(decode_rows(cached)), list(decode_rows(cached))
    assert_same(first, without)
    assert_same(second, without)
    assert sum(rows.cached for rows in without) == 0 < sum(rows.cached for rows in first)
    assert all(rows.cached == len(rows.sample) and not rows.trouble for rows in second)
    other = [list(decode_rows(replace(f, plan=replace(reader.plan, seed=1, replay=None)))) for f in (reader, cached)]
    assert_same(*other)
    assert all(rows.cached == len(rows.sample) for rows in other[1]), "another seed finds its frames too"

    clips = [
        list(decode_clips(clip_reader(reader.manifests[0], range(6), 4, f.cache))) for f in (reader, cached, cached)
    ]
    for a, b, c in zip(*clips, strict=True):
        assert np.array_equal(a.video, b.video) and np.array_equal(a.video, c.video) and a.bad == b.bad == c.bad
        assert (a.cached, b.cached, c.cached) == (0, 0, len(c.rows))


def test_a_run_ends_the_same_without_a_cache_and_with_one_empty_or_full(micro, tmp_path, monkeypatch):
    import kinoray

    ends = []
    for runs, folder in (("none", "off"), ("empty", str(tmp_path / "frames")), ("full", str(tmp_path / "frames"))):
        monkeypatch.setenv("KINORAY_CACHE", folder)
        result = kinoray.run("base_moco", stream=micro, num_workers=0, runs=tmp_path / runs, quiet=True)
        ends.append((result.outcome["state_digest"], result.cost))
    digests, costs = zip(*ends, strict=True)
    assert len(set(digests)) == 1
    assert costs[0]["clips_cached"] == 0 < costs[1]["clips_cached"] < costs[2]["clips_cached"]
    assert costs[2]["clips_decoded"] == 0
    assert len({cost["clips_cached"] + cost["clips_decoded"] for cost in costs}) == 1


def test_a_cache_out_of_order_is_told_and_changes_nothing(reader, tmp_path):
    (tmp_path / "file").touch()
    rows = list(decode_rows(replace(reader, cache=Cache(str(tmp_path / "file" / "frames")))))
    assert_same(rows, list(decode_rows(reader)))
    assert all("takes no more clips" in r.trouble and r.cached == 0 for r in rows)


def test_a_picture_is_repeated_for_a_stream_of_videos(tmp_path):
    from PIL import Image

    Image.new("RGB", (8, 8), (200, 0, 0)).save(tmp_path / "a.png")
    write_manifest([{"id": "a", "uri": "a.png", "split": "test"}], tmp_path / "m.parquet", tmp_path)
    (clips,) = decode_clips(clip_reader(str(tmp_path / "m.parquet"), [0]))
    assert clips.video.shape == (1, 4, 8, 8, 3) and (clips.video[..., 0] == 200).all()


@pytest.mark.parametrize(("decode", "way"), [(partial(decode_rows, slots=1), "ray"), (decode_rows, "processes")])
def test_rows_are_decoded_ahead_only_where_the_cache_lacks_them(reader, tmp_path, monkeypatch, decode, way):
    """Without the cache always; with an empty one until it holds the clips; with a full one never."""
    ways = []

    def used(name, fill):
        def note(reader, done, *_):
            ways.append((name, done))
            return fill(reader, done, 0)

        return note

    expected = list(decode_rows(reader))
    local = pipeline._local
    monkeypatch.setattr(pipeline, "_ray", used("ray", local))
    monkeypatch.setattr(pipeline, "_local", used("processes", local))
    monkeypatch.setattr(pipeline, "_on_demand", used("here", pipeline._on_demand))
    monkeypatch.setattr(pipeline, "RECHECK_ROWS", 6)
    cached = replace(reader, cache=Cache(str(tmp_path / "frames")))
    for using, expected_ways in (
        (reader, [way]),
        (cached, [way, "here"]),
        (cached, ["here"]),
        (replace(cached, form=FrameForm(9)), [way, "here"]),
    ):
        ways.clear()
        rows = list(decode(using))
        assert [name for name, _ in ways] == expected_ways and ways[0][1] == 0
        if using.form == FrameForm(8):
            assert_same(rows, expected)


def test_ray_data_takes_over_where_the_cache_ends(reader, tmp_path, monkeypatch):
    cached = replace(reader, cache=Cache(str(tmp_path / "frames")))
    expected = list(decode_rows(cached))
    monkeypatch.setattr(pipeline, "RECHECK_ROWS", 6)
    monkeypatch.setattr(pipeline, "_ray", pipeline._local)
    monkeypatch.setattr(ray_rows, "rows_alone", lambda reader, slots, _: (reader.decode(*slot) for slot in slots))
    rows = decode_rows(cached, 1)
    consumed = [next(rows)]
    frame_caching._digest.cache_clear()
    for path in (tmp_path / "frames").rglob("*.*"):
        path.unlink()
    assert_same(consumed + list(rows), expected)


@pytest.mark.parametrize(("store", "world", "expected"), [(1e10, 4, 64 << 20), (2e9, 64, 16 << 20), (0, 1, 16 << 20)])
def test_tasks_are_smaller_where_the_object_store_is_small_for_so_many_ranks(store, world, expected):
    assert ray_rows.task_bytes({"object_store_memory": store}, world) == expected


def test_what_a_rank_has_at_least_fills_its_share_of_a_small_object_store():
    small = {"object_store_memory": 2e9}, 4
    assert 2 * ray_rows.task_bytes(*small) * (1 + ray_rows.ahead(*small)) == pytest.approx(2e9 / 4 / 4, rel=1e-6)


@pytest.mark.parametrize(("world", "times"), [(1, 8.0), (2, 8.0), (4, 3.66), (1000, 2.0)])
def test_ranks_share_what_a_run_may_fill_of_the_object_store(reader, monkeypatch, world, times):
    """A quarter of 10 GB, in what a consumer of two blocks of 64 MB holds; enough for a few blocks in any case."""
    import ray.data

    class Looked(Exception):
        pass

    def looks(*_, **options):
        raise Looked(ray.data.DataContext.get_current())

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"object_store_memory": 1e10})
    monkeypatch.setattr(ray.data, "from_items", looks)
    with pytest.raises(Looked) as seen:
        next(ray_rows._execution(replace(reader, world=world), [(0, 1)], 1.0))
    assert seen.value.args[0].downstream_capacity_backpressure_ratio == pytest.approx(times, rel=0.01)


@pytest.mark.parametrize(("rows", "slots"), [(1, 1.0), (7, 0.5), (100, 1.0), (1000, 2.0), (5000, 16.0)])
def test_tasks_begin_small_and_end_small_but_not_tiny(rows, slots):
    spans = list(ray_rows._spans(3, 3 + rows, 27, slots, 48))
    counts = [count for _, count in spans]
    assert [first for first, _ in spans] == [3 + sum(counts[:n]) for n in range(len(counts))] and sum(counts) == rows
    assert counts[:3] == [1, 2, 4][: len(counts)] and max(counts) <= 27
    assert all(count >= ray_rows.FEWEST_ROWS for count in counts[3:-1])
    assert counts[-1] <= ray_rows.FEWEST_ROWS


@pytest.mark.parametrize(
    ("begin", "group", "size"), [(0, 8, 24), (5, 8, 24), (3, 27, 27), (0, 1, 27), (9, 26, 26), (0, 16, 27), (0, 48, 27)]
)
def test_tasks_end_with_a_group_where_that_makes_them_little_smaller(begin, group, size):
    spans = list(ray_rows._spans(begin, begin + 3000, 27, 2.0, group))
    assert [first for first, _ in spans] == [begin, *(first + count for first, count in spans)][:-1]
    assert sum(count for _, count in spans) == 3000
    middle = spans[10 : len(spans) // 2]
    assert {count for _, count in middle} == {size}
    assert size % group or all(first % group == 0 for first, _ in middle)


def test_frames_that_lie_one_behind_the_other_are_not_copied():
    block = np.arange(6 * 2 * 4, dtype=np.uint8).reshape(6, 2, 4)
    block.flags.writeable = False
    rows = list(block[:])
    several, _ = pipeline._joined(rows[1:4])
    assert np.shares_memory(several, block) and not several.flags.writeable
    assert np.array_equal(several, block[1:4])
    other = block.copy()
    for apart in (
        rows[1:3] + rows[4:5], rows[2:0:-1], [rows[0], other[1]], [np.zeros((2, 4), np.uint8), rows[0]], rows[:1]
    ):  # fmt: skip
        joined, _ = pipeline._joined(apart)
        assert np.array_equal(joined, np.stack(apart)) and not np.shares_memory(joined, block)


@pytest.fixture
def shapes(tmp_path):
    """A reader of clips of several sizes, among them one longer than 4:1, and the frames of each."""
    sizes = [(36, 64), (36, 64), (64, 36), (36, 36), (36, 200), (48, 64), (36, 64)]
    rng = np.random.default_rng(0)
    rows = []
    for number, size in enumerate(sizes):
        clips.write_clip(tmp_path / f"{number}.mp4", rng.integers(0, 255, (6, *size, 3), dtype=np.uint8))
        rows.append({"id": str(number), "uri": f"{number}.mp4", "captions": ["a"], "split": "train"})
    manifest = str(write_manifest(rows, tmp_path / "shapes.parquet", tmp_path).path)
    reader = ClipReader(manifest, tuple(range(len(sizes))), UNIFORM, FrameForm(18, "rectangle"), 7, OFF)
    return reader, [reader.decode(0, slot).video for slot in range(len(sizes))]


def assert_of_shapes(clips, expected):
    assert clips.sizes.tolist() == [[18, 32], [18, 32], [32, 18], [18, 18], [18, 72], [18, 24], [18, 32]]
    assert clips.video.shape == (7, 4, 32, 72, 3)
    for video, (height, width), frames in zip(clips.video, clips.sizes.tolist(), expected, strict=True):
        assert np.array_equal(video[:, :height, :width], frames)


def test_clips_of_several_sizes_share_a_batch_and_a_block(shapes, tmp_path):
    reader, expected = shapes
    cached = replace(reader, cache=Cache(str(tmp_path / "frames")))
    for using in (reader, cached, cached):
        (clips,) = decode_clips(using)
        assert_of_shapes(clips, expected)
    assert clips.cached == len(expected)
    block = ray_rows._decode_block({"first": np.array([0]), "count": np.array([7])}, reader)
    rows = list(ray_rows._unpack(block))
    assert all(np.array_equal(row.video, frames) for row, frames in zip(rows, expected, strict=True))
    assert block["video"].shape[1] == max(frames.nbytes for frames in expected)
    same = list(ray_rows._unpack(ray_rows._decode_block({"first": np.array([0]), "count": np.array([2])}, reader)))
    together, _ = pipeline._joined([row.video for row in same])
    assert np.shares_memory(together, same[0].video), "of one size they are not copied"


@pytest.mark.ray
def test_ray_data_sends_clips_of_several_sizes(shapes, cluster):
    reader, expected = shapes
    (clips,) = decode_clips(reader, 1.0)
    assert_of_shapes(clips, expected)


def test_a_row_s_bytes_follow_the_longest_clip_that_was_probed(shapes, tmp_path):
    reader, _ = shapes
    assert reader.row_bytes == 4 * 18 * 18 * 3 and replace(reader, form=FrameForm(8)).row_bytes == 4 * 8 * 8 * 3
    for size, bytes_ in (((360, 640), 18 * 32), ((640, 360), 18 * 32), ((100, 900), 18 * 72)):
        row = {"id": "a", "uri": "0.mp4", "split": "train", "height_px": size[0], "width_px": size[1]}
        manifest = write_manifest([row], tmp_path / f"{size}.parquet", tmp_path)
        assert replace(reader, manifest=str(manifest.path)).row_bytes == 4 * bytes_ * 3


@dataclass(frozen=True)
class KillsItsProcess(ClipReader):
    """The first process that decodes clip 3 dies of it."""

    marker: str = ""

    def decode(self, group, slot):
        if self.rows[group * self.batch + slot] == 3 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decode(group, slot)


@dataclass(frozen=True)
class AlwaysKills(ClipReader):
    """Every process that decodes clip 3 dies of it."""

    def decode(self, group, slot):
        place = (self.manifest, self.rows[group * self.batch + slot])
        if place[1] == 3 and place not in self.crashing:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decode(group, slot)


@dataclass(frozen=True)
class TakesAllMemory(ClipReader):
    """No process has the memory that clip 3 takes."""

    def decode(self, group, slot):
        place = (self.manifest, self.rows[group * self.batch + slot])
        if place[1] == 3 and place not in self.crashing:
            np.empty(1 << 62, np.uint8)
        return super().decode(group, slot)


@dataclass(frozen=True)
class HeldUp(ClipReader):
    """Whoever reads clip 3 never comes back, and neither ends."""

    def decode(self, group, slot):
        if self.rows[group * self.batch + slot] == 3:
            signal.pause()
        return super().decode(group, slot)


KILLED = [{"id": "one3", "uri": "3.mp4", "stage": "decode", "error": "ProcessDied", "message": slots.KILLED}]


@pytest.fixture
def by_value():
    """A test's classes, for processes that cannot import it."""
    import ray

    for library in (cloudpickle, ray.cloudpickle):
        library.register_pickle_by_value(sys.modules[__name__])
    yield
    for library in (cloudpickle, ray.cloudpickle):
        library.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    monkeypatch.setattr(guarded, "_crashing", set())


def test_a_clip_that_kills_its_process_is_left_out(videos, tmp_path, by_value):
    """One death may be anything's; the second one is the clip's. The others' frames are as ever."""
    manifest = manifests_of(videos, tmp_path)[0]
    expected = list(pipeline._local(clip_reader(manifest, range(6)), 0, 0))
    marker = tmp_path / "killed"
    once = KillsItsProcess(manifest, tuple(range(6)), UNIFORM, FrameForm(8), 2, OFF, marker=str(marker))
    rows = list(pipeline._local(once, 0, 0))
    assert marker.exists() and all(np.array_equal(a.video, b.video) for a, b in zip(rows, expected, strict=True))

    always = AlwaysKills(manifest, tuple(range(6)), UNIFORM, FrameForm(8), 2, OFF)
    rows = list(pipeline._local(always, 0, 0))
    for number, (row, other) in enumerate(zip(rows, expected, strict=True)):
        assert row.sample == number and (row.video is None if number == 3 else np.array_equal(row.video, other.video))
    assert rows[3].bad == KILLED


def test_processes_that_cannot_start_end_the_run_with_what_they_say(videos, tmp_path, monkeypatch):
    """No clip is at fault: until now each was tried twice, and left out."""
    (tmp_path / "random.py").write_text(
        f"open({str(tmp_path / 'starts')!r}, 'a').write('.'); raise ImportError('this wheel is broken')"
    )
    reader = clip_reader(manifests_of(videos, tmp_path)[0], range(6))
    get_reusable_executor().shutdown(kill_workers=True)  # those of the tests before
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RunFailed, match=r"in 3 tries: ImportError: this wheel is broken\. .* lost\. `kinoray doctor`"):
        list(pipeline._local(reader, 0, 0))
    assert not guarded._crashing
    assert 3 <= len((tmp_path / "starts").read_text()) <= 12, "those of the pool, three alone, one to be heard"


def test_a_clip_that_takes_more_memory_than_there_is_is_left_out_as_well(videos, tmp_path, by_value):
    reader = TakesAllMemory(manifests_of(videos, tmp_path)[0], tuple(range(6)), UNIFORM, FrameForm(8), 2, OFF)
    rows = list(pipeline._local(reader, 0, 0))
    assert [row.video is None for row in rows] == [number == 3 for number in range(6)]
    assert rows[3].bad == KILLED


def test_a_read_that_never_returns_ends_the_run_with_the_clips_name(videos, tmp_path, monkeypatch, by_value):
    """No substitute takes the place of a clip whose storage is away, and nothing is waited for without a limit."""
    pool.in_pool(process_rows.PROCESSES, int).result()  # their start may take longer than is waited here
    monkeypatch.setattr(pool, "GIVES_UP_S", 3.0)
    monkeypatch.setattr(pool, "LOOK_S", 0.5)
    reader = HeldUp(manifests_of(videos, tmp_path)[0], tuple(range(6)), UNIFORM, FrameForm(8), 2, OFF)
    with pytest.raises(RunFailed, match=r"Reading 3\.mp4 or a clip near it has taken over 0\.05 minutes"):
        list(pipeline._local(reader, 0, 0))
    after = [row.sample for row in pipeline._local(replace(reader, rows=(0, 1, 2, 4, 5)), 0, 0)]
    assert after == [0, 1, 2, 4, 5], "the processes that were held up hold up nobody else"


def test_a_row_that_no_cpu_is_free_for_is_decoded_by_a_process_of_our_own(videos, tmp_path, monkeypatch, by_value):
    """As where a machine died and the ranks that are left hold all CPUs: nothing is waited for without a limit."""
    reader = clip_reader(manifests_of(videos, tmp_path)[0], range(3))
    asked, cancelled = [], []
    task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *words: asked.append(words)))
    full = SimpleNamespace(
        remote=lambda function: task,
        wait=lambda answers, timeout: ([], answers),
        cancel=cancelled.append,
        available_resources=lambda: {"CPU": 0.0},
    )
    monkeypatch.setattr(ray_rows, "ray", full)
    monkeypatch.setattr(ray_rows, "_starved", threading.Event())
    rows = list(ray_rows.rows_alone(reader, [(0, 0), (0, 1), (1, 0)], 1.0))
    assert len(asked) == len(cancelled) == 1, "the next ones need not wait as long to know"
    assert [row.trouble for row in rows] == [ray_rows.STARVED] * 3
    for row, other in zip(rows, pipeline._local(reader, 0, 0), strict=True):
        assert np.array_equal(row.video, other.video)


def test_rows_that_were_lost_with_a_machine_are_decoded_anew() -> None:
    lost = ray.exceptions.ObjectLostError("0" * 56, None, "stack")
    wrapped = RuntimeError("of Ray Data")
    wrapped.__cause__ = lost
    assert ray_rows._died(lost) and ray_rows._died(wrapped)
    assert ray_rows._died(ray.exceptions.NodeDiedError("dead")) and not ray_rows._died(RuntimeError("of a method"))
    assert ray_rows.RETRIES == 0, "Ray would make them again in silence, once a CPU is free"


@pytest.mark.ray
def test_ray_gives_the_same_rows_as_our_own_processes(videos, tmp_path, cluster, by_value):
    """Bad clips, replay, ranks and a later start included; then closing early, test clips, a killed task."""
    import ray

    reader = feed_of(manifests_of(videos, tmp_path, bad={("two", 2), ("one", 0)}))
    expected = list(decode_rows(reader))
    assert_same(list(decode_rows(reader, 2)), expected)
    second = replace(reader, rank=1, world=2, start_step=2)
    assert_same(list(decode_rows(second, 0.5)), list(decode_rows(second)))

    rows = decode_rows(reader, 1)
    assert_same(list(islice(rows, 2)), expected[:2])
    rows.close()
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 4)  # all CPUs are free again

    clips = clip_reader(reader.manifests[0], range(6))
    for ours, theirs in zip(decode_clips(clips, 1), decode_clips(clips), strict=True):
        assert np.array_equal(ours.rows, theirs.rows) and np.array_equal(ours.video, theirs.video)
        assert ours.bad == theirs.bad

    cached = replace(reader, cache=Cache(str(tmp_path / "frames")))
    first, second = list(decode_rows(cached, 2)), list(decode_rows(cached, 2))
    assert_same(first, expected)
    assert_same(second, expected)
    assert all(rows.cached == len(rows.sample) for rows in second), "what Ray's tasks decode is found by this process"

    marker = tmp_path / "killed"
    killing = KillsItsProcess(reader.manifests[0], tuple(range(6)), UNIFORM, FrameForm(8), 2, OFF, marker=str(marker))
    assert [row.sample for row in pipeline._ray(killing, 0, 1)] == list(range(6))
    assert marker.exists()

    crashing = AlwaysKills(reader.manifests[0], tuple(range(6)), UNIFORM, FrameForm(8), 2, OFF)
    rows = list(pipeline._ray(crashing, 0, 1))
    assert [row.sample for row in rows] == list(range(6)) and [row.video is None for row in rows] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    assert rows[3].bad == KILLED
    assert [row.video is None for row in pipeline._on_demand(crashing, 0, 1)] == [row.video is None for row in rows]
    guarded._crashing.clear()
    greedy = TakesAllMemory(reader.manifests[0], tuple(range(3, 6)), UNIFORM, FrameForm(8), 2, OFF)
    assert [row.bad for row in pipeline._ray(greedy, 0, 1)] == [KILLED, [], []]

    assert decode_slots(2, 1.0) == 1 and decode_slots(4, 0.5) == 0.5 and decode_slots(1, 1.0) == 3
    with pytest.raises(UsageError, match=r"leaves none of the cluster's 4 CPUs"):
        decode_slots(4, 1.0)


def test_a_cluster_that_has_no_machine_yet_is_named_as_that(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "cluster_resources", dict)
    with pytest.raises(UsageError, match=r"has no CPU at present.*when a machine has joined"):
        decode_slots(1, 0.01)


@pytest.mark.ray
def test_a_trial_of_a_sweep_decodes_a_clip_by_itself_outside_of_its_own_share(videos, tmp_path, cluster, by_value):
    """Ray would otherwise place the task in the trial's placement group, which has less than a CPU."""
    reader = clip_reader(manifests_of(videos, tmp_path)[0], range(2))
    group = ray.util.placement_group([{"CPU": 0.5}])
    ray.get(group.ready())
    inside = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    trial = ray.remote(lambda: [row.video for row in ray_rows.rows_alone(reader, [(0, 0), (0, 1)], 1.0)])
    try:
        found = ray.get(trial.options(num_cpus=0.5, scheduling_strategy=inside).remote())
    finally:
        ray.util.remove_placement_group(group)
    for video, other in zip(found, pipeline._local(reader, 0, 0), strict=True):
        assert np.array_equal(video, other.video)


@pytest.mark.ray
def test_where_others_hold_all_cpus_the_rows_come_all_the_same(reader, cluster, monkeypatch):
    import ray

    @ray.remote
    class Holds:
        def ready(self):
            return True

    monkeypatch.setattr(ray_rows, "STARVED_S", 2.0)
    monkeypatch.setattr(ray_rows, "OWN_ROWS", 12)
    expected = list(decode_rows(reader))
    other = Holds.options(num_cpus=4).remote()
    ray.get(other.ready.remote())
    rows = decode_rows(reader, 1)
    seen = [next(rows), next(rows)]
    assert ray_rows.STARVED in [step.trouble for step in seen]
    ray.kill(other)
    assert_same(seen + list(rows), expected)


@pytest.mark.ray
def test_a_consumer_that_pauses_gets_the_same_rows(reader, cluster, monkeypatch):
    monkeypatch.setattr(ray_rows, "STARVED_S", 0.5)
    rows = decode_rows(reader, 2)
    seen = [next(rows)]
    time.sleep(2)
    assert_same(seen + list(rows), list(decode_rows(reader)))
