"""A finished run learns one more task: equal to having had it from the start, or refused in one line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.clips import grey_ramp, write_clip
from support.growth import Late, Rings, learned, tree
from support.toys import Exemplars, PerBlock, Replays
from typer.testing import CliRunner

import kinoray
from kinoray.cli.main import app
from kinoray.errors import CheckpointCorrupt, ConfigMismatch, KinorayError, UsageError
from kinoray.execution import beginnings
from kinoray.execution import extend as extending
from kinoray.execution.extend import extend, read_task
from kinoray.execution.run import run
from kinoray.execution.run_monitor import RunMonitor
from kinoray.runs import record
from kinoray.runs.method_source import methods_folder
from kinoray.runs.reopen import recorded_stream
from kinoray.runs.resolve import counts_tasks
from kinoray.runs.result import Result
from kinoray.streams import Stream, TaskData, load_stream
from kinoray.system.durable import sha256
from kinoray.system.signals import Stopped
from kinoray.testing.engine import resolved
from kinoray.testing.small_stream import tasks_of
from kinoray.training import checkpoint
from kinoray.training.checkpoint import newest

WRITES = (
    (beginnings, "write_text"),
    (beginnings, "whole_file"),
    (checkpoint, "write_text"),
    (checkpoint, "sync"),
    (checkpoint, "save_file"),
    (Path, "rename"),
)
"""What beginning an extended run writes with."""


def local(method, stream: Stream, folder: Path, **options):
    return run(method, stream=stream, num_workers=0, runs=folder, quiet=True, **options)


def grown(old, stream: Stream, **options):
    """Extend by the last task of a stream, the others being what was learned."""
    return extend(old, stream.tasks[-1], stream=stream, quiet=True, **options)


METHODS = {
    "base_moco": ("base_moco", "cvlm"),
    "bmu_moco": ("bmu_moco", "cvlm"),
    "per_block": (PerBlock, "ctvr"),
    "exemplars": (Exemplars, "cvlm"),
    "late": (Late, "ctvr"),
}


@pytest.mark.parametrize("name", METHODS)
def test_two_tasks_and_a_third_equal_three_from_the_start(name, micro, tmp_path) -> None:
    method, protocol = METHODS[name]
    two, three = (replace(tasks_of(micro, count), protocol=protocol) for count in (2, 3))
    whole = local(method, three, tmp_path / "whole")
    old = local(method, two, tmp_path / "runs", seed=0)
    before = tree(old.folder)
    new = grown(old, three, method=method)
    assert learned(new.folder) == learned(whole.folder)
    assert new.folder.parts[-2:] == whole.folder.parts[-2:] and new.folder != old.folder
    assert new.cost["adopted_steps"] == 8 and new.cost["steps"] == 12
    assert {name for name in tree(old.folder) if tree(old.folder)[name] != before.get(name)} <= {"lock"}


def test_an_extended_run_can_be_extended_and_is_returned_when_asked_again(micro, tmp_path, monkeypatch) -> None:
    one, two, three = (tasks_of(micro, count) for count in (1, 2, 3))
    first = local("base_moco", one, tmp_path, settings={"learning_rate": 1e-3})
    second = grown(first, two)
    monkeypatch.setattr("kinoray.execution.run._start", lambda *_: pytest.fail("a finished run was started again"))
    assert grown(first, two).outcome == second.outcome
    monkeypatch.undo()
    third = extend(second.folder, three.tasks[2], quiet=True)  # it knows its own stream
    whole = local("base_moco", three, tmp_path / "whole", settings={"learning_rate": 1e-3})
    assert learned(third.folder) == learned(whole.folder)
    assert third.overrides == whole.overrides


def test_all_seeds_of_a_run_are_extended(micro, tmp_path) -> None:
    two = tasks_of(micro, 2)
    for seed in (0, 3):
        local("base_moco", tasks_of(micro, 1), tmp_path, seed=seed, settings={"max_steps": 2})
    (folder,) = tmp_path.iterdir()
    assert [result.seed for result in grown(folder, two)] == [0, 3]


def test_the_threads_of_the_finished_run_are_kept(micro, tmp_path) -> None:
    old = local("base_moco", tasks_of(micro, 1), tmp_path)
    record = json.loads((old.folder / "run.json").read_text())
    (old.folder / "run.json").write_text(json.dumps(record | {"threads": 3}))
    assert grown(Result(old.folder), tasks_of(micro, 2)).run["threads"] == 3


class Interrupted(Late):
    """Sends this process SIGTERM in the second task, once."""

    mark = Path("set by the test")

    def after_step(self, carry, step) -> None:
        if self.task == 1 and step.step == 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stopped_extension_goes_on_with_the_same_call(micro, tmp_path) -> None:
    Interrupted.mark = tmp_path / "mark"
    one, two = tasks_of(micro, 1), tasks_of(micro, 2)
    old = local(Interrupted, one, tmp_path / "runs")
    with pytest.raises(Stopped):
        grown(old, two, method=Interrupted)
    new = grown(old, two, method=Interrupted)
    whole = local(Interrupted, two, tmp_path / "whole")
    assert learned(new.folder) == learned(whole.folder)


def test_videos_that_were_replaced_since_are_not_taken_for_what_was_learned(micro, tmp_path) -> None:
    folder = tmp_path / "mine"
    for number in range(6):
        write_clip(folder / f"{number}.mp4", grey_ramp(8, step=4 + number))
    (folder / "captions.csv").write_text("video,caption\n" + "".join(f"{n}.mp4,a {n}\n" for n in range(6)))
    old = run("base_moco", stream=str(folder), num_workers=0, runs=tmp_path, quiet=True, smoke=True)
    shutil.copy(folder / "1.mp4", folder / "0.mp4")
    with pytest.raises(ConfigMismatch, match="Files of mine were replaced since"):
        extend(old, micro.tasks[0], quiet=True)


def test_a_failure_while_beginning_leaves_nothing_that_a_run_would_take(micro, tmp_path, monkeypatch) -> None:
    old, two = local("base_moco", tasks_of(micro, 1), tmp_path), tasks_of(micro, 2)
    before, calls = tree(old.folder), {"left": 0}

    def failing(real):
        def call(*arguments, **options):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise OSError(28, "No space left on device")
            return real(*arguments, **options)

        return call

    for number in range(1, 100):
        calls["left"] = number
        with monkeypatch.context() as patch:
            for place, name in WRITES:
                patch.setattr(place, name, failing(getattr(place, name)))
            patch.setattr(extending, "run", lambda _: pytest.fail("all was written"))
            with pytest.raises((KinorayError, pytest.fail.Exception), match=r"No space left|all was written"):
                grown(old, two)
        if calls["left"] > 0:
            break
        folders = [path for path in tmp_path.glob("*/seed-0") if path != old.folder]
        if any(list(folder.glob("checkpoints/stage-*")) for folder in folders):
            break  # the very last flush failed: it is there, and whole
    assert number > 5
    assert tree(old.folder) == before
    assert learned(grown(old, two).folder) == learned(local("base_moco", two, tmp_path / "whole").folder)


TESTS = str(Path(__file__).parents[1])
KILLED = """
import sys
sys.path.insert(0, sys.argv[4])
import kinoray.execution.extend as extending
from kinoray.execution import beginnings
from kinoray.training import checkpoint
from support.dying import dying
wrap = dying(int(sys.argv[3]))
for place in (beginnings, checkpoint):
    for name in ("write_text", "whole_file", "sync", "save_file"):
        if hasattr(place, name):
            setattr(place, name, wrap(getattr(place, name)))
