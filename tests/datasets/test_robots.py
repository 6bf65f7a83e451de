"""Robots: twins of the same frames, drawn by a program that is asked once for both; here mostly a stand-in of it."""

import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from kinoray.backbones.tiny import FOLDER
from kinoray.backbones.towers import read_vocabulary, wordpiece
from kinoray.datasets.packages import Drawn, concept_of, find_family, robot_asking, robots
from kinoray.errors import RunFailed, UsageError

STAND_IN = """
import json, sys, time
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    {}
    shape = [asked["frames"], 4, 4, 3]
    frames = b"".join(bytes([10 * frame + number]) * 48 for frame in range(shape[0]))
    sys.stdout.buffer.write(json.dumps({{"shape": shape}}).encode() + b"\\n" + frames)
    sys.stdout.buffer.flush()
"""
UNPACKED = {package.name: Path("/nowhere") / package.name for package in robots.PACKAGES}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], list[Drawn]]]:
    """Gives the first four clips, drawn by a program that does something special first."""

    def clips(special: str = "") -> list[Drawn]:
        program = tmp_path / "stand_in.py"
        program.write_text(STAND_IN.format(special or "pass"))
        monkeypatch.setattr(robot_asking, "PROGRAM", program)
        return list(islice(robots.clips(UNPACKED), 4))

    forget()
    yield clips
    forget()


def forget() -> None:
    robot_asking.frames_of.cache_clear()
    robot_asking.child_of.cache_clear()


def test_every_label_stands_for_as_many_clips_forwards_as_backwards() -> None:
    assert find_family("robots") is not None
    clips = list(robots.clips(UNPACKED))
    assert len({clip.id for clip in clips}) == len(clips) == 2 * 2 * len(robots.PAIRS) * robots.EPISODES
    counts = Counter((clip.task, clip.label, clip.id.partition("/")[2]) for clip in clips)
    assert set(counts.values()) == {robots.EPISODES} and len(counts) == 4 * len(robots.PAIRS)
    for first, second in zip(clips[::2], clips[1::2], strict=True):
        assert concept_of(first.id) == concept_of(second.id) and first.label != second.label
        assert first.captions[0].replace(first.label, second.label) == second.captions[0]


def test_captions_tell_the_scenes_apart_and_are_short_enough_for_the_smallest_towers() -> None:
    captions = {
        robots.caption(label, *scene)
        for tasks in robots.PAIRS.values()
        for label in tasks.values()
        for scene in robots.SCENES
    }
    assert len(captions) == 2 * len(robots.PAIRS) * len(robots.SCENES) == 1280
    pieces = wordpiece(read_vocabulary(FOLDER / "vocab.txt"))
    assert max(len(pieces.encode(caption).ids) for caption in captions) <= 40


def test_windows_are_drawn_by_name_and_lie_anywhere_in_the_path() -> None:
    assert robots.wish("door-open", 5) == robots.wish("door-open", 5) != robots.wish("door-close", 5)
    windows = np.array([robots.wish("door-open", number)["window"] for number in range(robots.EPISODES)])
    starts, ends = windows.T
    assert starts.min() > 0 and ends.max() < 1
    assert ends.min() < starts.max(), "a first frame backwards may be one forwards"


def test_twins_are_the_same_frames_and_cost_one(stand_in: Callable[[str], list[Drawn]]) -> None:
    clips = [pickle.loads(pickle.dumps(clip)) for clip in stand_in("")]
    drawn = [clip.frames() for clip in clips]
    assert [rate for _, rate in drawn] == 4 * [robots.RATE_FPS]
    for number, (forwards, backwards) in enumerate(((drawn[0][0], drawn[1][0]), (drawn[2][0], drawn[3][0]))):
        assert forwards.shape == (robots.FRAMES, 4, 4, 3) and forwards[0, 0, 0, 0] == number, "asked once for both"
        assert np.array_equal(forwards, backwards[::-1]) and np.array_equal(forwards.mean(0), backwards.mean(0))


def test_an_episode_that_the_expert_fails_at_is_left_out(stand_in: Callable[[str], list[Drawn]]) -> None:
    failed = """print(json.dumps({"failed": f"the expert fails in {asked['task']}"}), flush=True); continue"""
    with pytest.raises(UsageError, match=r"^Meta-World: the expert fails in door-open-v3\.$"):
        stand_in(failed)[0].frames()


@pytest.mark.parametrize(
    ("special", "why"),
    [
        ("raise ImportError('there is no OSMesa')", "stopped: ImportError: there is no OSMesa"),
        ("sys.exit()", "stopped: it said nothing"),
        ("time.sleep(60)", r"stopped: it said nothing \(0.5 s are the limit\)"),
        ("print('{\"shape\": [2, 4, 4, 3]}'); sys.exit('no memory')", "stopped: no memory"),
    ],
)
def test_a_program_that_dies_or_hangs_is_said_in_one_line(
    stand_in: Callable[[str], list[Drawn]], monkeypatch: pytest.MonkeyPatch, special: str, why: str
) -> None:
    if "sleep" in special:
        monkeypatch.setattr(robot_asking, "LIMIT_S", 0.5)
    with pytest.raises(RunFailed, match=why) as caught:
        stand_in(special)[0].frames()
    assert "\n" not in str(caught.value)
    assert stand_in("")[0].frames()[0].shape == (robots.FRAMES, 4, 4, 3), "the next call starts another"


def test_two_programs_draw_the_same_bytes() -> None:
    unpacked = Path(os.environ.get("KINORAY_DATA", "/nowhere")) / "robots" / "unpacked"
    if not unpacked.is_dir():
        pytest.skip("KINORAY_DATA has no robots: run `kinoray data fetch robots`")
    clips = {clip.id: clip for clip in robots.clips({p.name: unpacked / p.name for p in robots.PACKAGES})}
    ids = [f"{name}/forwards" for name in ("door-close-v2-3", "drawer-open-v2-51")] + ["door-close-v2-4/backwards"]
    drawn = []
    for order in (ids, ids[::-1]):
        forget()
        drawn.append({id: clips[id].frames()[0] for id in order})
    for id in ids:
        assert np.array_equal(drawn[0][id], drawn[1][id])
        assert drawn[0][id].shape == (12, 64, 64, 3) and np.ptp(drawn[0][id], axis=0).max() > 50, "something moves"
