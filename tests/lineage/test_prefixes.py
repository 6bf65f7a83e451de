"""Shared prefixes: equal to learning it oneself, there whole or not at all, told apart by all that matters."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.growth import Late, Rings, learn, learned, tree
from support.toys import Exemplars, PerBlock, Replays
from support.waiting import wait_until

from kinoray.config import from_task
from kinoray.data.manifest import read_manifest, write_table
from kinoray.disk.durable import sha256
from kinoray.disk.lease import is_leased, lease
from kinoray.errors import CheckpointCorrupt, UsageError
from kinoray.lineage import prefix_key as prefix_keys
from kinoray.lineage import prefixes
from kinoray.lineage.prefixes import (
    adopt,
    best_prefix,
    collect,
    prefix_key,
    prefixes_folder,
    producing,
    publish,
    wait_for,
)
from kinoray.monitoring.run_monitor import RunMonitor
from kinoray.runs import record
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import make_spec
from kinoray.streams import TaskData
from kinoray.testing.engine import resolved
from kinoray.testing.small_stream import on_protocol, tasks_of
from kinoray.training.checkpoint import newest


@pytest.fixture(autouse=True)
def _own_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has its own prefixes (the frame cache stays shared), and does not mind who edits the sources."""
    monkeypatch.setattr(record, "code_digest", prefix_keys._code)
    monkeypatch.setattr(prefixes, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("KINORAY_PREFIX_BYTES", raising=False)


def threads_of(run: Resolved) -> int:
    return make_spec(run, num_workers=0, decode_slots=0, gpu=False, say=lambda text: None).threads


def shared(run: Resolved, stages: int) -> str:
    """Learn some stages and publish them; the last one's key."""
    learn(run, stages, share=True)
    return prefix_key(run, threads_of(run), stages)


# Equality

SHARERS = {"base_moco": "cvlm", "per_block": "ctvr", "exemplars": "cvlm", "late": "ctvr"}
METHODS = {"per_block": PerBlock, "exemplars": Exemplars, "late": Late}


@pytest.mark.parametrize(("name", "protocol"), SHARERS.items())
def test_a_run_that_adopts_equals_one_that_learned_all_itself(name, protocol, micro, tmp_path) -> None:
    stream, method = on_protocol(tasks_of(micro, 3), protocol), METHODS.get(name, name)
    alone = learned(learn(resolved(method, stream, tmp_path / "alone")))
    whole = learned(learn(resolved(method, stream, tmp_path / "source"), share=True))
    assert whole == alone
    for stages in (1, 2, 3):
        run = resolved(method, stream, tmp_path / f"adopts-{stages}")
        assert adopt(run.folder, prefix_key(run, threads_of(run), stages))
        assert newest(run.folder / "checkpoints", print).position.stage == stages
        assert learned(learn(run)) == alone


def test_what_was_adopted_is_counted_apart(micro, tmp_path) -> None:
    stream = tasks_of(micro, 2)
    key = shared(resolved("base_moco", stream, tmp_path / "source"), 1)
    paid = newest(next(tmp_path.glob("source/*/seed-0/checkpoints")), print).state["cost"]
    spent = paid["wall_s"] - paid["start_s"]
    run = resolved("base_moco", stream, tmp_path / "adopts")
    threads_of(run)
    adopt(run.folder, key)
    began = time.monotonic()
    learn(run)
    took = time.monotonic() - began
    from kinoray.runs.result import Result

    cost = Result(run.folder).cost
    assert cost["adopted_s"] == pytest.approx(spent, abs=1e-3)
    assert cost["adopted_train_s"] == pytest.approx(paid["train_s"], abs=1e-3)
    assert cost["adopted_steps"] == 4 and cost["steps"] == 8
    assert cost["wall_s"] <= took
    # What an adopter publishes says what its tasks cost in all.
    third = resolved("base_moco", stream, tmp_path / "third")
    threads_of(third)
    assert publish(run.folder, 2, prefix_key(run, threads_of(run), 2))
    assert adopt(third.folder, prefix_key(third, threads_of(third), 2))
    learn(third)
    own = newest(run.folder / "checkpoints", print).state["cost"]
    again = Result(third.folder).cost
    assert again["adopted_s"] == pytest.approx(spent + own["wall_s"] - own["start_s"], abs=1e-2)
    assert again["adopted_train_s"] == pytest.approx(paid["train_s"] + own["train_s"], abs=1e-2)
    assert Result(third.folder).cost["adopted_steps"] == 8


def test_values_that_matter_later_share_what_came_before_and_differ_after(micro, tmp_path) -> None:
    stream = tasks_of(micro, 2)
    learn(resolved(Late, stream, tmp_path / "a", settings={"distill": 0.0}), 1, share=True)
    run = resolved(Late, stream, tmp_path / "b", settings={"distill": 1.0})
    keys = [prefix_key(run, threads_of(run), stages) for stages in (1, 2)]
    assert best_prefix(keys) == 1 and adopt(run.folder, keys[0])
    forked = learned(learn(run))
    assert forked == learned(learn(resolved(Late, stream, tmp_path / "c", settings={"distill": 1.0})))
    other = learned(learn(resolved(Late, stream, tmp_path / "d", settings={"distill": 0.0})))
    assert forked["log"][:5] == other["log"][:5] and forked["state_digest"] != other["state_digest"]


def test_adopted_logs_and_bad_samples_end_with_the_prefix(micro, tmp_path) -> None:
    stream = tasks_of(micro, 2)
    source = resolved("base_moco", stream, tmp_path / "source")
    learn(source, 1)
    bad = {"id": "x", "uri": "x.mp4", "stage": "open", "error": "VideoError", "message": "no"}
    monitor = RunMonitor(str(source.folder))
    monitor.report_bad([bad | {"task": "paper"}, bad | {"task": "neon"}])
    monitor.log([{"task": 1, "step": 0, "loss": 1.0}])
    with (source.folder / "metrics.jsonl").open("a") as file:
        file.write('{"task": 1, "st')
    key = prefix_key(source, threads_of(source), 1)
    assert publish(source.folder, 1, key)
    run = resolved("base_moco", stream, tmp_path / "adopts")
    threads_of(run)
    assert adopt(run.folder, key)
    assert '"task": 1' not in (run.folder / "metrics.jsonl").read_text()
    assert list(RunMonitor(str(run.folder)).bad) == [("paper", "x")]


# Keys


def base(micro, tmp_path: Path, **options) -> Resolved:
    return resolved(options.pop("method", Late), options.pop("stream", tasks_of(micro, 3)), tmp_path, **options)


def test_keys_are_equal_where_only_later_things_differ(micro, tmp_path) -> None:
    run = base(micro, tmp_path)
    same = [
        base(micro, tmp_path / "elsewhere"),
        base(micro, tmp_path, settings={"distill": 0.9}),
        base(micro, tmp_path, stream=tasks_of(micro, 2)),
        base(micro, tmp_path, stream=tasks_of(micro, 5)),
        base(micro, tmp_path, stream=replace(tasks_of(micro, 3), name="another")),
        base(micro, tmp_path, settings={"planned_tasks": 7}),
    ]
    assert {prefix_key(other, 1, 1) for other in same} == {prefix_key(run, 1, 1)}
    assert prefix_key(same[1], 1, 2) != prefix_key(run, 1, 2)
    assert prefix_key(run, 1, 1, num_workers=1) == prefix_key(run, 1, 1, num_workers=0)


def test_keys_differ_where_anything_differs_that_had_a_say(micro, tmp_path, monkeypatch) -> None:
    three = tasks_of(micro, 3)
    first, second, third = three.tasks
    manifest = read_manifest(first.manifest)
    fewer = write_table(manifest.table.slice(1), tmp_path / "fewer.parquet", manifest.root).path
    others = {
        "method": base(micro, tmp_path, method=Replays),
        "setting": base(micro, tmp_path, settings={"temperature": 0.2}),
        "recipe": base(micro, tmp_path, settings={"learning_rate": 1e-4}),
        "seed": base(micro, tmp_path, seed=1),
        "protocol": base(micro, tmp_path, stream=on_protocol(three, "ctvr")),
        "order": base(micro, tmp_path, stream=replace(three, tasks=(second, first, third))),
        "task": base(micro, tmp_path, stream=replace(three, tasks=(TaskData("paper", fewer), second, third))),
        "name": base(micro, tmp_path, stream=replace(three, tasks=(replace(first, name="x"), second, third))),
    }
    run = base(micro, tmp_path)
    keys = {name: prefix_key(other, 1, 2) for name, other in others.items()}
    keys |= {"one": prefix_key(run, 1, 2), "stages": prefix_key(run, 1, 1), "threads": prefix_key(run, 2, 2)}
    keys["workers"] = prefix_key(run, 1, 2, num_workers=2)
    for place in ("_code", "_methods_digest", "_machine"):
        with monkeypatch.context() as patch:
            patch.setattr(prefix_keys, place, lambda: "other")
            keys[place] = prefix_key(run, 1, 2)
    monkeypatch.setattr(prefix_keys, "_versions", lambda: {"torch": "other"})
    keys["versions"] = prefix_key(run, 1, 2)
    assert len(set(keys.values())) == len(keys)


def test_keys_differ_where_one_run_stores_features_for_later_and_the_other_does_not(micro, tmp_path) -> None:
    """`beta` matters from the second task on, but without it the first one's videos are not stored."""
    stream = replace(on_protocol(micro, "ctvr"), backbone="tiny-clip")
    without, some, more = (
        resolved("frame_fusion_moe", stream, tmp_path, settings={"beta": beta}) for beta in (0.0, 0.3, 0.6)
    )
    assert prefix_key(without, 1, 1) != prefix_key(some, 1, 1) == prefix_key(more, 1, 1)
    assert prefix_key(some, 1, 2) != prefix_key(more, 1, 2)


def test_keys_differ_where_an_argument_of_the_backbone_names_no_folder(micro, tmp_path) -> None:
    names = ("vit-bert", "vit-bert:random", "tiny")
    assert len({prefix_key(base(micro, tmp_path, backbone=name), 1, 1) for name in names}) == 3


def test_keys_differ_where_a_file_of_the_data_or_the_backbone_was_replaced(micro, tmp_path) -> None:
    import shutil

    from kinoray.backbones.tiny import FOLDER

    stream = tasks_of(micro, 1)
    home = tmp_path / "data"
    shutil.copytree(stream.tasks[0].manifest.parent, home)
    copied = write_table(read_manifest(stream.tasks[0].manifest).table, home / "manifest.parquet", home).path
    towers = tmp_path / "towers"
    shutil.copytree(FOLDER, towers)
    run = base(micro, tmp_path, stream=replace(stream, tasks=(TaskData("paper", copied),)), backbone=f"tiny:{towers}")
    keys = {prefix_key(run, 1, 1)}
    vocabulary = towers / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "more\n")
    keys.add(prefix_key(run, 1, 1))
    prefix_keys._files_digest.cache_clear()
    clip = next((home / "clips").glob("*.mp4"))
    clip.write_bytes(clip.read_bytes() + b"\0")
    keys.add(prefix_key(run, 1, 1))
    assert len(keys) == 3


