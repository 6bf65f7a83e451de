"""Single clips read in a process that they may end."""

import os
from pathlib import Path

import numpy as np
import pytest
from support.clips import ends_its_process, grey_ramp, write_clip

from kinoray.data.guarded import TRIES, isolated
from kinoray.decoding.clip import Clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.read_clip import read_clip
from kinoray.decoding.sampling import Sampling
from kinoray.errors import VideoError

UNIFORM = Sampling("uniform", 4)


def test_a_clip_is_read_in_another_process_as_in_this_one(tmp_path: Path) -> None:
    clip = Clip("a", str(write_clip(tmp_path / "a.mp4", grey_ramp(12))))
    assert np.array_equal(
        isolated(read_clip, clip, UNIFORM, 0, FrameForm(16)), read_clip(clip, UNIFORM, 0, FrameForm(16))
    )
    assert isolated(os.getpid) != os.getpid()


def test_what_is_wrong_with_a_clip_is_said_as_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video")
    clip = Clip("a", str(tmp_path / "a.mp4"))
    with pytest.raises(VideoError) as here:
        read_clip(clip, UNIFORM, 0, FrameForm(16))
    with pytest.raises(VideoError) as there:
        isolated(read_clip, clip, UNIFORM, 0, FrameForm(16))
    assert (there.value.stage, str(there.value)) == (here.value.stage, str(here.value))


def test_a_clip_that_ends_its_process_twice_is_an_unreadable_video(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="reading it ended its process twice"):
        isolated(ends_its_process, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == TRIES
    assert isolated(os.getpid) != os.getpid()  # the next clip has a process again
