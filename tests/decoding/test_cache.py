"""The frame cache: a hit equals a miss, and nothing that happens to its files changes a frame or stops a run."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support import clips

from kinoray.decoding import decode
from kinoray.decoding import frame_cache as entries
from kinoray.decoding import frame_cache as frame_caching
from kinoray.decoding import read_clip as read
from kinoray.decoding.clip import Clip, Probe
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.frame_cache import OFF, Cache, Entries, fetch_clip, frame_cache, holds_clip
from kinoray.decoding.frame_codec import packed
from kinoray.decoding.read_clip import read_clip
from kinoray.decoding.sampling import Sampling
from kinoray.errors import UsageError, VideoError

SMALL = FrameForm(16)

RANDOM, UNIFORM = Sampling("random", 3), Sampling("uniform", 4)
RULES = (RANDOM, UNIFORM, Sampling("interval", 4), Sampling("consecutive", 5), Sampling("fps", 3, fps=4.0))
NAME = "ab" * 16


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Twelve different videos of 6 to 9 frames."""
    folder = tmp_path_factory.mktemp("videos")
    rng = np.random.default_rng(0)
    for number in range(12):
        noise = rng.integers(0, 255, (6 + number % 4, 4, 4, 3), dtype=np.uint8)
        clips.write_clip(folder / f"{number}.mp4", noise.repeat(4, 1).repeat(4, 2))
    return folder


@pytest.fixture
def cache(tmp_path):
    return Cache(str(tmp_path / "frames"))


def clip_of(path, **changes):
    return replace(Clip(path.stem, str(path)), **changes)


def copy_of(path, folder):
    folder.mkdir(exist_ok=True)
    (folder / path.name).write_bytes(path.read_bytes())
    return folder / path.name


def files_in(cache, ending=".frames"):
    return sorted(path for path in Path(cache.folder).rglob(f"*{ending}"))


def drafts_in(cache):
    return list((Path(cache.folder) / entries.DRAFTS).iterdir())


