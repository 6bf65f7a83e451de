"""Runs as a user starts them, in this process: results, refusals, resume, failures."""

import contextlib
import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.places import REPOSITORY
from support.toys import Exemplars, PerBlock, Replays

import kinoray
from kinoray.data import pipeline
from kinoray.data.manifest import read_manifest, write_table
from kinoray.errors import CheckpointCorrupt, ConfigMismatch, Damaged, RunFailed, StorageFull, UsageError
from kinoray.execution.commits import Commits
from kinoray.execution.dry_run import dry_run
from kinoray.execution.run import _startup_summary, run
from kinoray.execution.run_monitor import RunMonitor
from kinoray.method import StepInfo
from kinoray.runs.record import open_run
from kinoray.runs.request import IN_PROCESS, ray_workers, why_workers
from kinoray.runs.resolve import check_division, default_workers, needs_of
from kinoray.runs.run_folder import hold_run
from kinoray.runs.run_spec import make_spec
from kinoray.streams import TaskData
from kinoray.system.durable import read_jsonl, replace_lines
from kinoray.system.signals import Stopped
from kinoray.testing.engine import resolved
from kinoray.testing.small_stream import on_protocol, tasks_of
from kinoray.training.checkpoint import Phase, Position, newest


def local(method, micro, folder: Path, **options):
    return run(method, stream=micro, num_workers=0, runs=folder, quiet=True, **options)


def test_a_dry_run_counts_the_clips_of_each_task_and_makes_nothing(micro, tmp_path) -> None:
    plain = dry_run("base_moco", stream=micro, num_workers=0, runs=tmp_path, settings={"max_steps": 1})
    assert list(plain["clips"]) == plain["tasks"]
    assert all(
        set(counts) == {"train", "validation", "test"} and min(counts.values()) for counts in plain["clips"].values()
    )
    assert not list(tmp_path.iterdir())
    result = local("base_moco", micro, tmp_path, settings={"max_steps": 1})
    assert str(result.folder.parent) == plain["folder"]


def test_a_run_fills_its_folder_and_the_same_call_returns_it(micro, tmp_path, monkeypatch) -> None:
    result = local("base_moco", micro, tmp_path)
    assert result.state == "finished"
    assert result.matrix.notna().to_numpy().tolist() == [[True, False], [True, True]]
    assert set(result.metrics) >= {"R@1", "R@5", "R@10", "MedR", "MeanR", "FR", "HM"}
    names = {p.name for p in result.folder.iterdir()}
    assert names >= {"run.json", "result.json", "metrics.jsonl", "matrix.parquet", "ranks.parquet", "features"}
    assert len(result.losses.dropna(subset="loss")) == 8
    assert len(result.ranks) == sum(
        len(result.ranks.query(f"after_task == {i} and task == {t}")) for i, t in ((0, 0), (1, 0), (1, 1))
    )
    monkeypatch.setattr("kinoray.execution.run._start", lambda *a: pytest.fail("a finished run was started again"))
    assert local("base_moco", micro, tmp_path).metrics == result.metrics


def test_joint_and_zero_shot_fill_the_last_row_only(micro, tmp_path) -> None:
    zero = local("base_moco", micro, tmp_path, zero_shot=True)
    joint = local("base_moco", micro, tmp_path, joint=True)
    for result in (zero, joint):
        assert result.matrix.notna().to_numpy().tolist() == [[False, False], [True, True]]
        assert result.metrics["FR"] is None
        assert result.metrics["HM"] is None
    assert zero.cost["steps"] == 0
    assert joint.cost["steps"] == 4
    assert zero.metrics != joint.metrics


@pytest.mark.parametrize("protocol", ["cvlm", "ctvr"])
@pytest.mark.parametrize("kind", [{"joint": True}, {"zero_shot": True}])
def test_a_method_that_grows_per_task_has_one_task_in_joint_training_and_zero_shot(
    kind, protocol, micro, tmp_path
) -> None:
    result = local(PerBlock, on_protocol(micro, protocol), tmp_path, **kind)
    assert result.matrix.iloc[-1].notna().all()
    galleries = result.ranks.query("reading == ''").groupby("task")["gallery"].first().tolist()
    assert galleries == ([12, 12] if protocol == "ctvr" else [6, 6])


