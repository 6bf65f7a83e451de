"""`kinoray bundle` and `kinoray verify`: honest bundles are repeated, changed ones never, hostile files are refused."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.forging import (
    TAMPERINGS,
    Files,
    Tampering,
    document,
    forged_at_task,
    hostile,
    packed,
    recomputed,
    sealed_for,
    unpacked,
    with_document,
)
from support.pictures import pictures, spec_on

import kinoray
from kinoray.cli.check import write_method
from kinoray.errors import UsageError
from kinoray.evaluation.protocol import load_protocol
from kinoray.proof import bundle as making
from kinoray.proof import verify as checking
from kinoray.proof.archive import RANKS, read_ranks, write_ranks
from kinoray.proof.cells import cells_of
from kinoray.proof.verify import Verdict, verify
from kinoray.runs.run_spec import RunSpec
from kinoray.streams import Stream
from kinoray.system.durable import write_json
from kinoray.testing.engine import run_spec, spec_of, stopped
from kinoray.testing.small_stream import on_protocol
from kinoray.training.chain import Link, chain_of


def choose_second(patch: pytest.MonkeyPatch) -> None:
    """Let the second task be trained again whatever the seal says."""
    for module in (making, checking):
        patch.setattr(module, "chosen_task", lambda seal, stages: min(2, stages))


@pytest.fixture(scope="module")
def learned(micro: Stream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    spec = spec_of("base_moco", micro, tmp_path_factory.mktemp("learned"))
    run_spec(spec)
    return Path(spec.folder)


@pytest.fixture(scope="module")
def second(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose second task is trained again, from the state before it."""
    folder = tmp_path_factory.mktemp("second")
    with pytest.MonkeyPatch.context() as patch:
        choose_second(patch)
        first = kinoray.bundle(learned, folder / "first.zip", quiet=True)
    return packed(sealed_for(unpacked(first), 2), folder / "second.zip", listed=True)


@pytest.fixture(scope="module")
def files(second: Path) -> Files:
    return unpacked(second)


