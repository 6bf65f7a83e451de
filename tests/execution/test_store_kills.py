"""kill -9 around an append to the feature store: what was committed answers as before, and the run ends bit for bit."""

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kinoray.execution.feature_store import committed_features
from kinoray.testing.engine import digest_of_run, run_spec, spec_of
from kinoray.testing.small_stream import suited
from kinoray.training.checkpoint import newest

KILLED = """
import os, pickle, signal, sys
from pathlib import Path
from kinoray.evaluation import tester
from kinoray.training import checkpoint
from kinoray.testing.engine import run_spec

point, count, spec = sys.argv[1], int(sys.argv[2]), pickle.loads(sys.stdin.buffer.read())
calls = 0

def dies(place):
    global calls
    if place == point:
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)

write, rename = tester.write_features, Path.rename

def writes(*given, **named):
    dies("before the file")
    fact = write(*given, **named)
    dies("file written")
    return fact

def renames(self, target):
    if ".tmp-" in self.name:
        dies("inside the commit")
    made = rename(self, target)
    if ".tmp-" in self.name:
        dies("committed")
    return made

tester.write_features, Path.rename = writes, renames
run_spec(spec)
"""


@pytest.fixture(scope="module")
def undisturbed(micro, tmp_path_factory):
    """A finished run that stores training and test features of each task, its digest and its store."""
    spec = spec_of("frame_fusion_moe", suited("frame_fusion_moe", micro), tmp_path_factory.mktemp("whole"))
    assert run_spec(spec)
    return digest_of_run(spec), committed_features(Path(spec.folder)), Path(spec.folder) / "features"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "count"),
    [("before the file", 3), ("file written", 1), ("file written", 4), ("inside the commit", 5), ("committed", 4)],
)
def test_a_kill_around_an_append_loses_nothing_that_was_committed(point, count, undisturbed, micro, tmp_path) -> None:
    digest, whole, features = undisturbed
    spec = spec_of("frame_fusion_moe", suited("frame_fusion_moe", micro), tmp_path)
    words = [sys.executable, "-c", KILLED, point, str(count)]
    done = subprocess.run(words, input=pickle.dumps(spec), capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-800:]
    checkpoint = newest(Path(spec.folder) / "checkpoints", say=pytest.fail)
    queries = torch.randn(4, 48, generator=torch.Generator().manual_seed(0))
    if checkpoint is not None and checkpoint.state["tested"]["features"]:
        store = committed_features(Path(spec.folder))
        for block in store.blocks:
            ours, theirs = store.block(block.task, block.split), whole.block(block.task, block.split)
            assert torch.equal(ours.features, theirs.features) and ours.ids == theirs.ids
        assert store.search(queries, 3).ids
    assert run_spec(spec) and digest_of_run(spec) == digest
    ended = committed_features(Path(spec.folder))
    assert ended.blocks == whole.blocks and ended.search(queries, 3).ids == whole.search(queries, 3).ids
    files = {path.name for path in (Path(spec.folder) / "features").iterdir()}
    assert files == {path.name for path in features.iterdir()}, "what no commit names is gone"