@pytest.mark.parametrize("protocol", ["cvlm", "ctvr"])
def test_validation_splits_are_ranked_like_tests_for_choosing_between_runs(protocol, micro, tmp_path) -> None:
    stream = on_protocol(micro, protocol)
    tested = []
    for number, task in enumerate(stream.tasks):  # the validation clips as test clips
        manifest = read_manifest(task.manifest)
        swap = {"validation": "test", "test": "validation"}
        swapped = [swap.get(split, split) for split in manifest.table["split"].to_pylist()]
        place = manifest.table.schema.names.index("split")
        table = manifest.table.set_column(place, "split", [swapped])
        tested.append(TaskData(task.name, write_table(table, tmp_path / f"{number}.parquet", manifest.root).path))
    untrained = local("base_moco", stream, tmp_path / "one", zero_shot=True)
    other = local("base_moco", replace(stream, tasks=tuple(tested)), tmp_path / "other", zero_shot=True)
    assert untrained.validation_metrics["R@1"] == other.metrics["R@1"]
    assert other.validation_metrics["R@1"] == untrained.metrics["R@1"]
    assert other.validation_metrics["R@5"] == untrained.metrics["R@5"]


def test_a_growing_gallery_grows(micro, tmp_path) -> None:
    result = local(PerBlock, on_protocol(micro, "ctvr"), tmp_path)
    sizes = result.ranks.groupby(["after_task", "task"])["gallery"].first().to_dict()
    assert sizes == {(0, 0): 6, (1, 0): 12, (1, 1): 12}


def test_a_notebook_class_and_a_file_of_ones_own_run(micro, tmp_path) -> None:
    assert local(Replays, micro, tmp_path).state == "finished"
    source = REPOSITORY / "methods" / "base_moco.py"
    own = tmp_path / "my_moco.py"
    own.write_text(source.read_text())
    mine, packaged = local(str(own), micro, tmp_path), local("base_moco", micro, tmp_path)
    assert mine.method == "my_moco"
    assert mine.outcome["state_digest"] == packaged.outcome["state_digest"]
    assert mine.run["digests"]["method"] == packaged.run["digests"]["method"]


class Interrupts(Replays):
    """Sends this process a signal after a certain step of the first task, once."""

    number = signal.SIGINT
    mark = Path("set by the test")

    def after_step(self, carry, step: StepInfo) -> None:
        if step.step == 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_commits_the_state_and_the_same_call_goes_on(number, micro, tmp_path, capsys) -> None:
    Interrupts.mark, Interrupts.number = tmp_path / "mark", number
    with pytest.raises(Stopped) as stopped:
        local(Interrupts, micro, tmp_path)
    assert stopped.value.exit_code == 128 + number
    result = kinoray.load(next(tmp_path.glob("Interrupts*/seed-0")))
    assert result.state == "stopped"
    capsys.readouterr()
    resumed = run(Interrupts, stream=micro, num_workers=0, runs=tmp_path)
    told = capsys.readouterr().err
    assert "resumes at task 1/2 " in told and ", step 4 of 4" in told
    assert "building the method" in told and "task 2/2 neon, testing" in told
    whole = local(Interrupts, micro, tmp_path / "whole")
    assert resumed.outcome["state_digest"] == whole.outcome["state_digest"]


class Fails(Replays):
    """A method with a bug in its third step."""

    def after_step(self, carry, step: StepInfo) -> None:
        if step.step == 2:
            raise ZeroDivisionError("a bug in the third step")


ONE_LINE_IS_WRONG = """\
from kinoray.methods import base_moco
from kinoray.methods.base_moco import Config


class Method(base_moco.Method):
    def loss(self, batch):
        video = self.online.embed_video(batch.video)
        return video @ video
"""