def video_of(seed=0, num_frames=5, height=8, width=8):
    return np.random.default_rng(seed).integers(0, 255, (num_frames, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_a_hit_is_the_miss_bit_for_bit(videos, cache, rule, codec):
    clip, form = clip_of(videos / "3.mp4"), replace(SMALL, codec=codec)
    expected = read_clip(clip, rule, 7, form)
    first, second = (fetch_clip(clip, rule, 7, form, cache) for _ in range(2))
    assert not first.cached and second.cached and not second.trouble
    for fetched in (first, second):
        assert np.array_equal(fetched.video, expected) and fetched.video.dtype == np.uint8
    assert holds_clip(clip, rule, form, cache)
    header = files_in(cache)[0].read_bytes()[:64].decode()
    assert re.fullmatch(rf"kinoray frames {codec} \d+ 16 16 *\n", header), "an entry says what it holds"


def test_frames_as_jpeg_are_those_of_pillow_and_take_a_fraction(tmp_path, cache):
    """Smooth ones, as films are; also without a cache, and of a clip that is drawn from."""
    ramp = np.linspace(0, 255, 96).astype(np.uint8)
    video = np.stack([np.roll(ramp, 9 * t) for t in range(6)])[:, None, :, None].repeat(96, 1).repeat(3, 3)
    clip = clip_of(clips.write_clip(tmp_path / "smooth.mp4", video))
    raw, jpeg = (FrameForm(96, codec=codec) for codec in ("raw", "jpeg"))
    plain, seen = (fetch_clip(clip, UNIFORM, 0, form, cache).video for form in (raw, jpeg))
    for before, after in zip(plain, seen, strict=True):
        file = BytesIO()
        Image.fromarray(before).save(file, "jpeg", quality=95, subsampling="4:4:4")
        assert np.array_equal(np.asarray(Image.open(file)), after)
    assert 0 < np.abs(plain.astype(int) - seen).max() < 12
    assert np.array_equal(fetch_clip(clip, UNIFORM, 0, jpeg, OFF).video, seen)
    fetch_clip(clip, RANDOM, 0, jpeg, cache)
    sizes = {file.read_bytes()[:64].split()[2]: file.stat().st_size for file in files_in(cache)}
    assert sizes[b"jpeg"] * 4 < sizes[b"raw"]
    drawn = fetch_clip(clip, RANDOM, 5, jpeg, cache)
    assert drawn.cached and np.array_equal(drawn.video, read_clip(clip, RANDOM, 5, jpeg))


def test_a_short_clip_is_kept_whole_and_serves_any_draw(videos, cache):
    clip = clip_of(videos / "2.mp4")
    fetch_clip(clip, RANDOM, 0, SMALL, cache)
    for seed in range(20):
        for rule in (RANDOM, Sampling("interval", 2), Sampling("consecutive", 12)):
            fetched = fetch_clip(clip, rule, seed, SMALL, cache)
            assert fetched.cached and np.array_equal(fetched.video, read_clip(clip, rule, seed, SMALL))
    assert len(files_in(cache)) == 1 and files_in(cache)[0].read_bytes().startswith(b"kinoray frames raw 8 16 16 ")


@pytest.mark.parametrize("probed", [False, True])
def test_a_wide_clip_is_short_by_its_own_size(tmp_path, cache, monkeypatch, probed):
    """Beside it an entry of each other form: none is taken for another."""
    path, rectangle = tmp_path / "wide.mp4", FrameForm(16, "rectangle")
    clips.write_clip(path, np.random.default_rng(0).integers(0, 255, (6, 32, 64, 3), dtype=np.uint8))
    probe = Probe(frame_caching.file_digest(str(path)), 6, (), ()) if probed else None
    clip = replace(clip_of(path), probe=probe)
    for spare, kept in ((-1, False), (0, True)):
        monkeypatch.setattr(frame_caching, "WHOLE_BYTES", 6 * 16 * 32 * 3 + spare)
        for form in (rectangle, SMALL, FrameForm(16, "centre", 16, "bicubic"), FrameForm(16, "centre", 16)):
            fetched = [fetch_clip(clip, RANDOM, seed, form, cache) for seed in (0, 1)]
            assert [f.cached for f in fetched][1] == (kept or form != rectangle)
            for seed, one in enumerate(fetched):
                assert np.array_equal(one.video, read_clip(clip, RANDOM, seed, form))
    assert len(files_in(cache)) == 4


@pytest.mark.parametrize("probed", [False, True])
def test_of_a_long_clip_only_frames_that_everyone_asks_for_are_kept(videos, cache, monkeypatch, probed):
    monkeypatch.setattr(frame_caching, "WHOLE_BYTES", 16 * 16 * 3 * 5)
    probe = Probe(frame_caching.file_digest(str(videos / "0.mp4")), 6, (), ()) if probed else None
    clip = clip_of(videos / "0.mp4", probe=probe)
    for _ in range(2):
        fetched = fetch_clip(clip, RANDOM, 1, SMALL, cache)
        assert not fetched.cached and np.array_equal(fetched.video, read_clip(clip, RANDOM, 1, SMALL))
    assert files_in(cache) == [] and not holds_clip(clip, RANDOM, SMALL, cache)
    assert [fetch_clip(clip, UNIFORM, 1, SMALL, cache).cached for _ in range(2)] == [False, True]


def test_what_differs_in_content_span_rule_or_size_has_its_own_entry(videos, cache):
    clip = clip_of(videos / "3.mp4")
    requests = [
        (clip, UNIFORM, 16),
        (clip_of(videos / "7.mp4"), UNIFORM, 16),
        (replace(clip, end=0.5), UNIFORM, 16),
        (replace(clip, start=0.3), UNIFORM, 16),
        (clip, Sampling("uniform", 5), 16),
        (clip, RANDOM, 16),
        (clip, UNIFORM, 8),
    ]
    for _ in range(2):
        for clip, rule, size_px in requests:
            fetched = fetch_clip(clip, rule, 0, FrameForm(size_px), cache)
            assert np.array_equal(fetched.video, read_clip(clip, rule, 0, FrameForm(size_px)))
    assert len(files_in(cache)) == len(requests)


def test_a_copy_and_a_new_name_are_found(videos, cache, tmp_path):
    fetch_clip(clip_of(videos / "1.mp4"), UNIFORM, 0, SMALL, cache)
    copy = copy_of(videos / "1.mp4", tmp_path / "copies")
    assert fetch_clip(clip_of(copy), UNIFORM, 0, SMALL, cache).cached
    copy.rename(copy.with_name("other.mp4"))
    assert fetch_clip(clip_of(copy.with_name("other.mp4")), UNIFORM, 0, SMALL, cache).cached


@pytest.mark.parametrize("probed", [False, True])
def test_another_file_of_the_same_name_is_decoded(videos, cache, tmp_path, probed):
    path = copy_of(videos / "1.mp4", tmp_path / "copies")
    probe = Probe(frame_caching.file_digest(str(path)), 7, (), ()) if probed else None
    clip = clip_of(path, probe=probe)
    before = fetch_clip(clip, UNIFORM, 0, SMALL, cache).video
    for other in ("5.mp4", "9.mp4"):
        state = path.stat()
        draft = path.with_suffix(".draft")
        draft.write_bytes((videos / other).read_bytes())
        os.utime(draft, ns=(state.st_atime_ns, state.st_mtime_ns))
        draft.rename(path)
        fetched = fetch_clip(replace(clip, probe=None) if other == "9.mp4" else clip, UNIFORM, 0, SMALL, cache)
        assert not fetched.cached and not np.array_equal(fetched.video, before)
        assert np.array_equal(fetched.video, read_clip(clip_of(videos / other), UNIFORM, 0, SMALL))


def test_a_clip_that_changes_while_it_is_decoded_is_not_kept(videos, cache, tmp_path, monkeypatch):
    path = copy_of(videos / "1.mp4", tmp_path / "copies")

    def replaced(*arguments):
        video = read.read_frames(*arguments)
        path.write_bytes((videos / "2.mp4").read_bytes())
        return video

    monkeypatch.setattr(frame_caching, "read_frames", replaced)
    fetch_clip(clip_of(path), UNIFORM, 0, SMALL, cache)
    assert files_in(cache) == []


def test_bad_clips_fail_with_the_same_words_every_time(videos, cache, tmp_path):
    broken = copy_of(videos / "1.mp4", tmp_path / "copies")
    broken.write_bytes(broken.read_bytes()[:300])
    empty = tmp_path / "copies" / "empty.mp4"
    empty.touch()
    fifo = tmp_path / "copies" / "fifo.mp4"
    os.mkfifo(fifo)
    for path in (broken, empty, fifo, tmp_path / "missing.mp4"):
        messages = set()
        for using in (OFF, cache, cache):
            with pytest.raises(VideoError) as error:
                fetch_clip(clip_of(path), UNIFORM, 0, SMALL, using)
            messages.add((error.value.stage, str(error.value)))
        assert len(messages) == 1
        assert not holds_clip(clip_of(path), UNIFORM, SMALL, cache)
    assert files_in(cache) == []
    good = copy_of(videos / "1.mp4", tmp_path / "copies")
    fetch_clip(clip_of(good), UNIFORM, 0, SMALL, cache)
    good.unlink()
    with pytest.raises(VideoError, match="missing"):
        fetch_clip(clip_of(good), UNIFORM, 0, SMALL, cache)


def test_pictures_and_items_are_read_each_time(tmp_path, cache):
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    np.save(tmp_path / "b.npy", np.zeros((2, 8, 8, 3), np.uint8))
    picture, item = Clip("a", str(tmp_path / "a.png")), Clip("b", str(tmp_path / "b.npy"), item=1)
    for clip, there in ((picture, False), (item, True)):
        assert [fetch_clip(clip, UNIFORM, 0, FrameForm(8), cache).cached for _ in range(2)] == [there, there]
    assert not holds_clip(picture, UNIFORM, FrameForm(8), cache) and holds_clip(item, UNIFORM, FrameForm(8), cache)
    assert not Path(cache.folder).exists()


def test_the_environment_says_where_and_how_much(monkeypatch, tmp_path):
    for name, value, expected in (
        ("KINORAY_CACHE", "off", OFF),
        ("KINORAY_CACHE", str(tmp_path), Cache(str(tmp_path))),
        ("KINORAY_CACHE", "", Cache(str(tmp_path / "home" / "kinoray" / "frames"))),
        ("KINORAY_CACHE_BYTES", "1000", Cache(str(tmp_path / "home" / "kinoray" / "frames"), 1000)),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv(name, value)
        assert frame_cache() == expected
    for wrong in ("0", "-1", "many", "1e9"):
        monkeypatch.setenv("KINORAY_CACHE_BYTES", wrong)
        with pytest.raises(UsageError, match="whole number of bytes"):
            frame_cache()


def test_off_touches_no_file(videos, tmp_path, monkeypatch):
    monkeypatch.setenv("KINORAY_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clip = clip_of(videos / "1.mp4")
    assert np.array_equal(fetch_clip(clip, UNIFORM, 0, SMALL, frame_cache()).video, read_clip(clip, UNIFORM, 0, SMALL))
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_an_entry_knows_all_code_that_decides_its_frames():
    import ast

    # Of pictures and vectors nothing is kept.
    known = {"clip", "pictures", "vectors"} | {name.removesuffix(".py") for name in frame_caching.DECODING}
    folder = Path(decode.__file__).parent
    for name in frame_caching.DECODING:
        for node in ast.walk(ast.parse((folder / name).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kinoray.decoding."):
                assert node.module.removeprefix("kinoray.decoding.") in known, (name, node.module)


# The files


@given(
    st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(0, 5), max_size=8), st.integers(0, 99)
)
def test_any_frames_of_any_size_come_back(tmp_path_factory, num_frames, height, width, drawn, seed):
    store = Entries(str(tmp_path_factory.mktemp("entries")), 0)
    video = video_of(seed, num_frames, height, width)
    store.write(NAME, video)
    numbers = np.array([number % num_frames for number in drawn] or [0])
    assert np.array_equal(store.read(NAME), video)
    assert np.array_equal(store.read(NAME, lambda count: numbers), video[numbers])


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
@pytest.mark.parametrize("chosen", [None, lambda count: np.arange(count)])
def test_no_damaged_entry_is_read(tmp_path, chosen, codec):
    """Every cut, every single bit, a lost page, other bytes behind the end."""
    store, video = Entries(str(tmp_path), 0), video_of(num_frames=2, height=4, width=3)
    store.write(NAME, video, packed(video) if codec == "jpeg" else ())
    path = Path(store._path(NAME, entries.ENTRY))
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(len(whole))]
    damaged += [whole + b"\0", whole + whole, b"\0" * len(whole), whole[:64] + b"\0" * (len(whole) - 64)]
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        damaged.append(bytes(changed))
    for content in damaged:
        path.write_bytes(content)
        assert store.read(NAME, chosen) is None
    path.write_bytes(whole)
    assert store.read(NAME, chosen) is not None


def test_a_damaged_entry_is_decoded_and_written_again(videos, cache):
    clip = clip_of(videos / "1.mp4")
    fetch_clip(clip, RANDOM, 0, SMALL, cache)
    (path,) = files_in(cache)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    fetched = fetch_clip(clip, RANDOM, 0, SMALL, cache)
    assert not fetched.cached and np.array_equal(fetched.video, read_clip(clip, RANDOM, 0, SMALL))
    assert path.read_bytes() == whole and fetch_clip(clip, RANDOM, 0, SMALL, cache).cached


def test_a_damaged_note_of_a_digest_harms_nothing(videos, cache):
    clip = clip_of(videos / "1.mp4")
    fetch_clip(clip, UNIFORM, 0, SMALL, cache)
    (note,) = files_in(cache, ".txt")
    text = note.read_text()
    for damaged in (b"", b"\0" * len(text), b"\xff", text[:-1].encode(), b"1 2 3"):
        note.write_bytes(damaged)
        frame_caching._digest.cache_clear()
        assert np.array_equal(fetch_clip(clip, UNIFORM, 0, SMALL, cache).video, read_clip(clip, UNIFORM, 0, SMALL))


def test_the_longest_unused_go_and_the_bound_holds(tmp_path):
    bound = 40 * 4096
    store = Entries(str(tmp_path), bound)
    now = time.time()
    names = [f"{number:032x}" for number in range(100)]
    for number, name in enumerate(names):
        store.write(name, video_of(number))
        os.utime(store._path(name, entries.ENTRY), (now - 1000 + number,) * 2)
        if number == 20:
            os.utime(store._path(names[0], entries.ENTRY), (now + 1000,) * 2)
        assert 4096 * len(list(tmp_path.glob("*/*.frames"))) <= bound
    remaining = [name for name in names if store.has(name)]
    assert remaining[0] == names[0] and remaining[1:] == names[-len(remaining) + 1 :] and 20 < len(remaining) <= 40
    assert not store.trouble


def test_a_read_counts_as_use(tmp_path):
    store = Entries(str(tmp_path), 0)
    store.write(NAME, video_of())
    path, old = store._path(NAME, entries.ENTRY), time.time() - 2 * entries.TOUCH_S
    os.utime(path, (old, old))
    store.read(NAME)
    assert os.stat(path).st_mtime > old + entries.TOUCH_S


def test_an_entry_of_an_eighth_of_the_bound_is_not_kept(tmp_path):
    store = Entries(str(tmp_path), 8 * 900)
    store.write(NAME, video_of())
    assert not store.has(NAME) and not store.trouble


def test_entries_of_earlier_versions_are_not_read_and_go_first(tmp_path):
    earlier = tmp_path / "ab" / f"{NAME}.npy"
    earlier.parent.mkdir()
    np.save(earlier, video_of())
    os.utime(earlier, (time.time() - 1000,) * 2)
    store = Entries(str(tmp_path), 20 * 4096)
    assert not store.has(NAME) and store.read(NAME) is None
    for number in range(20):
        store.write(f"{number:032x}", video_of(number))
    assert not earlier.exists() and store.has(f"{19:032x}")


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "ab").mkdir()
    strange = [tmp_path / "mine.npy", tmp_path / "ab" / "mine.npy", tmp_path / "thesis" / f"{NAME}.frames"]
    for path in strange:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1 << 20))
    store = Entries(str(tmp_path), 20 * 4096)
    for number in range(60):
        store.write(f"{number:032x}", video_of(number))
    assert all(path.exists() for path in strange)


def test_an_entry_that_is_evicted_while_it_is_read_is_read_to_its_end(tmp_path):
    store = Entries(str(tmp_path), 0)
    video = video_of()
    store.write(NAME, video)
    path = store._path(NAME, entries.ENTRY)
    assert np.array_equal(store.read(NAME, lambda count: os.unlink(path) or np.arange(count)), video)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["open", "replace", "write"])