MODULE = """
from support.growth import Late

SHARE = {share}

class Method(Late):
    def encoder(self):
        return SHARE and self.online
"""


def test_two_classes_of_the_same_lines_are_told_apart_by_what_stands_around_them(micro, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    keys, digests = set(), set()
    for share in (1, 2):
        (tmp_path / f"around_{share}.py").write_text(MODULE.format(share=share))
        run = base(micro, tmp_path, method=importlib.import_module(f"around_{share}").Method)
        keys |= {prefix_key(run, 1, 1), prefix_key(base(micro, tmp_path, method=run.method.load()), 1, 1)}
        digests.add(run.method.digest)
    assert len(digests) == len(keys) == 2


SOURCE = """
from kinoray.methods.base_moco import RECIPES, Config
from kinoray.methods.base_moco import Method as Base

class Method(Base):
    uses_num_tasks = {uses}
"""


@pytest.mark.parametrize("uses", [False, True])
def test_a_method_says_whether_it_uses_the_number_of_tasks(uses, micro, tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.format(uses=uses))
    run, longer = (base(micro, tmp_path, method=str(file), stream=tasks_of(micro, n)) for n in (2, 3))
    assert prefix_keys.counts_tasks(run) is uses
    assert (prefix_key(run, 1, 1) != prefix_key(longer, 1, 1)) is uses


@pytest.mark.parametrize(("method", "counts"), [("bmu_moco", False), (Late, False), (PerBlock, False), (Rings, True)])
def test_a_ring_memory_counts_tasks(method, counts, micro, tmp_path) -> None:
    assert prefix_keys.counts_tasks(base(micro, tmp_path, method=method)) is counts


def test_an_edited_method_has_other_keys_and_publishes_nothing_under_them(micro, tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.format(uses=False))
    before = base(micro, tmp_path, method=str(file))
    learn(before, 1)
    file.write_text(SOURCE.format(uses=False) + "    unused = 1\n")
    after = base(micro, tmp_path, method=str(file))
    assert after.folder != before.folder
    assert not publish(before.folder, 1, prefix_key(after, threads_of(after), 1))
    assert publish(before.folder, 1, prefix_key(before, threads_of(before), 1))


def test_joint_training_and_zero_shot_share_nothing(micro, tmp_path) -> None:
    for kind in ({"joint": True}, {"zero_shot": True}):
        with pytest.raises(ValueError, match="no state after 1 tasks"):
            prefix_key(base(micro, tmp_path, **kind), 1, 1)
    with pytest.raises(ValueError):
        from_task(0)


# Whole or not at all


def test_a_damaged_prefix_is_refused_and_removed(micro, tmp_path) -> None:
    source = resolved("base_moco", on_protocol(tasks_of(micro, 2), "ctvr"), tmp_path / "source")
    key = shared(source, 1)
    before = tree(source.folder)
    home = prefixes_folder() / key
    files = [str(path.relative_to(home)) for path in sorted(home.rglob("*")) if path.is_file()]
    assert {"prefix.json", "metrics.jsonl", "checkpoint/method.safetensors", "features/test-0-after-0.arrow"} <= set(
        files
    )
    for number, name in enumerate(files):
        for harm in ("flip", "cut", "gone"):
            assert publish(source.folder, 1, key)
            whole = (home / name).read_bytes()
            (home / name).unlink()  # linked: the source's own must stay
            if harm == "flip" and whole:
                spot = len(whole) // 2
                (home / name).write_bytes(whole[:spot] + bytes([whole[spot] ^ 4]) + whole[spot + 1 :])
            elif harm == "cut" and whole:
                (home / name).write_bytes(whole[:-1])
            target = tmp_path / f"target-{number}-{harm}"
            assert not adopt(target, key), (name, harm)
            assert not target.exists() and not home.exists()
    assert tree(source.folder) == before


def test_a_damaged_source_is_not_published(micro, tmp_path) -> None:
    source = resolved("base_moco", on_protocol(tasks_of(micro, 2), "ctvr"), tmp_path / "source")
    learn(source, 1)
    key = prefix_key(source, threads_of(source), 1)
    for victim in ("checkpoints/stage-001-0-step-00000000/method.safetensors", "features/test-0-after-0.arrow"):
        path = source.folder / victim
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert not publish(source.folder, 1, key)
        path.write_bytes(whole)
    assert not publish(source.folder, 2, prefix_key(source, threads_of(source), 2))
    assert list(prefixes_folder().glob("draft-*")) == []
    assert publish(source.folder, 1, key)


@pytest.mark.parametrize("kind", ["checkpoint", "features"])
def test_a_strangers_record_names_no_file_elsewhere(kind, micro, tmp_path) -> None:
    """A cloned folder of runs may say what it likes; nothing outside the prefix is read, linked or replaced."""
    source = resolved("base_moco", on_protocol(tasks_of(micro, 2), "ctvr"), tmp_path / "source")
    learn(source, 1)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    folder = source.folder / "checkpoints/stage-001-0-step-00000000"
    manifest = json.loads((folder / "manifest.json").read_text())
    far, fact = os.path.relpath(mine, folder), {"bytes": 4, "sha256": sha256(mine)}
    if kind == "checkpoint":
        manifest["files"][far] = fact
    else:
        state = json.loads((folder / "state.json").read_text())
        state["tested"]["features"]["test/0"]["file"] = os.path.relpath(mine, source.folder / "features")
        (folder / "state.json").write_text(json.dumps(state))
        size = (folder / "state.json").stat().st_size
        manifest["files"]["state.json"] = {"bytes": size, "sha256": sha256(folder / "state.json")}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointCorrupt, match="is no name of a file"):
        collect(source.folder, 1, tmp_path / "deep" / "er" / "draft")
    if kind == "checkpoint":
        messages: list[str] = []
        newest(source.folder / "checkpoints", messages.append)
        assert "is no name of a file" in messages[0]
    assert mine.read_text() == "mine" and mine.stat().st_nlink == 1
    assert not publish(source.folder, 1, prefix_key(source, threads_of(source), 1))