def test_a_methods_bug_is_one_line_and_the_traceback_is_in_the_log(micro, tmp_path) -> None:
    with pytest.raises(RunFailed, match=r"ZeroDivisionError: a bug in the third step\. The traceback is in .*log\.txt"):
        local(Fails, micro, tmp_path)
    (tmp_path / "fails.py").write_text(ONE_LINE_IS_WRONG)
    with pytest.raises(RunFailed, match=r"fails-micro.*: RuntimeError at fails\.py:8: .*cannot be multiplied"):
        run(tmp_path / "fails.py", stream=micro, num_workers=0, runs=tmp_path, quiet=True)
    folder = next(tmp_path.glob("Fails*/seed-0"))
    assert "after_step" in (folder / "log.txt").read_text()
    result = kinoray.load(folder)
    assert result.state == "failed"
    assert "third step" in result.error


class Diverges(Replays):
    """A loss that is not a number in the second task."""

    def loss(self, batch):
        output = super().loss(batch)
        if int(batch.ids[0]) >> 40:
            output.objectives = output.objectives * float("nan")
        return output


def test_a_loss_that_is_not_finite_stops_and_is_never_committed(micro, tmp_path) -> None:
    import torch

    from kinoray.training.checkpoint import newest

    with pytest.raises(RunFailed, match="loss is nan at step 0 of task 2"):
        local(Diverges, micro, tmp_path)
    checkpoint = newest(next(tmp_path.glob("Diverges*/seed-0")) / "checkpoints", say=print)
    assert checkpoint.position.stage == 1
    assert all(torch.isfinite(v).all() for v in checkpoint.tensors("method").values())