@pytest.fixture
def always_second(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_second(monkeypatch)


def place(verdict: Verdict) -> str:
    """What the last check says."""
    return verdict.checks[-1].words


# Honest


def test_an_honest_bundle_is_repeated(second: Path, files: Files, micro: Stream) -> None:
    verdict = verify(second, stream=micro)
    assert (verdict.words, verdict.exit_code) == ("repeated", 0), verdict
    kinds = {name.rpartition(".")[2] for name in files}
    assert kinds == {"json", "parquet", "safetensors"}
    text = b"".join(data for name, data in files.items() if name.endswith(".json")).decode()
    assert str(Path.home()) not in text and "/tmp" not in text and "/dev/shm" not in text, "no place of this machine"


def once(spec: RunSpec, folder: Path) -> Path:
    """The bundle of a run."""
    run_spec(spec)
    return kinoray.bundle(spec.folder, folder / "once.zip", quiet=True)


@pytest.mark.usefixtures("always_second")
@pytest.mark.parametrize("method", ["bmu_moco", "er_ring", "avg_pool"])
def test_momentum_replay_and_a_growing_gallery_are_repeated(method: str, micro: Stream, tmp_path: Path) -> None:
    stream = on_protocol(micro, "ctvr") if method == "avg_pool" else micro
    path = once(spec_of(method, stream, tmp_path), tmp_path)
    assert ("runs/0/features.safetensors" in unpacked(path)) == (method == "avg_pool")
    assert verify(path, stream=stream).words == "repeated"


@pytest.mark.usefixtures("always_second")
def test_another_order_of_the_tasks_is_repeated_and_a_counted_budget_is_not_bundled(
    micro: Stream, tmp_path: Path
) -> None:
    options = {"stream": micro, "num_workers": 0, "runs": tmp_path, "quiet": True}
    _, turned = kinoray.run("base_moco", orders=2, **options)
    assert turned.order == 1 and turned.tasks == [task.name for task in micro.tasks[::-1]]
    path = kinoray.bundle(turned, tmp_path / "turned.zip", stream=micro, quiet=True)
    assert verify(path, stream=micro).exit_code == 0
    counted = kinoray.run("base_moco", equal_flops="bmu_moco", **options)
    with pytest.raises(UsageError, match="has its steps from equal_flops=bmu_moco"):
        kinoray.bundle(counted, tmp_path / "counted.zip", stream=micro, quiet=True)


@pytest.mark.usefixtures("always_second")
def test_pictures_are_repeated_with_the_optimizer_kept(tmp_path: Path) -> None:
    stream = pictures(tmp_path)
    path = once(spec_on(stream, "simsiam", tmp_path, keep_optimizer=True, max_steps=2), tmp_path)
    assert "runs/0/optimizer.safetensors" in unpacked(path)
    assert verify(path, stream=stream).words == "repeated"


@pytest.mark.usefixtures("always_second")
def test_a_pretext_without_words_is_repeated(micro: Stream, tmp_path: Path) -> None:
    recipe = replace(micro.recipe, test_frames=6)
    stream = replace(micro, protocol="video-ssl", backbone="tiny-3d", recipe=recipe)
    path = once(spec_of("video_moco", stream, tmp_path, settings={"queue_size": 16, "max_steps": 2}), tmp_path)
    assert verify(path, stream=stream).words == "repeated"


def test_one_stage_for_all_tasks_is_repeated_from_the_beginning(micro: Stream, tmp_path: Path) -> None:
    specs = [spec_of("base_moco", micro, tmp_path, **kind) for kind in ({"joint": True}, {"zero_shot": True})]
    for spec in specs:
        run_spec(spec)
    path = kinoray.bundle([spec.folder for spec in specs], tmp_path / "several.zip", quiet=True)
    assert not [name for name in unpacked(path) if name.endswith("safetensors")]
    verdict = verify(path, stream=micro)
    assert verdict.words == "repeated" and len(verdict.checks) == 2 * 7, verdict


def test_runs_of_several_streams_are_sections(learned: Path, micro: Stream, tmp_path: Path) -> None:
    stream = pictures(tmp_path)
    other = spec_on(stream, "simsiam", tmp_path, max_steps=2)
    run_spec(other)
    path = kinoray.bundle([learned, other.folder], tmp_path / "two.zip", quiet=True)
    assert document(unpacked(path), "bundle.json")["sections"] == {"micro": ["0"], stream.name: ["1"]}
    verdict = verify(path, stream=micro)
    assert verdict.words == "consistent but not repeated" and stream.name in verdict.checks[-1].run
    assert {check.state for check in verdict.checks if "micro" in check.run} == {"ok"}, "the other run is repeated"


def test_nothing_is_written_but_in_temporary_folders(
    second: Path, micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "kinoray" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert verify(second, stream=micro).words == "repeated"
    assert sorted(tmp_path.rglob("*")) == before


# Own data, own method, another machine


def test_own_data_are_asked_for(second: Path, files: Files) -> None:
    assert document(files)["request"]["needs"] == ["data"] and document(files)["request"]["source"] == ""
    verdict = verify(second)
    assert (verdict.words, verdict.exit_code) == ("consistent but not repeated", 4)
    assert "--stream" in place(verdict)


def test_own_code_is_executed_only_by_its_digest(micro: Stream, tmp_path: Path) -> None:
    (file,) = write_method("my_method", tmp_path, single=True)
    spec = spec_of(str(file), micro, tmp_path)
    run_spec(spec)
    path = kinoray.bundle(spec.folder, tmp_path / "own.zip", quiet=True)
    assert "method file" in document(unpacked(path))["request"]["needs"]
    assert not [name for name in unpacked(path) if name.endswith(".py")]
    assert "--method" in place(verify(path, stream=micro))
    assert verify(path, stream=micro, method=str(file)).words == "repeated"
    other = tmp_path / "other" / "my_method.py"
    other.parent.mkdir()
    other.write_text(f"{file.read_text()}\nopen({str(tmp_path / 'executed')!r}, 'w')\n")
    verdict = verify(path, stream=micro, method=str(other))
    assert verdict.exit_code == 4 and "differs from the code of the run's" in place(verdict)
    assert not (tmp_path / "executed").exists()


def test_another_processor_is_a_reason_and_no_failure(
    files: Files, micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = packed(forged_at_task(files, random.Random(0)), tmp_path / "forged.zip", listed=True)
    monkeypatch.setattr(checking, "processor_of", lambda device: "an abacus")
    verdict = verify(forged, stream=micro)
    assert verdict.exit_code == 4 and "an abacus" in place(verdict)


def test_other_data_under_the_same_names_are_no_failure(
    second: Path, micro: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = tuple(
        replace(task, manifest=other.manifest) for task, other in zip(micro.tasks, micro.tasks[::-1], strict=True)
    )
    monkeypatch.setattr(checking, "processor_of", lambda device: "an abacus")  # vectors made there are other data
    verdict = verify(second, stream=replace(micro, tasks=swapped))
    assert verdict.exit_code == 4
    assert "not what the run learned from" in place(verdict) and "-> an abacus" in place(verdict)


# Changed


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda tampering: tampering.name)
def test_a_changed_bundle_is_never_repeated(tampering: Tampering, files: Files, micro: Stream, tmp_path: Path) -> None:
    changed = tampering.change(files, random.Random(1))
    assert changed != files
    path = packed(changed, tmp_path / "changed.zip", listed=tampering.listed)
    try:
        verdict = verify(path, stream=micro)
    except UsageError as error:
        assert "\n" not in str(error) and ("runs/0" in str(error) or "bundle.json" in str(error)), error
    else:
        assert verdict.words == "failed" and verdict.exit_code == 3, verdict
        assert any(word in place(verdict) for word in ("json", "parquet", "safetensors", "task")), place(verdict)


@pytest.mark.parametrize("seed", range(3))
def test_a_fault_in_the_chosen_task_fails_whatever_is_recomputed(
    seed: int, files: Files, micro: Stream, tmp_path: Path
) -> None:
    path = packed(forged_at_task(files, random.Random(seed)), tmp_path / "forged.zip", listed=True)
    verdict = verify(path, stream=micro)
    assert verdict.words == "failed" and "task 2, trained again" in place(verdict), verdict


@pytest.mark.parametrize("code", ["", "0" * 64])
def test_a_recipe_may_gain_settings_after_a_bundle_was_made(
    code: str, files: Files, micro: Stream, tmp_path: Path
) -> None:
    """One that came later was at its default; with the same code it was taken out."""

    def before(values: dict[str, Any]) -> None:
        del values["request"]["recipe"]["stored_frames"]
        values["request"]["code"] = code or values["request"]["code"]

    older = sealed_for(with_document(files, before), 2)
    verdict = verify(packed(older, tmp_path / "older.zip", listed=True), stream=micro)
    assert verdict.words == ("repeated" if code else "failed"), verdict


def test_the_recomputed_bundle_of_an_honest_one_is_the_same(files: Files) -> None:
    """What the forger computes is what the maker does: the tests above change what they mean to."""
    assert document(recomputed(files)) == document(files)


# Hostile


def test_hostile_files_are_refused_in_one_line(files: Files, tmp_path: Path) -> None:
    seen = 0
    for name, path in hostile(files, tmp_path):
        with pytest.raises(UsageError) as refused:
            verify(path)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 700, name
        assert refused.value.exit_code == 2
        seen += 1
    assert seen >= 60


def test_a_name_of_a_strangers_is_no_path(files: Files, tmp_path: Path) -> None:
    """Method, stream and backbone of a bundle are names; what leads to a file of this machine is not looked at."""
    (file,) = write_method("my_method", tmp_path, single=True)
    file.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    for change in (
        {"method": str(file)},
        {"method": f"lwf:{file}"},
        {"source": str(tmp_path)},
        {"source": "../x"},
        {"backbone": f"run:{tmp_path}"},
        {"backbone": f"tiny:{tmp_path}"},
    ):
        forged = with_document(files, lambda values, change=change: values["request"].update(change))
        forged = sealed_for(forged, 2)
        verdict = verify(packed(forged, tmp_path / "forged.zip", listed=True))
        assert verdict.exit_code == 4, verdict
    assert not (tmp_path / "executed").exists()


# What cannot be bundled


def test_what_cannot_be_bundled_says_why_in_one_line(
    micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.zip"
    spec = spec_of("base_moco", micro, tmp_path)
    stopped(spec, 1)
    with pytest.raises(UsageError, match="not finished"):
        kinoray.bundle(spec.folder, out)
    run_spec(spec)
    folder = Path(spec.folder)
    outcome = json.loads((folder / "result.json").read_text())
    for other, words in (
        ({name: value for name, value in outcome.items() if name != "chain"}, "no chain"),
        (outcome | {"chain": [None, outcome["chain"][1]]}, "no chain"),
        (outcome | {"chain": outcome["chain"][::-1]}, "not as the run wrote it"),
        (outcome | {"state": "failed"}, "failed, not finished"),
    ):
        write_json(folder / "result.json", other)
        with pytest.raises(UsageError, match=words):
            kinoray.bundle(folder, out)
    write_json(folder / "result.json", outcome)
    record = json.loads((folder / "run.json").read_text())
    write_json(folder / "run.json", record | {"num_workers": 2})
    with pytest.raises(UsageError, match="2 workers"):
        kinoray.bundle(folder, out)
    write_json(folder / "run.json", record)
    with monkeypatch.context() as patch:
        patch.setattr(making, "code_digest", lambda: "0" * 64)
        with pytest.raises(UsageError, match="code changed"):
            kinoray.bundle(folder, out)
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        kinoray.bundle(folder, out)
    assert out.read_text() == "mine"


@pytest.mark.usefixtures("always_second")
def test_a_run_that_does_not_end_the_same_is_not_bundled(learned: Path, tmp_path: Path) -> None:
    folder = tmp_path / learned.parent.name / learned.name
    shutil.copytree(learned, folder)
    outcome = json.loads((folder / "result.json").read_text())
    frame = kinoray.load(folder).ranks
    tested = cells_of(read_ranks(write_ranks({name: frame[name].tolist() for name in RANKS}), "here"), 2, "here")
    states = ["0" * 64, outcome["states"][1]]
    links = map(Link, states, tested.links(load_protocol("cvlm").stages(2)))
    write_json(folder / "result.json", outcome | {"states": states, "chain": chain_of(links)})
    with pytest.raises(UsageError, match=r"task 1, trained again .*, gives other weights"):
        kinoray.bundle(folder, tmp_path / "out.zip", quiet=True)
    assert not (tmp_path / "out.zip").exists()


# The command line


def test_the_command_line_ends_with_the_verdict_and_its_code(
    kino, learned: Path, second: Path, files: Files, tmp_path: Path
) -> None:
    code, out, err = kino("verify", second)
    assert code == 4 and out.splitlines()[-1] == "consistent but not repeated" and not err
    failed = packed(TAMPERINGS[0].change(files, random.Random(1)), tmp_path / "failed.zip", listed=True)
    code, out, _ = kino("verify", failed)
    assert code == 3 and out.splitlines()[-1] == "failed" and "FAILED" in out
    code, out, _ = kino("verify", failed, "--json")
    assert code == 3 and json.loads(out)["verdict"] == "failed"
    code, out, err = kino("verify", tmp_path / "none.zip")
    assert code == 2 and not out and len(err.splitlines()) == 1
    code, out, err = kino("bundle", learned, "-o", second)
    assert code == 2 and "exists already" in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_stream_that_comes_with_kinoray_is_found_by_its_name(kino, tmp_path: Path) -> None:
    words = ("--stream", "digits-5", "--smoke", "--num-workers", "0", "--runs", tmp_path / "runs", "--quiet")
    assert kino("run", "simsiam", *words)[0] == 0
    assert kino("bundle", "simsiam-*", "--runs", tmp_path / "runs", "-o", tmp_path / "digits.zip")[0] == 0
    code, out, _ = kino("verify", tmp_path / "digits.zip")
    assert code == 0 and out.splitlines()[-1] == "repeated"