@pytest.mark.parametrize("verb", ["publish", "adopt"])
def test_a_failure_at_any_write_leaves_all_or_nothing(verb, micro, tmp_path, monkeypatch) -> None:
    stream = tasks_of(micro, 2)
    source = resolved("base_moco", stream, tmp_path / "source")
    learn(source, 1, share=verb == "adopt")
    key = prefix_key(source, threads_of(source), 1)
    before = tree(source.folder)
    target = resolved("base_moco", stream, tmp_path / "target")
    threads_of(target)
    calls = {"left": 0}

    def failing(real):
        def call(*arguments, **options):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise OSError(28, "No space left on device")
            return real(*arguments, **options)

        return call

    for number in range(1, 200):
        calls["left"] = number
        with monkeypatch.context() as patch:
            for place, name in ((prefixes, "write_text"), (prefixes, "_link"), (prefixes, "sync"), (Path, "rename")):
                patch.setattr(place, name, failing(getattr(place, name)))
            done = publish(source.folder, 1, key) if verb == "publish" else adopt(target.folder, key)
        if calls["left"] > 0:
            assert done
            break
        there = (prefixes_folder() / key).exists() if verb == "publish" else prefixes.has_state(target.folder)
        if there:  # the very last flush failed: it is there, and whole
            break
        assert not done
        assert list(prefixes_folder().glob("draft-*")) == [] and not list(target.folder.rglob("*.tmp-*"))
    assert number > 5
    assert tree(source.folder) == before
    if verb == "publish":
        assert adopt(target.folder, key)
    assert newest(target.folder / "checkpoints", print).position.stage == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from kinoray.lineage import prefixes
