"""Checkpoints: there whole or not at all, and never loaded when damaged."""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from kinoray.errors import CheckpointCorrupt, RunFailed, StorageFull
from kinoray.training import checkpoint
from kinoray.training.checkpoint import Position, commit, newest, state_digest, take_fence

TENSORS = {
    "method": {"a": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)},
    "optimizer": {"a/step": torch.ones(())},
}


def save(folder: Path, step: int, fence: str | None = None) -> Path:
    return commit(folder, Position(0, 0, step), TENSORS, {"step": step}, fence or take_fence(folder))


def test_what_is_committed_comes_back(tmp_path) -> None:
    save(tmp_path, 7)
    checkpoint = newest(tmp_path, say=pytest.fail)
    assert checkpoint.position == Position(0, 0, 7)
    assert checkpoint.state == {"step": 7}
    assert torch.equal(checkpoint.tensors("method")["a"], TENSORS["method"]["a"])
    assert checkpoint.tensors("best") == {}


def test_the_newest_two_are_kept_and_positions_order_by_stage_phase_step(tmp_path) -> None:
    fence = take_fence(tmp_path)
    order = [Position(0, 0, 3), Position(0, 0, 12), Position(0, 1, 12), Position(0, 2, 0), Position(1, 0, 0)]
    for position in order:
        commit(tmp_path, position, TENSORS, {}, fence)
        assert newest(tmp_path, say=pytest.fail).position == position
    assert sorted(p.name for p in tmp_path.glob("stage-*")) == [p.name for p in order[-2:]]


def test_a_damaged_newest_one_does_not_take_the_place_of_a_good_one(tmp_path) -> None:
    """After a fall back from step 100 to 50, the commits at 60 and 70 are both kept: losing one costs ten steps."""
    for step in (50, 100):
        save(tmp_path, step)
    (tmp_path / Position(0, 0, 100).name / "method.safetensors").write_bytes(b"")
    messages: list[str] = []
    assert newest(tmp_path, say=messages.append).position.step == 50 and "CheckpointCorrupt" in messages[0]
    for step in (60, 70):
        save(tmp_path, step)
    (tmp_path / Position(0, 0, 70).name / "method.safetensors").write_bytes(b"")
    assert newest(tmp_path, say=messages.append).position.step == 60


def damage(path: Path, rng: random.Random) -> None:
    """Cut a file somewhere, flip one bit, or remove it."""
    data = bytearray(path.read_bytes())
    match rng.choice(["cut", "flip", "remove"]):
        case "cut":
            path.write_bytes(data[: rng.randrange(len(data))])
        case "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        case "remove":
            path.unlink()


def test_no_damaged_checkpoint_is_ever_used(tmp_path) -> None:
    """300 random cuts, flips and removals; the one before is used instead, and the reason is said."""
    clean = tmp_path / "clean"
    save(clean, 1)
    save(clean, 2)
    rng = random.Random(0)
    for round in range(300):
        folder = tmp_path / str(round)
        shutil.copytree(clean, folder)
        files = sorted((folder / Position(0, 0, 2).name).iterdir())
        victim = rng.choice(files)
        before = victim.read_bytes()
        damage(victim, rng)
        messages: list[str] = []
        checkpoint = newest(folder, say=messages.append)
        unchanged = victim.exists() and victim.read_bytes() == before
        # A flipped bit in the manifest's own white space or digits may leave it valid JSON; digests still decide.
        if checkpoint.position.step == 2:
            assert unchanged or victim.name == "manifest.json"
            assert checkpoint.state == {"step": 2}
            assert torch.equal(checkpoint.tensors("method")["a"], TENSORS["method"]["a"])
        else:
            assert checkpoint.position.step == 1
            assert len(messages) == 1
            assert messages[0].startswith("CheckpointCorrupt: ")
        shutil.rmtree(folder)