def test_a_full_disk_ends_the_writing_and_nothing_else(videos, cache, monkeypatch, step):
    before, clip = clip_of(videos / "0.mp4"), clip_of(videos / "1.mp4")
    fetch_clip(before, UNIFORM, 0, SMALL, cache)
    if step == "replace":
        monkeypatch.setattr(entries.os, "replace", full)
    else:

        class Full:
            def __init__(self, path, mode):
                full() if step == "open" else Path(path).touch()

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

            write = full

        monkeypatch.setattr(entries, "open", Full, raising=False)
    fetched = [fetch_clip(clip, UNIFORM, 0, SMALL, cache) for _ in range(2)]
    assert not any(f.cached for f in fetched) and np.array_equal(fetched[1].video, read_clip(clip, UNIFORM, 0, SMALL))
    assert "No space left on device" in fetched[0].trouble and "\n" not in fetched[0].trouble
    assert fetched[0].trouble == fetched[1].trouble and cache.folder in fetched[0].trouble
    assert fetch_clip(before, UNIFORM, 0, SMALL, cache).cached, "what is there is still read"
    assert drafts_in(cache) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to the superuser")
def test_a_read_only_folder_is_read(videos, cache):
    before, clip = clip_of(videos / "0.mp4"), clip_of(videos / "1.mp4")
    fetch_clip(before, UNIFORM, 0, SMALL, cache)
    folders = [Path(cache.folder), *(path for path in Path(cache.folder).iterdir() if path.is_dir())]
    try:
        for folder in folders:
            folder.chmod(0o500)
        assert fetch_clip(before, UNIFORM, 0, SMALL, cache).cached
        fetched = fetch_clip(clip, UNIFORM, 0, SMALL, cache)
        assert not fetched.cached and "Permission denied" in fetched.trouble
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_a_folder_that_cannot_be_is_one_line(videos, tmp_path):
    (tmp_path / "file").touch()
    fetched = fetch_clip(clip_of(videos / "1.mp4"), UNIFORM, 0, SMALL, Cache(str(tmp_path / "file" / "cache")))
    assert not fetched.cached and "takes no more clips" in fetched.trouble


