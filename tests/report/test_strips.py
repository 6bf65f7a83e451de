"""Frames side by side: read in a process that the clip may end."""

from pathlib import Path

import numpy as np
import pytest
from support.clips import ends_its_process, grey_ramp, write_clip

from kinoray.data.guarded import TRIES
from kinoray.decoding.clip import Clip
from kinoray.report import examples


def test_frames_stand_in_order_beside_each_other(tmp_path: Path) -> None:
    clip = Clip("a", str(write_clip(tmp_path / "a.mp4", grey_ramp(12))))
    picture = np.asarray(examples.strip(clip, frame_px=32))
    shown = [int(picture[16, 16 + n * (32 + examples.GAP_PX), 0]) for n in range(examples.FRAMES)]
    assert picture.shape == (32, 4 * 32 + 3 * examples.GAP_PX, 3) and shown == sorted(set(shown))


def test_frames_of_a_clip_that_was_never_probed_are_as_wide_as_they_are(tmp_path: Path) -> None:
    wide = Clip("a", str(write_clip(tmp_path / "a.mp4", np.repeat(grey_ramp(4), 2, axis=2))))
    assert examples.strip(wide, frame_px=32, num_frames=1).size == (32, 16)


def test_a_clip_that_ends_its_reader_leaves_an_empty_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "_spread_frames", lambda *_: ends_its_process(str(tmp_path)))
    picture = examples.strip(Clip("a", "a.mp4"), frame_px=32)
    assert len(list(tmp_path.iterdir())) == TRIES and (np.asarray(picture) == 255).all()