def test_without_any_whole_checkpoint_nothing_is_loaded_and_nothing_overwritten(tmp_path) -> None:
    path = save(tmp_path, 1)
    (path / "state.json").write_text("{}")
    with pytest.raises(CheckpointCorrupt, match=r"state\.json.*--fresh"):
        newest(tmp_path, say=print)
    assert path.exists()


def test_a_checkpoint_stands_where_its_name_says(tmp_path) -> None:
    """A manifest has no digest of its own."""
    save(tmp_path, 6)
    manifest = save(tmp_path, 7) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 7', '"step": 5'))
    messages: list[str] = []
    assert newest(tmp_path, say=messages.append).position.step == 6
    assert "holds the manifest of stage-000-0-step-00000005" in messages[0]


def test_an_orphan_of_an_earlier_attempt_cannot_commit(tmp_path) -> None:
    old = take_fence(tmp_path)
    save(tmp_path, 1)
    with pytest.raises(RunFailed, match="another attempt"):
        save(tmp_path, 2, fence=old)
    assert newest(tmp_path, say=print).position.step == 1


@pytest.mark.parametrize("call", ["fsync", "rename", "write"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_every_failing_write_leaves_the_last_state_and_no_temporary_file(tmp_path, monkeypatch, call, code) -> None:
    """The n-th call fails, for every n until a save passes."""
    fence = take_fence(tmp_path)
    save(tmp_path, 1, fence)
    for nth in range(1, 40):
        count = iter(range(1, 1000))

        def fail(nth: int = nth, count=count) -> None:
            if next(count) == nth:
                raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            if call == "write":
                original = checkpoint.save_file
                patch.setattr(checkpoint, "save_file", lambda *a, f=fail, o=original: (f(), o(*a)))
            elif call == "fsync":
                original_sync = os.fsync
                patch.setattr(os, "fsync", lambda fd, f=fail, o=original_sync: (f(), o(fd)))
            else:
                original_move = Path.rename
                patch.setattr(Path, "rename", lambda s, t, f=fail, o=original_move: (f(), o(s, t)))
            try:
                save(tmp_path, 1 + nth, fence)
            except StorageFull as error:
                assert "free space" in str(error) or "Free space" in str(error)
            else:
                break
        assert not list(tmp_path.glob("*.tmp-*")) and not list(tmp_path.glob("*/*.tmp-*"))
        # A failed sync of the parent comes after the rename: then the new state stands, else the old one.
        assert newest(tmp_path, say=pytest.fail).position.step in (1, 1 + nth)
    else:
        pytest.fail("no save ever passed")
    assert nth > 1


def test_files_and_their_folder_are_on_the_disk_before_the_checkpoint_has_its_name(tmp_path, monkeypatch) -> None:
    """A crash of the machine may not leave the name of a checkpoint without what it holds."""
    done: list[str] = []
    sync, rename = os.fsync, Path.rename

    def notes_sync(handle: int) -> None:
        sync(handle)
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)

    def notes_rename(path: Path, target: Path) -> Path:
        done.append(f"{path.name} -> {target.name}")
        return rename(path, target)

    fence = take_fence(tmp_path)
    monkeypatch.setattr(os, "fsync", notes_sync)
    monkeypatch.setattr(Path, "rename", notes_rename)
    final = save(tmp_path, 7, fence)
    draft = f"{final.name}.tmp-{fence[:8]}"
    named = done.index(f"{draft} -> {final.name}")
    assert {"method.safetensors", "optimizer.safetensors", "state.json", draft} <= set(done[:named])
    assert done[named - 1] == draft and done[named + 1] == tmp_path.name


def test_the_digest_sees_every_value_name_and_shape() -> None:
    digests = {
        state_digest(tensors, facts)
        for tensors in (
            {"a": torch.zeros(2, 3)},
            {"a": torch.zeros(3, 2)},
            {"b": torch.zeros(2, 3)},
            {"a": -torch.zeros(2, 3)},
            {"a": torch.zeros(2, 3, dtype=torch.float64)},
        )
        for facts in ({"s": []}, {"s": [1]})
    }
    assert len(digests) == 10
