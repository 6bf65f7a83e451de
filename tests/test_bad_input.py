"""What a user can get wrong, through the command line: one clear line, a documented exit code, nothing lost."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.clips import write_clip
from support.places import REPOSITORY
from support.waiting import wait_until

import kinoray
from kinoray.system import pool

Kino = Callable[..., tuple[int, str, str]]
CLIPS = 24
QUICK = ("--num-workers", "0", "--quiet", "--set", "batch_size=4")


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    """A folder of two tasks with 12 videos each: 8 for training, 2 for validation, 2 for test."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "video": f"{number:02d}.mp4",
            "caption": f"clip number {number}",
            "task": "ab"[number // 12],
            "split": ("test", "validation", *["train"] * 4)[number % 6],
        }
        for number in range(CLIPS)
    ]
    for row in rows:
        write_clip(tmp_path / "mine" / row["video"], rng.integers(0, 255, (3, 32, 32, 3), np.uint8))
    with (tmp_path / "mine" / "captions.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    yield tmp_path / "mine"
    # Videos read ahead of a run that failed are missing once the folder is gone, and would be waited for.
    wait_until(lambda: not pool.pending)


def ruin(folder: Path, which: slice) -> set[str]:
    """Overwrite training videos; the names of those ruined."""
    training = [f"{number:02d}.mp4" for number in range(CLIPS) if number % 6 >= 2]
    for name in training[which]:
        (folder / name).write_bytes(b"no video" * 99)
    return set(training[which])


def refusal(outcome: tuple[int, str, str], code: int, *messages: str) -> None:
    """The outcome is this exit code and one line on stderr that says all this."""
    exit_code, out, err = outcome
    assert (exit_code, out, len(err.splitlines())) == (code, "", 1), outcome
    for part in messages:
        assert part in err, err


# Refused before anything starts


def test_a_folder_is_no_method_and_a_missing_folder_no_stream(kino: Kino, mine: Path, tmp_path: Path) -> None:
    refusal(kino("run", mine), 2, "is a folder, not a method", "as the stream")
    refusal(kino("run", "base_moco", "--stream", tmp_path / "gone", *QUICK), 2, "There is no folder", "captions.csv")


def test_an_empty_folder_and_a_caption_without_its_video(kino: Kino, mine: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refusal(kino("run", "base_moco", "--stream", tmp_path / "empty", *QUICK), 2, "no caption file", "captions.jsonl")
    (mine / "03.mp4").unlink()
    refusal(kino("run", "base_moco", "--stream", mine, *QUICK), 2, "1 of 24 videos are not in the folder", "'03.mp4'")


def test_a_runs_folder_that_cannot_be_written(kino: Kino, mine: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, why in ((tmp_path / "file" / "runs", "Not a directory"), (Path("/proc/runs"), "No such file")):
        refusal(kino("run", "base_moco", "--stream", mine, *QUICK, "--runs", place), 2, "Cannot write", why, "--runs")


def test_a_backbone_is_checked_before_ray_starts(kino: Kino, mine: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.system.ray_session.ray_session", None)
    words = ("run", "base_moco", "--stream", mine, "--runs", tmp_path / "runs", "--backbone", "tinny")
    refusal(kino(*words), 2, "no backbone named 'tinny'", "'tiny'")


# Unreadable videos


def test_corrupt_videos_within_the_limit_are_left_out_and_listed(kino: Kino, mine: Path, tmp_path: Path) -> None:
    ruined = ruin(mine, slice(0, None, 2))
    options = ("--runs", tmp_path / "runs", "--set", "max_bad_fraction=0.5", "--set", "epochs=1")
    code, _, err = kino("run", "base_moco", "--stream", mine, *QUICK, *options)
    assert (code, err) == (0, "")
    (result,) = kinoray.list_runs(tmp_path / "runs")
    bad = kinoray.load(result["folder"]).bad_samples
    assert set(bad["uri"]) == ruined and len(bad) == len(ruined) == 8
    assert set(bad["stage"]) == {"open"} and bad["message"].str.len().min() > 5


@pytest.mark.parametrize(
    ("which", "messages"),
    [
        (
            slice(0, None, 2),
            [
                "of 24 clips are unreadable (limit 5%)",
                "All found so far are listed in",
                "bad_samples.jsonl",
                "max_bad_fraction",
            ],
        ),
        (slice(None), ["All 8 training clips of task a are unreadable", "Repair the files"]),
    ],
)
def test_too_many_corrupt_videos_stop_the_run(
    kino: Kino, mine: Path, tmp_path: Path, which: slice, messages: list
) -> None:
    ruin(mine, which)
    options = ("--runs", tmp_path / "runs")
    refusal(kino("run", "base_moco", "--stream", mine, *QUICK, *options), 1, "BadData: ", *messages)
    (run,) = kinoray.list_runs(tmp_path / "runs")
    assert run["state"] == "failed" and "BadData" in run["error"]


def test_no_corrupt_video_makes_an_empty_list(kino: Kino, mine: Path, tmp_path: Path) -> None:
    outcome = kino("run", "base_moco", "--stream", mine, *QUICK, "--smoke", "--runs", tmp_path / "runs")
    assert outcome[0] == 0, outcome
    (run,) = kinoray.list_runs(tmp_path / "runs")
    assert len(kinoray.load(run["folder"]).bad_samples) == 0


# A method of one's own


def test_a_bug_in_the_third_step_is_one_line_and_the_repaired_method_goes_on(
    kino: Kino, mine: Path, tmp_path: Path
) -> None:
    whole = (REPOSITORY / "methods" / "base_moco.py").read_text()
    head = whole.index('"""\n', whole.index('"""', whole.index("    def after_step(self, ")) + 3) + 4
    bug = "        if step.step == 2:\n            raise KeyError('no such clip')\n"
    file = tmp_path / "own.py"
    file.write_text(whole[:head] + bug + whole[head:])
    words = ("run", file, "--stream", mine, *QUICK, "--runs", tmp_path / "runs")
    error = f"KeyError at own.py:{whole[:head].count(chr(10)) + 2}: 'no such clip'"
    refusal(kino(*words), 1, "RunFailed: ", error, "log.txt", "committed state stands")
    (run,) = kinoray.list_runs(tmp_path / "runs")
    assert "after_step" in (Path(run["folder"]) / "log.txt").read_text()
    file.write_text(whole)
    assert kino(*words)[0] == 0
    assert kinoray.list_runs(tmp_path / "runs")[0]["state"] == "finished"


# Signals, disks and machines: processes of their own


def start(*words: object, **variables: str) -> subprocess.Popen[str]:
    """The command line as a process group of its own, so that Ctrl-C can reach all of it as in a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "kinoray", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"NO_COLOR": "1"} | variables,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def has_steps(runs: Path, count: int) -> bool:
    """Whether a run has logged so many steps."""
    return any(file.read_text().count('"loss"') >= count for file in runs.glob("*/seed-0/metrics.jsonl"))


def members(session: int) -> list[str]:
    """Commands of a session's live processes."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                commands.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return commands


def await_all_gone(process: subprocess.Popen[str]) -> None:
    """Wait until nothing that the process started is left; Ray's own processes may take some seconds."""
    wait_until(lambda: not members(process.pid), every_s=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "Interrupted"), (signal.SIGTERM, "Terminated")])
def test_a_signal_while_the_stream_is_rendered_is_one_line_and_leaves_no_process(number, word, tmp_path: Path) -> None:
    process = start("run", "base_moco", "--smoke", *QUICK, "--runs", tmp_path / "runs", XDG_CACHE_HOME=str(tmp_path))
    wait_until(lambda: list(tmp_path.glob("kinoray/moving-cvlm-*/draft-*/*.mp4")), process)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert err.strip() == f"{word}. Run the same command again to resume from the last saved state."
    await_all_gone(process)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_ray_trains_commits_the_state_and_leaves_no_process(number, mine: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = ("run", "base_moco", "--stream", mine, "--runs", runs, "--quiet", "--set", "batch_size=4")
    process = start(*words, "--set", "epochs=400")
    wait_until(lambda: has_steps(runs, 10), process)
    if number == signal.SIGTERM:  # as `timeout` does: to the process, and at once to its whole group
        process.send_signal(number)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    request, end = err.splitlines()
    assert request.startswith("Stopping after this step") and end.startswith("Stopped: ")
    assert end.endswith(f"stopped by {number.name}; the same command continues it.")
    (run,) = kinoray.list_runs(runs)
    assert run["state"] == "stopped"
    assert list(Path(run["folder"]).glob("checkpoints/stage-*/manifest.json"))
    await_all_gone(process)


@pytest.mark.slow
@pytest.mark.ray
def test_where_ray_itself_is_killed_the_run_ends_at_once_and_leaves_no_process(mine: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = ("run", "base_moco", "--stream", mine, "--runs", runs, "--quiet", "--set", "batch_size=4")
    process = start(*words, "--set", "epochs=400")
    wait_until(lambda: has_steps(runs, 10), process)
    family = psutil.Process(process.pid).children(recursive=True)
    next(child for child in family if child.name() == "gcs_server").kill()
    _, err = process.communicate(timeout=45)  # Ray would end the process after a minute
    assert process.returncode == 1, err
    assert "RayLost: Ray ended: its process gcs_server ended: it was killed" in err
    await_all_gone(process)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes, where the machine allows to mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("no right to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_space(
    kino: Kino, mine: Path, small_disk: Path
) -> None:
    words = ("run", "base_moco", "--stream", mine, *QUICK, "--smoke", "--runs", small_disk)
    refusal(kino(*words), 1, "StorageFull: ", "No space left on device", "need about", "run the same command again")
    assert not [file for file in small_disk.rglob("*") if ".tmp-" in file.name]
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert kino(*words)[0] == 0
    assert kinoray.list_runs(small_disk)[0]["state"] == "finished"


@pytest.mark.slow
@pytest.mark.ray
def test_a_cluster_with_one_cpu_cannot_train_and_decode(mine: Path, tmp_path: Path) -> None:
    code = (
        "import json, sys, ray, kinoray\n"
        "ray.init(address='local', num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
        "try:\n"
        "    kinoray.run('base_moco', stream=sys.argv[1], runs=sys.argv[2], num_workers=1, smoke=True)\n"
        "except kinoray.errors.UsageError as error:\n"
        "    print(json.dumps([str(error), error.exit_code]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(mine), str(tmp_path / "runs")], capture_output=True, text=True, timeout=180
    )
    message, exit_code = json.loads(done.stdout)
    assert exit_code == 2 and "none of the cluster's 1 CPUs for decoding" in message and "num_workers=0" in message