from kinoray.streams import TaskData
from pathlib import Path
extending.extend(sys.argv[1], TaskData("neon", Path(sys.argv[2])), num_workers=0, quiet=True)
"""


@pytest.mark.parametrize("moment", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_a_kill_while_beginning_leaves_all_or_nothing(moment, micro, tmp_path) -> None:
    old, two = local("base_moco", tasks_of(micro, 1), tmp_path), tasks_of(micro, 2)
    words = [sys.executable, "-c", KILLED, str(old.folder), str(two.tasks[1].manifest), str(moment), TESTS]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    (begun,) = [path for path in tmp_path.glob("*/seed-0") if path != old.folder]
    assert (begun / "extended.json").exists() and not list(begun.glob("checkpoints/stage-???-?-step-????????"))
    assert learned(grown(old, two).folder) == learned(local("base_moco", two, tmp_path / "whole").folder)
    assert not list(begun.glob("checkpoints/*.tmp-*"))


def test_logs_and_bad_samples_are_taken_over(micro, tmp_path, monkeypatch) -> None:
    """Checkpoints hold the bad samples as well, but for those of earlier versions."""
    old, two = local("base_moco", tasks_of(micro, 1), tmp_path), tasks_of(micro, 2)
    bad = {"task": "paper", "id": "x", "uri": "x.mp4", "stage": "open", "error": "VideoError", "message": "no"}
    RunMonitor(str(old.folder)).report_bad([bad])
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(extending, "run", lambda request: (_ for _ in ()).throw(Stopped("begun", signal.SIGTERM)))
        grown(old, two)
    (begun,) = [path for path in tmp_path.glob("*/seed-0") if path != old.folder]
    assert list(RunMonitor(str(begun)).bad) == [("paper", "x")]
    lines = (old.folder / "metrics.jsonl").read_text().splitlines()
    assert (grown(old, two).folder / "metrics.jsonl").read_text().splitlines()[: len(lines)] == lines


def test_what_was_taken_over_is_counted_apart_also_when_it_was_taken_over_before(micro, tmp_path) -> None:
    one, two, three = (tasks_of(micro, count) for count in (1, 2, 3))
    first = local("base_moco", one, tmp_path)
    paid = newest(first.folder / "checkpoints", print).state["cost"]
    began = time.monotonic()
    second = grown(first, two)
    took = time.monotonic() - began
    assert second.cost["adopted_s"] == pytest.approx(paid["wall_s"] - paid["start_s"], abs=1e-3)
    assert second.cost["adopted_train_s"] == pytest.approx(paid["train_s"], abs=1e-3)
    assert second.cost["adopted_steps"] == 4 and second.cost["steps"] == 8
    assert second.cost["wall_s"] <= took
    own = newest(second.folder / "checkpoints", print).state["cost"]
    third = grown(second, three)
    spent = second.cost["adopted_s"] + own["wall_s"] - own["start_s"]
    assert third.cost["adopted_s"] == pytest.approx(spent, abs=1e-2)
    assert third.cost["adopted_train_s"] == pytest.approx(paid["train_s"] + own["train_s"], abs=1e-2)
    assert third.cost["adopted_steps"] == 8 and third.cost["steps"] == 12


# The number of tasks


def test_a_run_that_made_no_room_is_refused_and_one_that_planned_is_extended(micro, tmp_path) -> None:
    two, three = tasks_of(micro, 2), tasks_of(micro, 3)
    tight = local(Rings, two, tmp_path / "tight")
    with pytest.raises(UsageError, match=r"was planned for 2 tasks.*planned_tasks=3") as error:
        grown(tight, three, method=Rings)
    assert "\n" not in str(error.value)
    roomy = local(Rings, two, tmp_path / "roomy", settings={"planned_tasks": 3})
    whole = learned(local(Rings, three, tmp_path / "whole").folder)
    new = grown(roomy, three, method=Rings)
    assert learned(new.folder) == whole
    assert learned(tight.folder)["state_digest"] != learned(roomy.folder)["state_digest"]
    with pytest.raises(UsageError, match="was planned for 3 tasks"):
        grown(new, tasks_of(micro, 4), method=Rings)


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
    assert counts_tasks(resolved(str(file), micro, tmp_path)) is uses


@pytest.mark.parametrize(("method", "counts"), [("bmu_moco", False), (Late, False), (PerBlock, False), (Rings, True)])
def test_a_ring_memory_counts_tasks(method, counts, micro, tmp_path) -> None:
    assert counts_tasks(resolved(method, micro, tmp_path)) is counts


# A run folder that knows itself


def edited(old: Result, folder: Path, **changes) -> Result:
    """The run with other values in its record, in another folder."""
    place = folder / old.folder.parent.name / old.folder.name
    shutil.copytree(old.folder, place)
    (place / "run.json").write_text(json.dumps(old.run | changes))
    return Result(place)


def test_a_stream_whose_manifests_are_gone_is_made_again_and_another_one_is_refused(folder, tmp_path) -> None:
    stream = load_stream(str(folder))
    old = local("base_moco", replace(stream, tasks=stream.tasks[:1]), tmp_path / "runs", smoke=True)
    for task in stream.tasks:
        task.manifest.unlink()
    assert recorded_stream(old).tasks == stream.tasks[:1] and stream.tasks[0].manifest.is_file()
    other = edited(old, tmp_path / "other", manifests=[str(stream.tasks[1].manifest)])
    with pytest.raises(UsageError, match=r"is not what .* learned from") as error:
        extend(other, stream.tasks[1])
    assert "\n" not in str(error.value)


def test_an_own_methods_code_is_kept_with_the_run_and_vouched_for_by_its_digest(micro, tmp_path) -> None:
    mark = tmp_path / "executed"
    mine = tmp_path / "mine.py"
    mine.write_text((methods_folder() / "base_moco.py").read_text() + f"\nopen({str(mark)!r}, 'a').write('x')\n")
    old = local(str(mine), tasks_of(micro, 1), tmp_path / "runs", settings={"max_steps": 2})
    mine.write_text(mine.read_text() + "# edited\n")
    mark.unlink()
    for name in [name for name in sys.modules if name.startswith("kinoray_user_")]:
        del sys.modules[name]
    assert kinoray.list_runs(tmp_path / "runs") and kinoray.compare([old]) and not mark.exists()
    with pytest.raises(UsageError, match="other code of mine") as error:
        grown(old, tasks_of(micro, 2), method=str(mine))
    assert "\n" not in str(error.value)
    new = extend(old, micro.tasks[1], quiet=True)
    assert mark.exists() and new.run["digests"]["method"] == old.run["digests"]["method"]
    (old.folder / "method.py").write_text("raise SystemExit")
    with pytest.raises(UsageError, match="is not the source that") as error:
        extend(old, micro.tasks[1], quiet=True)
    assert "\n" not in str(error.value)


# Refusals


def test_what_cannot_be_extended_is_refused_in_one_line(micro, tmp_path) -> None:
    one, two = tasks_of(micro, 1), tasks_of(micro, 2)
    old = local("base_moco", one, tmp_path / "runs")
    joint = local("base_moco", two, tmp_path / "joint", joint=True)
    mine = local(Replays, one, tmp_path / "mine")
    record = json.loads((old.folder / "result.json").read_text())
    stopped = tmp_path / "stopped" / "x" / "seed-0"
    stopped.mkdir(parents=True)
    (stopped / "run.json").write_text((old.folder / "run.json").read_text())
    (stopped / "result.json").write_text(json.dumps(record | {"state": "stopped"}))
    lost = edited(old, tmp_path / "lost", manifests=[str(tmp_path / "gone.parquet")])
    cases = [
        (lambda: grown(joint, tasks_of(micro, 3)), "joint training"),
        (lambda: grown(Result(stopped), two), "stopped, not finished"),
        (lambda: extend(old, one.tasks[0], stream=one), "has a task named 'paper' already"),
        (lambda: extend(lost, two.tasks[1]), "learned from micro.*--stream"),
        (lambda: extend(old, two.tasks[1], stream=replace(two, tasks=two.tasks[1:])), "not what .* learned from"),
        (lambda: grown(mine, two), "The method of .*, Replays, is a class.*--method"),
        (lambda: grown(mine, two, method="base_moco"), "not of base_moco"),
        (lambda: extend(tmp_path / "nothing", two.tasks[1], stream=one), "There is no run"),
    ]
    for call, message in cases:
        with pytest.raises(UsageError, match=message) as error:
            call()
        assert "\n" not in str(error.value)
    other = replace(two, recipe=replace(two.recipe, learning_rate=0.5))
    with pytest.raises(ConfigMismatch, match=r"learning_rate: 0.003 -> 0.5"):
        grown(old, other)


def test_a_lost_or_damaged_last_state_is_named(micro, tmp_path) -> None:
    old, two = local("base_moco", tasks_of(micro, 1), tmp_path), tasks_of(micro, 2)
    last = newest(old.folder / "checkpoints", print).folder
    features = next(old.folder.glob("features/test-*"))
    for file in (last / "method.safetensors", features):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CheckpointCorrupt, match=f"cannot be used: .*{file.name} does not match its SHA-256"):
            grown(old, two)
        file.unlink()
        with pytest.raises(
            CheckpointCorrupt, match=r"last state in .* cannot be used: .*No such file.* Run that again with --fresh\."
        ):
            grown(old, two)
        file.write_bytes(whole)
    manifest, log = last / "manifest.json", old.folder / "metrics.jsonl"
    of_another = json.dumps(json.loads(manifest.read_text()) | {"run": "another/seed-0"})
    for file, text, why in (
        (manifest, of_another, "belongs to another run, another/seed-0"),
        (log, "", "no longer has"),
    ):
        own = file.read_text()
        file.write_text(text)
        with pytest.raises(CheckpointCorrupt, match=f"last state in .* cannot be used: .*{why}"):
            grown(old, two)
        file.write_text(own)
    assert list(tmp_path.glob("*/seed-0/run.json")) == [old.folder / "run.json"]
    grown(old, two)


@pytest.mark.parametrize("kind", ["checkpoint", "features"])
def test_a_strangers_record_names_no_file_elsewhere(kind, micro, tmp_path) -> None:
    """A cloned folder of runs may say what it likes; nothing outside of it is read, copied or replaced."""
    old, two = local("base_moco", tasks_of(micro, 1), tmp_path / "runs"), tasks_of(micro, 2)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    folder = newest(old.folder / "checkpoints", print).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    if kind == "checkpoint":
        manifest["files"][os.path.relpath(mine, folder)] = {"bytes": 4, "sha256": sha256(mine)}
    else:
        state = json.loads((folder / "state.json").read_text())
        next(iter(state["tested"]["features"].values()))["file"] = os.path.relpath(mine, old.folder / "features")
        (folder / "state.json").write_text(json.dumps(state))
        size = (folder / "state.json").stat().st_size
        manifest["files"]["state.json"] = {"bytes": size, "sha256": sha256(folder / "state.json")}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointCorrupt, match="is not a valid name of a file"):
        grown(old, two)
    if kind == "checkpoint":
        with pytest.raises(CheckpointCorrupt, match="is not a valid name of a file"):
            newest(old.folder / "checkpoints", print)
    assert mine.read_text() == "mine" and mine.stat().st_nlink == 1


# Task files


@pytest.fixture
def folder(micro, tmp_path) -> Path:
    """Two tasks of one's own, `a` and `b`, from videos of the embedded world."""
    home = tmp_path / "videos"
    home.mkdir()
    lines = ["video,caption,task,split"]
    for task, data in zip("ab", micro.tasks, strict=True):
        for number, path in enumerate(sorted((data.manifest.parent / "clips").glob("*.mp4"))[:6]):
            os.link(path, home / f"{task}{number}.mp4")
            lines.append(f"{task}{number}.mp4,clip {number},{task},{('train', 'test', 'validation')[number % 3]}")
    (home / "captions.csv").write_text("\n".join(lines))
    return home