def test_a_removed_folder_is_made_again(videos, cache):
    import shutil

    for _ in range(2):
        assert not fetch_clip(clip_of(videos / "1.mp4"), UNIFORM, 0, SMALL, cache).cached
        assert fetch_clip(clip_of(videos / "1.mp4"), UNIFORM, 0, SMALL, cache).cached
        shutil.rmtree(cache.folder)


KILLED = """
import os, signal, sys
import numpy as np
from kinoray.decoding import frame_cache as entries
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
entries.Entries(sys.argv[1], 0).write("ab" * 16, np.zeros((4, 8, 8, 3), np.uint8))
"""


def test_a_killed_writer_leaves_no_entry_and_its_draft_goes(cache):
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED, cache.folder]).returncode == -signal.SIGKILL
    store = Entries(cache.folder, 0)
    assert not store.has(NAME) and len(drafts_in(cache)) == 2
    store.write(NAME, video_of())
    assert len(drafts_in(cache)) == 2, "they may be somebody's who is writing now"
    for draft in drafts_in(cache):
        os.utime(draft, (time.time() - 2 * entries.DRAFT_S,) * 2)
    Entries(cache.folder, 0).write(NAME, video_of())
    assert drafts_in(cache) == [] and store.has(NAME)


CROWD = """
import json, sys
import numpy as np
from pathlib import Path
from kinoray.decoding.frame_cache import Cache, fetch_clip
from kinoray.decoding.clip import Clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.sampling import Sampling

cache, videos, seed = Cache(sys.argv[1], 12 * 4096), Path(sys.argv[2]), int(sys.argv[3])
rng, sums, hits = np.random.default_rng(seed), {}, 0
for number in rng.integers(0, 12, 120).tolist():
    fetched = fetch_clip(Clip("a", str(videos / f"{number}.mp4")), Sampling("uniform", 4), 0, FrameForm(16), cache)
    assert not fetched.trouble, fetched.trouble
    hits += fetched.cached
    assert sums.setdefault(number, int(fetched.video.sum())) == fetched.video.sum()
print(json.dumps([hits, sums]))
"""


def test_processes_share_a_cache_that_is_too_small_for_them(videos, cache):
    """Three at once write, read and evict the same entries: every frame is right, and the bound holds."""
    command = [sys.executable, "-c", CROWD, cache.folder, str(videos)]
    crowd = [subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(3)]
    messages = [json.loads(process.communicate()[0]) for process in crowd]
    expected = {str(n): int(read_clip(clip_of(videos / f"{n}.mp4"), UNIFORM, 0, SMALL).sum()) for n in range(12)}
    for hits, sums in messages:
        assert hits > 0 and sums == {number: expected[number] for number in sums}
    assert 4096 * len(files_in(cache, "")) and drafts_in(cache) == []
    assert 4096 * len([path for path in Path(cache.folder).rglob("*") if path.is_file()]) <= 12 * 4096