prefixes.cache_folder = lambda: Path(sys.argv[1])
left = int(sys.argv[5])
def dying(real):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return call
for place, name in ((prefixes, "write_text"), (prefixes, "_link"), (prefixes, "sync"), (Path, "rename")):
    setattr(place, name, dying(getattr(place, name)))
if sys.argv[2] == "publish":
    prefixes.publish(sys.argv[3], 1, sys.argv[4])
else:
    prefixes.adopt(sys.argv[3], sys.argv[4])
"""


@pytest.mark.parametrize(
    ("verb", "moment"),
    [
        ("publish", 12),
        ("adopt", 8),
        pytest.param("publish", 3, marks=pytest.mark.slow),
        pytest.param("adopt", 2, marks=pytest.mark.slow),
    ],
)
def test_a_kill_leaves_all_or_nothing(verb, moment, micro, tmp_path) -> None:
    stream = tasks_of(micro, 2)
    source = resolved("base_moco", stream, tmp_path / "source")
    learn(source, 1, share=verb == "adopt")
    key = prefix_key(source, threads_of(source), 1)
    target = resolved("base_moco", stream, tmp_path / "target")
    threads_of(target)
    folder = source.folder if verb == "publish" else target.folder
    words = [sys.executable, "-c", KILLED, str(tmp_path / "cache"), verb, str(folder), key, str(moment)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    if verb == "publish":
        assert not (prefixes_folder() / key).exists()
        assert publish(source.folder, 1, key)
    else:
        assert not prefixes.has_state(target.folder)
    alone = learned(learn(resolved("base_moco", stream, tmp_path / "alone")))
    if moment == 2:  # a run that starts over what the kill left
        assert learned(learn(target)) == alone
        return
    assert adopt(target.folder, key)
    assert learned(learn(target)) == alone


def test_only_a_run_without_a_state_of_its_own_adopts(micro, tmp_path) -> None:
    stream = tasks_of(micro, 2)
    key = shared(resolved("base_moco", stream, tmp_path / "source"), 1)
    run = resolved("base_moco", stream, tmp_path / "one")
    learn(run, 1)
    before = tree(run.folder)
    assert not adopt(run.folder, key)
    assert tree(run.folder) == before
    assert not adopt(tmp_path / "fresh", "no-such-key")


# Leases

HOLDS = """
import sys, time
from pathlib import Path
from kinoray.disk.lease import lease
with lease(Path(sys.argv[1])) as is_owner:
    print(is_owner, flush=True)
    time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    return process