def test_a_task_file_names_a_folder_or_a_task_of_a_stream(folder, micro, tmp_path, monkeypatch) -> None:
    file = tmp_path / "new.yaml"

    def reads(text: str) -> TaskData:
        file.write_text(text)
        return read_task(file)

    own = load_stream(str(folder))
    assert reads("folder: ./videos\ntask: b") == own.tasks[1]
    assert reads("folder: videos/captions.csv\ntask: a\nname: first") == TaskData("first", own.tasks[0].manifest)
    monkeypatch.setattr("kinoray.execution.extend.load_stream", lambda name: replace(micro, name=name))
    assert reads("task: moving-cvlm:3/neon") == micro.tasks[1] == read_task("moving-cvlm:3/neon")


WRONG = {
    "folder: ./videos": "several tasks (a, b)",
    "folder: ./videos\ntask: c": "no task of videos named 'c'",
    "folder: ./nowhere": "no folder",
    "name: x": "names no data",
    "task: radar": "neither a task file",
    "task: nostream/radar": "no stream named 'nostream'",
    "tusk: x/y": "Did you mean 'task'",
    "name: [1]": "name=[1]",
    "task: *x": "aliases",
    "- a": "`name: value`",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_task_file_is_one_line(text, folder, tmp_path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        read_task(file)
    assert WRONG[text] in str(error.value) and "\n" not in str(error.value)


# The command line


def test_the_command_extends_a_run_by_name(folder, tmp_path) -> None:
    (tmp_path / "new.yaml").write_text("folder: ./videos\ntask: b\nname: more\n")
    alone = tmp_path / "alone"
    alone.mkdir()
    rows = (folder / "captions.csv").read_text().splitlines()
    (alone / "captions.csv").write_text("\n".join(row for row in rows if not row.startswith("b")))
    for path in folder.glob("a*.mp4"):
        os.link(path, alone / path.name)
    mine = tmp_path / "mine.py"
    mine.write_text((methods_folder() / "base_moco.py").read_text())
    old = local(str(mine), load_stream(str(alone)), tmp_path / "runs", smoke=True)
    mine.unlink()  # the run folder knows what it was
    words = ["extend", old.folder.parent.name, "--task", str(tmp_path / "new.yaml"), "--runs", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, [*words, "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    new = next(path for path in (tmp_path / "runs").glob("*/seed-0") if path != old.folder)
    assert Result(new).tasks == ["a", "more"] and Result(new).state == "finished"
    lost = CliRunner().invoke(app, ["extend", "nope", *words[2:]])
    assert isinstance(lost.exception, UsageError) and "no run named 'nope'" in str(lost.exception)


@pytest.fixture(autouse=True)
def _sources_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests do not mind who edits the sources meanwhile."""
    digest = record.code_digest()
    monkeypatch.setattr(record, "code_digest", lambda: digest)