def test_a_damaged_checkpoint_is_passed_over(micro, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.execution.commits.COMMIT_EVERY_S", 1e9)  # on a busy machine there would be two
    Interrupts.mark, Interrupts.number = tmp_path / "mark", signal.SIGINT
    with pytest.raises(Stopped):
        local(Interrupts, micro, tmp_path)
    folder = next(tmp_path.glob("Interrupts*/seed-0"))
    (checkpoint,) = folder.glob("checkpoints/stage-*")
    path = checkpoint / "method.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointCorrupt, match="No intact checkpoint is left"):
        local(Interrupts, micro, tmp_path)
    assert local(Interrupts, micro, tmp_path, fresh=True).state == "finished"
    assert folder.with_name("seed-0.old-1").is_dir()


def test_the_committed_config_must_be_the_one_asked_for(micro, tmp_path) -> None:
    result = local("base_moco", micro, tmp_path)
    record = json.loads((result.folder / "run.json").read_text())
    record["config"]["method"]["m"] = 0.5
    (result.folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(ConfigMismatch, match=r"method\.m: 0\.5 -> 0\.99"):
        local("base_moco", micro, tmp_path)


def test_what_a_killed_writer_left_goes_when_the_run_goes_on(micro, tmp_path) -> None:
    run = resolved("base_moco", micro, tmp_path)
    draft = run.folder / ".evaluation.safetensors.0123.draft"
    draft.parent.mkdir(parents=True)
    draft.write_bytes(b"half")
    os.utime(draft, (0, 0))
    with hold_run(run):
        assert not draft.exists()


def test_two_drivers_cannot_run_the_same_run(micro, tmp_path) -> None:
    with hold_run(resolved("base_moco", micro, tmp_path)), pytest.raises(UsageError, match="another process"):
        local("base_moco", micro, tmp_path)


def test_a_full_disk_is_one_line_and_the_same_call_goes_on(micro, tmp_path, monkeypatch) -> None:
    from kinoray.training import checkpoint

    whole = local("base_moco", micro, tmp_path / "whole")
    save, calls = checkpoint.save_file, iter(range(100))

    def full(*arguments) -> None:
        if next(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(StorageFull, match=r"No space left on device: need about [\d,]+ bytes, [\d,]+ free"):
            local("base_moco", micro, tmp_path)
    assert not list(tmp_path.glob("base_moco*/seed-0/checkpoints/*.tmp-*"))
    assert local("base_moco", micro, tmp_path).outcome["state_digest"] == whole.outcome["state_digest"]


def test_a_disk_that_becomes_read_only_is_told_as_a_full_one(micro, tmp_path, monkeypatch) -> None:
    def read_only(self: RunMonitor, *_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.folder))

    with monkeypatch.context() as patch:
        patch.setattr(RunMonitor, "log", read_only)
        with pytest.raises(StorageFull, match=r"Read-only file system: .*run the same command again") as error:
            local("base_moco", micro, tmp_path)
    assert error.value.exit_code == 1
    assert local("base_moco", micro, tmp_path).state == "finished"


def test_what_cannot_be_tidied_after_a_run_does_not_hide_what_ended_it(tmp_path, monkeypatch) -> None:
    from kinoray.execution import workers

    def tidied(folder: Any, failure: bool = True) -> None:
        if not failure:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))

    monkeypatch.setattr(workers, "forget_start", tidied)
    monkeypatch.setattr(workers, "start_actor", lambda *_: None)
    monkeypatch.setattr(workers.ray, "kill", lambda actor: None)
    ours, spec = SimpleNamespace(label="a/seed-0"), SimpleNamespace(folder=str(tmp_path))
    with pytest.raises(StorageFull), workers.run_actors(ours, spec):  # type: ignore[arg-type]
        raise StorageFull("no room")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bmu_mocco"}, r"no method named 'bmu_mocco'\. Did you mean 'bmu_moco'"),
        ({"stream": "moving-cvml"}, r"no stream named 'moving-cvml'\. Did you mean 'moving-cvlm'"),
        ({"backbone": "tinny"}, r"no backbone named 'tinny'\. Did you mean 'tiny'"),
        ({"settings": {"m_hatt": 0.5}}, r"no setting named 'm_hatt'\. Did you mean 'm_hat'"),
        ({"settings": {"m_hat": 1.5}}, r"m_hat=1\.5: Input should be less than or equal to 1"),
        ({"settings": {"batch_size": "many"}}, r"batch_size='many'"),
        ({"joint": True, "zero_shot": True}, "give one of them"),
        ({"num_workers": -1}, "`num_workers` is -1: it should be"),
        ({"seed": -1}, "`seed` is -1: it should be"),
        ({"method": "./nowhere.py"}, "no method file"),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(options, message, micro, tmp_path) -> None:
    arguments = {"method": "bmu_moco", "stream": micro, "num_workers": 0, "runs": tmp_path} | options
    with pytest.raises(UsageError, match=message) as error:
        run(arguments.pop("method"), **arguments)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("checkpoints"))


def test_the_batch_must_divide_over_the_workers_and_says_which_would(micro, tmp_path) -> None:
    """Refused before Ray starts."""
    with pytest.raises(UsageError, match=r"8 rows per step do not divide evenly among 3 workers\. Use 6 or 9"):
        run("base_moco", stream=micro, num_workers=3, runs=tmp_path, quiet=True)


def test_replayed_rows_must_divide_over_the_workers_too(micro, tmp_path, monkeypatch) -> None:
    """Refused before Ray starts."""
    monkeypatch.setattr("kinoray.system.ray_session.ray_session", None)
    with pytest.raises(UsageError, match=r"2 replayed rows per step do not divide evenly among 4 workers\. Use 4"):
        run(Exemplars, stream=micro, num_workers=4, runs=tmp_path, quiet=True)
    assert not list(tmp_path.rglob("checkpoints"))
    resolved_run = resolved(Exemplars, micro, tmp_path)
    assert needs_of(resolved_run).replay.rows == 2
    check_division(resolved_run, 2)


@pytest.mark.parametrize(("gpus", "workers"), [(0, 1), (1, 1), (2, 2), (3, 2), (5, 4), (8, 8), (32, 8)])
def test_where_nobody_says_how_many_workers_their_number_divides_the_batch(micro, tmp_path, gpus, workers) -> None:
    assert default_workers([resolved("base_moco", micro, tmp_path)], gpus) == workers