def test_one_process_at_a_time_has_a_lease_and_a_killed_one_loses_it(tmp_path) -> None:
    path = tmp_path / "leases" / "key"
    with holder(path) as process:
        with lease(path) as is_owner:
            assert not is_owner
        assert is_leased(path)
        process.kill()
        process.wait()
    assert not is_leased(path)
    with lease(path) as is_owner, lease(path) as again:
        assert is_owner and not again
    assert not path.exists()


def test_a_lease_that_nobody_renews_expires(tmp_path) -> None:
    path = tmp_path / "key"
    with holder(path) as process:
        process.send_signal(signal.SIGSTOP)
        os.utime(path, (time.time() - 100, time.time() - 100))
        with lease(path) as is_owner:
            assert is_owner
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
            assert is_leased(path)
    assert not is_leased(path)


def test_a_lease_is_renewed_while_it_is_held(tmp_path) -> None:
    path = tmp_path / "key"
    with lease(path, expires_s=1.0):
        for _ in range(2):
            os.utime(path, (time.time() - 100,) * 2)  # as if nobody had
            wait_until(lambda: is_leased(path))


def test_waiting_ends_with_the_prefix_or_with_its_producer(tmp_path, monkeypatch) -> None:
    assert not wait_for("key", 10)
    with producing("key") as is_producer:
        assert is_producer
        slept: list[float] = []
        with monkeypatch.context() as patch:
            patch.setattr(prefixes, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
            assert not wait_for("key", 0.3)
        assert 0.3 <= sum(slept) < 2
        (prefixes_folder() / "key").mkdir()
        assert wait_for("key", 10)


RACE = """
import sys, time
from pathlib import Path
from kinoray.lineage import prefixes
prefixes.cache_folder = lambda: Path(sys.argv[1])
Path(sys.argv[1], "ready-" + sys.argv[2]).touch()
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.001)
for number in range(20):
    key = f"key-{number}"
    while not prefixes.is_there(key):
        with prefixes.producing(key) as is_producer:
            if is_producer and not prefixes.is_there(key):
                with Path(sys.argv[1], "learned").open("a") as file:
                    file.write(key + "\\n")
                time.sleep(0.01)
                (prefixes.prefixes_folder() / key).mkdir()
        if not is_producer:
            prefixes.wait_for(key, 10)
"""


@pytest.mark.slow
def test_two_processes_do_not_learn_the_same_prefix(tmp_path) -> None:
    words = [sys.executable, "-c", RACE, str(tmp_path)]
    racers = [subprocess.Popen([*words, str(number)]) for number in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    (tmp_path / "go").touch()
    assert [racer.wait(60) for racer in racers] == [0, 0]
    done = (tmp_path / "learned").read_text().split()
    assert sorted(done) == sorted(f"key-{number}" for number in range(20))


# Room


def test_the_longest_unused_prefix_goes_first(micro, tmp_path, monkeypatch) -> None:
    stream = tasks_of(micro, 1)
    runs = [resolved("base_moco", stream, tmp_path / "runs", seed=seed) for seed in range(3)]
    for run in runs:
        learn(run)
    keys = [prefix_key(run, threads_of(run), 1) for run in runs]
    assert publish(runs[0].folder, 1, keys[0])
    held = sum(path.stat().st_size for path in (prefixes_folder() / keys[0]).rglob("*") if path.is_file())
    monkeypatch.setenv("KINORAY_PREFIX_BYTES", str(int(2.5 * held)))
    assert publish(runs[1].folder, 1, keys[1])
    other = resolved("base_moco", stream, tmp_path / "adopts", seed=0)
    threads_of(other)
    assert adopt(other.folder, keys[0])  # used last
    assert publish(runs[2].folder, 1, keys[2])
    assert [prefixes.is_there(key) for key in keys] == [True, False, True]
    monkeypatch.setenv("KINORAY_PREFIX_BYTES", "1000")
    assert not publish(runs[1].folder, 1, keys[1])
    assert [prefixes.is_there(key) for key in keys] == [True, False, True]
    monkeypatch.setenv("KINORAY_PREFIX_BYTES", "lots")
    with pytest.raises(UsageError, match="whole number"):
        publish(runs[1].folder, 1, keys[1])


def test_a_bound_is_asked_for_before_there_is_any_prefix(monkeypatch) -> None:
    assert not prefixes_folder().exists() and prefixes.bytes_asked_for() is None
    monkeypatch.setenv("KINORAY_PREFIX_BYTES", "1000")
    assert prefixes.bytes_asked_for() == 1000