def test_more_workers_than_gpus_are_refused_and_never_put_on_cpus(micro, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.system.ray_session.ray_session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("kinoray.system.ray_session.num_cpus", lambda: 16.0)
    monkeypatch.setattr("kinoray.system.ray_session.num_gpus", lambda say: 2)
    monkeypatch.setattr("kinoray.execution.shared_storage.seen_by_all", lambda runs: runs)
    with pytest.raises(UsageError, match=r"num_workers=4, but the cluster has 2 GPUs.*Use num_workers=2"):
        run("base_moco", stream=micro, num_workers=4, runs=tmp_path, quiet=True)
    assert not list(tmp_path.rglob("checkpoints"))


def test_a_run_says_and_records_which_way_it_takes_and_why(micro, tmp_path) -> None:
    ours, two = resolved("base_moco", micro, tmp_path), ray_workers(2, why_workers(1, 2, False))
    make_spec(ours, num_workers=2, decode_slots=1, gpu=False, say=pytest.fail, way=two)
    assert json.loads((ours.folder / "run.json").read_text())["way"] == str(two)
    for way, message in (
        (two, "on 2 Ray workers, as --num-workers 2 asks (TorchTrainer; "),
        (
            ray_workers(1, why_workers(1, None, False)),
            "on 1 Ray worker, the default of a single run (TorchTrainer; ",
        ),
        (
            ray_workers(2, why_workers(3, None, True)),
            "on 2 Ray workers, as workers with resources of their own are ",
        ),
        (ray_workers(2, why_workers(3, None, False)), "on 2 Ray workers, the default where there are GPUs ("),
        (IN_PROCESS, "in this process, as --num-workers 0 asks (no Ray; "),
    ):
        assert message in _startup_summary([ours], way, 4)


def test_a_finished_run_says_where_its_clips_came_from(micro, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KINORAY_CACHE", str(tmp_path / "frames"))
    short = {"settings": {"max_steps": 1}}
    first, second = (local("base_moco", micro, tmp_path / name, **short) for name in ("first", "second"))
    (cached, decoded), again = ([run.cost[f"clips_{how}"] for how in ("cached", "decoded")] for run in (first, second))
    assert decoded > 0 and again == [cached + decoded, 0]
    assert first.run["way"].startswith("in this process, as --num-workers 0 asks (no Ray;")


def test_what_was_trained_before_storage_fails_is_committed(micro, tmp_path, monkeypatch) -> None:
    whole = local("base_moco", micro, tmp_path / "whole")
    checked = pipeline._check

    def missing(rows: Any, group: int, count: int) -> None:
        if group == 2:
            raise RunFailed("red-0.mp4 is missing")
        checked(rows, group, count)

    with monkeypatch.context() as away:
        away.setattr(pipeline, "_check", missing)
        with pytest.raises(RunFailed, match="is missing"):
            local("base_moco", micro, tmp_path)
    assert kinoray.load(next(tmp_path.glob("base_moco*/seed-0"))).state == "failed"
    assert newest(next(tmp_path.glob("base_moco*/seed-0/checkpoints")), say=print).position.step == 2
    assert local("base_moco", micro, tmp_path).outcome["state_digest"] == whole.outcome["state_digest"]


def test_a_run_that_goes_on_elsewhere_says_so(micro, tmp_path) -> None:
    run = resolved("base_moco", micro, tmp_path)

    def notes(num_workers: int, gpu: bool) -> list[str]:
        told: list[str] = []
        make_spec(run, num_workers=num_workers, decode_slots=0, gpu=gpu, say=told.append)
        return told

    open_run(run, 1, 0, pytest.fail)
    assert "device" not in json.loads((run.folder / "run.json").read_text()), "not known yet"
    assert notes(0, False) == [] and notes(1, False) == [], "no worker and one are the same place"
    record = json.loads((run.folder / "run.json").read_text())
    assert (record["device"], record["precision"]) == ("cpu", "float32")
    (note,) = notes(2, True)
    assert "device: cpu -> cuda; precision: float32 -> bfloat16; ranks: 1 -> 2" in note and "last bits" in note


def test_settings_have_one_owner_and_land_in_the_record(micro, tmp_path) -> None:
    run = resolved("bmu_moco", micro, tmp_path, settings={"m_hat": 0.9, "learning_rate": "1e-4"})
    assert run.settings["m_hat"] == 0.9
    assert run.recipe.learning_rate == 1e-4
    assert run.overrides == {"m_hat": 0.9, "learning_rate": 1e-4}


def test_the_name_of_a_run_follows_from_all_that_can_change_its_result(micro, tmp_path) -> None:
    def folder(**options) -> str:
        return resolved(
            options.pop("method", "bmu_moco"), options.pop("stream", micro), tmp_path, **options
        ).folder.parent.name

    names = [
        folder(),
        folder(method="base_moco"),
        folder(settings={"m": 0.9}),
        folder(settings={"epochs": 3}),
        folder(joint=True),
        folder(stream=replace(micro, tasks=micro.tasks[::-1])),
    ]
    assert len(set(names)) == len(names)
    assert folder(seed=3) == names[0]
    assert folder(settings={"m": 0.99}) == names[0]


def half_way(micro, folder: Path, seed: int = 0) -> Path:
    """The folder of a run that was killed before its result was written, with two whole checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Commits, "keep_last", lambda self, position: None)
        result = local("base_moco", micro, folder, seed=seed)
    for name in ("result.json", "matrix.parquet", "ranks.parquet"):
        (result.folder / name).unlink()
    return result.folder


@pytest.mark.parametrize("left", ["nothing", "half of it", "all of it"])
def test_of_a_finished_run_the_final_commit_stays_alone_wherever_it_is_killed(micro, tmp_path, left: str) -> None:
    """What a kill behind the result leaves of the commit before is in nobody's way."""
    one, two = tasks_of(micro, 1), tasks_of(micro, 2)
    with pytest.MonkeyPatch.context() as patch:
        if left != "nothing":
            patch.setattr(Commits, "keep_last", lambda self, position: None)
        result = local("base_moco", one, tmp_path)
    earlier, last = Position(0, Phase.EVALUATE).name, Position(1).name
    there = sorted(path.name for path in (result.folder / "checkpoints").glob("stage-*"))
    assert there == ([last] if left == "nothing" else [earlier, last])
    if left == "half of it":
        (result.folder / "checkpoints" / earlier / "manifest.json").unlink()
    digest, opened, again = (
        result.outcome["state_digest"],
        kinoray.open_method(result),
        local("base_moco", one, tmp_path),
    )
    assert opened.encode_text(["a red square"]).isfinite().all()
    assert again.state == "finished" and again.finished_at == result.finished_at, "nothing was done again"
    longer = kinoray.extend(result, two.tasks[-1], stream=two, quiet=True)
    assert longer.outcome["state_digest"] == local("base_moco", two, tmp_path / "whole").outcome["state_digest"]
    (result.folder / "result.json").unlink()
    assert local("base_moco", one, tmp_path).outcome["state_digest"] == digest


def test_a_checkpoint_of_another_run_is_passed_over(micro, tmp_path, capsys) -> None:
    ours, other = (half_way(micro, tmp_path, seed) for seed in (0, 1))
    digest = local("base_moco", micro, tmp_path / "whole").outcome["state_digest"]
    last = max(path.name for path in (ours / "checkpoints").glob("stage-*"))
    shutil.rmtree(ours / "checkpoints" / last)
    shutil.copytree(other / "checkpoints" / last, ours / "checkpoints" / last)
    capsys.readouterr()
    done = run("base_moco", stream=micro, num_workers=0, runs=tmp_path)
    assert done.outcome["state_digest"] == digest
    assert f"{last} belongs to another run, {other.parent.name}/seed-1." in capsys.readouterr().err


def test_whoever_reads_checkpoints_passes_over_those_of_another_run_whatever_its_folder_is_called(
    micro, tmp_path, caplog
) -> None:
    ours, other = (half_way(micro, tmp_path, seed) for seed in (0, 1))
    ours = ours.rename(tmp_path / "renamed")
    before, last = sorted(path.name for path in (ours / "checkpoints").glob("stage-*"))
    assert kinoray.momentum_weights(ours)[0] == (2, 0, 0) and not caplog.text
    for name, left in ((last, before), (before, "")):
        shutil.rmtree(ours / "checkpoints" / name)
        shutil.copytree(other / "checkpoints" / name, ours / "checkpoints" / name)
        if left:
            kinoray.open_method(ours)
            assert f"Using {before} instead" in caplog.text
            assert kinoray.momentum_weights(ours)[0] == (1, 2, 0)
    for read in (kinoray.momentum_weights, kinoray.open_method, kinoray.feature_store):
        with pytest.raises(CheckpointCorrupt, match="belongs to another run"):
            read(ours)


@pytest.mark.parametrize("code", [0, 15])
def test_an_actor_that_is_killed_within_a_call_is_one_that_ended_and_a_signal_is_not(
    micro, tmp_path, monkeypatch, code: int
) -> None:
    result = local("base_moco", micro, tmp_path)

    def exits(*words: object) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("kinoray.execution.feature_store.live_actor", lambda *words: object())
    monkeypatch.setattr("kinoray.execution.momentum_store.call", exits)
    with pytest.raises(SystemExit) if code else contextlib.nullcontext():
        assert kinoray.momentum_weights(result)[0] == (2, 0, 0)


@pytest.mark.parametrize("state", ["stopped", "finished"])
@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_damaged_record_is_one_line_that_names_it(micro, tmp_path, kino, name: str, state: str) -> None:
    whole = local("base_moco", micro, tmp_path)
    file = whole.folder / name
    if state == "stopped":
        outcome = json.loads((whole.folder / "result.json").read_text())
        (whole.folder / "result.json").write_text(json.dumps(outcome | {"state": "stopped"}))
    own = file.read_bytes()
    damages = (own[: len(own) // 2], b"", b"\x80" + own[1:], b"\0" * len(own), b"[1, 2]", b"{}")
    for damaged in damages:
        file.write_bytes(damaged)
        for ask in (lambda: local("base_moco", micro, tmp_path), lambda: kinoray.load(whole.folder).state):
            with pytest.raises(Damaged, match=rf"{name} is damaged \(.*\)\. (Put back its own|Remove it), ") as error:
                ask()
            assert error.value.exit_code == 1 and "\n" not in str(error.value)
    code, _, err = kino("compare", whole.folder)
    assert code == 1 and err.count("\n") == 1 and f"{name} is damaged" in err
    if name == "result.json":
        file.unlink()
        assert local("base_moco", micro, tmp_path).outcome["state_digest"] == whole.outcome["state_digest"] is not None


def test_a_damaged_table_is_one_line_that_names_it(micro, tmp_path) -> None:
    result = local("base_moco", micro, tmp_path)
    (result.folder / "ranks.parquet").write_bytes((result.folder / "ranks.parquet").read_bytes()[:-9])
    with pytest.raises(Damaged, match=r"ranks\.parquet is damaged \(.*\)\. Remove result\.json beside it, and give"):
        _ = result.ranks
    (result.folder / "result.json").unlink()
    assert len(local("base_moco", micro, tmp_path).ranks)


def test_a_result_of_another_run_is_refused(micro, tmp_path) -> None:
    local("base_moco", micro, tmp_path, seed=1)
    ours = half_way(micro, tmp_path)
    shutil.copy(ours.with_name("seed-1") / "result.json", ours / "result.json")
    for ask in (lambda: local("base_moco", micro, tmp_path), lambda: kinoray.load(ours).state):
        with pytest.raises(Damaged, match=r"result\.json belongs to another run, .*/seed-1\. Remove it"):
            ask()


def test_a_record_of_another_run_is_refused(micro, tmp_path) -> None:
    ours, other = (half_way(micro, tmp_path, seed) for seed in (0, 1))
    shutil.copy(other / "run.json", ours / "run.json")
    with pytest.raises(ConfigMismatch, match=r"run\.json belongs to another run, .*/seed-1\."):
        local("base_moco", micro, tmp_path)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([], ""),
        ([11], "CheckpointCorrupt: stage-001-0-step-00000004 needs steps that "),
        ([10, 11], "metrics.jsonl no longer has. Using stage-001-0-step-00000000 instead."),
        ([1, 10], "metrics.jsonl has lost 2 steps, step 1 of task 1 first; no result depends on them."),
    ],
)
def test_a_checkpoint_that_the_log_does_not_reach_is_passed_over_and_other_holes_are_said(
    micro, tmp_path, capsys, monkeypatch, lost: list[int], said: str
) -> None:
    """Of two tasks with eight steps each, stopped after four of the second; a disk lost what was not synced."""
    options: dict[str, Any] = {"stream": micro, "num_workers": 0, "runs": tmp_path, "settings": {"max_steps": 8}}
    monkeypatch.setattr("kinoray.execution.commits.COMMIT_EVERY_S", 1e9)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("kinoray.execution.run_monitor.FLUSH_S", -1)
        patch.setattr(RunMonitor, "stop_requested", lambda self: self.newest[:2] >= (1, 0))
        run("base_moco", **options)
    digest = run("base_moco", **options | {"runs": tmp_path / "whole"}).outcome["state_digest"]
    (log,) = tmp_path.glob("base_moco*/seed-0/metrics.jsonl")
    steps = [record for record in read_jsonl(log) if "loss" in record]
    assert len(steps) == 12
    replace_lines(log, [step for number, step in enumerate(steps) if number not in lost])
    capsys.readouterr()
    done = run("base_moco", **options)
    err = capsys.readouterr().err
    assert said in err and ("metrics.jsonl" in err) == bool(lost) and ("CheckpointCorrupt" in err) == (11 in lost)
    assert done.outcome["state_digest"] == digest
    assert len(done.losses.dropna(subset="loss")) == (14 if "has lost" in said else 16)
    run("base_moco", **options)
    assert ("has lost" in capsys.readouterr().err) == ("has lost" in said), "of a finished run, too"


@pytest.mark.parametrize("left", [0, 2])
def test_a_log_that_no_checkpoint_can_count_on_stops_the_run(micro, tmp_path, left: int) -> None:
    folder = half_way(micro, tmp_path)
    log = folder / "metrics.jsonl"
    replace_lines(log, read_jsonl(log)[:left])
    before = sorted((folder / "checkpoints").glob("stage-*"))
    with pytest.raises(CheckpointCorrupt, match=r"metrics\.jsonl no longer has\. No intact"):
        local("base_moco", micro, tmp_path)
    assert sorted((folder / "checkpoints").glob("stage-*")) == before, "nothing is overwritten"
    assert local("base_moco", micro, tmp_path, fresh=True).state == "finished"


def test_the_log_is_on_the_disk_before_a_checkpoint_and_a_full_disk_there_is_one_line(
    micro, tmp_path, monkeypatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        if synced.count("metrics.jsonl") == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noted)
        with pytest.raises(StorageFull, match=r"No space left on device: need about [\d,]+ bytes, "):
            local("base_moco", micro, tmp_path)
    ours = [name for name in synced if name == "metrics.jsonl" or name.startswith(".manifest.json.")]
    assert ours[0] == ours[2] == "metrics.jsonl" != ours[1] and len(ours) == 3
    assert local("base_moco", micro, tmp_path).state == "finished"


def test_a_run_that_is_refused_before_its_first_step_leaves_no_folder(micro, tmp_path) -> None:
    def refused(settings: dict[str, int]) -> None:
        with pytest.raises(UsageError, match="must be a multiple of 8 px"):
            run("base_moco", stream=micro, num_workers=0, runs=tmp_path, quiet=True, settings=settings)

    refused({"size_px": 33})
    assert not [*tmp_path.iterdir()]
    begun = resolved("base_moco", micro, tmp_path, settings={"size_px": 33})
    open_run(begun, 1, 0, print)
    refused({"size_px": 33})
    assert (begun.folder / "run.json").is_file(), "what was there stays"
