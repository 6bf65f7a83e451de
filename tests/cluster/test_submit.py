"""Commands sent to a cluster, once: what is said, followed and found again; a made-up one here."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kinoray.cluster import client, submit
from kinoray.cluster.results import print_folders
from kinoray.errors import UsageError

Outcome = tuple[int, str, str]
URL = "http://127.0.0.1:8265"


class Cluster:
    """Answers as `JobSubmissionClient` does, from a dictionary."""

    def __init__(self) -> None:
        self.jobs: dict[str, SimpleNamespace] = {}
        self.log: dict[str, str] = {}
        self.sent: list[dict[str, Any]] = []
        self.shipped: list[str] = []
        self.after_poll: Callable[[], None] = lambda: None

    def submit_job(self, *, entrypoint: str, submission_id: str, runtime_env: dict, metadata: dict) -> str:
        if submission_id in self.jobs:
            raise RuntimeError(f"Request failed with status code 400: submission_id {submission_id} already exists.")
        work = Path(runtime_env["working_dir"])
        self.shipped = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())
        self.sent.append({"entrypoint": entrypoint, "id": submission_id, "env": runtime_env, "metadata": metadata})
        self.add(submission_id, "RUNNING", metadata)
        return submission_id

    def add(self, id: str, state: str, metadata: dict, code: int | None = None, message: str = "") -> None:
        self.jobs[id] = SimpleNamespace(
            submission_id=id,
            status=SimpleNamespace(value=state),
            driver_exit_code=code,
            message=message,
            metadata=metadata,
            start_time=1_700_000_000_000 + len(self.jobs),
            end_time=None,
        )

    def end(self, id: str, state: str, code: int | None, message: str = "") -> None:
        job = self.jobs[id]
        job.status, job.driver_exit_code, job.message = SimpleNamespace(value=state), code, message

    def list_jobs(self) -> list[SimpleNamespace]:
        return [*self.jobs.values(), SimpleNamespace(submission_id=None, metadata=None, start_time=1)]

    def get_job_info(self, id: str) -> SimpleNamespace:
        if id not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {id} does not exist.")
        return self.jobs[id]

    def get_job_logs(self, id: str) -> str:
        self.after_poll()
        return self.log.get(id, "")

    def stop_job(self, id: str) -> bool:
        self.end(id, "STOPPED", None)
        return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, here: Path) -> Cluster:
    """A cluster that is asked nothing over any network; the current folder is empty."""
    fake = Cluster()
    monkeypatch.setattr(submit, "connect", lambda url: fake)
    monkeypatch.setattr(submit, "POLL_S", 0.0)
    return fake


# Once, and again


def test_the_same_command_finds_its_job(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    first = submit.submit("run bmu_moco --seeds 3")
    assert first.status() == "running"
    assert cluster.sent[0]["env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "60"
    assert cluster.shipped == ["files/job.json"]
    assert submit.submit("run bmu_moco --seeds 3") == first
    assert "is running; the same command is not run twice." in capsys.readouterr().err
    cluster.end(first.id, "SUCCEEDED", 0)
    assert submit.submit(["run", "bmu_moco", "--seeds", "3"], quiet=True) == first
    assert capsys.readouterr().err == "" and len(cluster.sent) == 1
    assert submit.submit("run bmu_moco --seeds 3", again=True).id == f"{first.id}-2"


def test_what_failed_or_was_stopped_goes_on_as_the_next_attempt(cluster: Cluster, capsys: Any) -> None:
    first = submit.submit("run bmu_moco")
    cluster.end(first.id, "FAILED", 1, "last lines:\nRunFailed: it broke.\n")
    second = submit.submit("run bmu_moco")
    assert second.id == f"{first.id}-2"
    assert f"{first.id} failed (RunFailed: it broke.); this is its next attempt." in capsys.readouterr().err
    assert second.stop() == "stopped"
    assert submit.submit("run bmu_moco").id == f"{first.id}-3"


def test_two_submitters_at_once_start_one_job(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    real = cluster.submit_job

    def other_is_faster(**asked: Any) -> str:
        if not ids:
            ids.append(asked["submission_id"])
            real(**asked)
        return real(**asked)

    monkeypatch.setattr(cluster, "submit_job", other_is_faster)
    assert submit.submit("run bmu_moco").id == ids[0]
    assert list(cluster.jobs) == ids


def test_a_command_that_only_looks_looks_anew(cluster: Cluster) -> None:
    first = submit.submit("data check moving-cvlm", quiet=True)
    assert submit.submit("data check moving-cvlm", quiet=True) == first
    cluster.end(first.id, "SUCCEEDED", 0)
    assert submit.submit("data check moving-cvlm", quiet=True).id == f"{first.id}-2"
    with pytest.raises(UsageError, match=r"finished without a result.*kinoray jobs logs"):
        first.result()


# Follow, wait, result


def grow(cluster: Cluster, job: submit.Job, log: list[str], state: str, code: int | None) -> None:
    """Let the log grow at every look, and the job end with its last piece."""

    def next_piece() -> None:
        if log:
            cluster.log[job.id] = cluster.log.get(job.id, "") + log.pop(0)
        if not log:
            cluster.end(job.id, state, code)

    cluster.after_poll = next_piece


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [("SUCCEEDED", 0, 0), ("FAILED", 3, 3), ("FAILED", None, 1), ("FAILED", -9, 137), ("STOPPED", None, 75)],
)
def test_following_passes_on_each_line_once_and_the_exit_code(
    cluster: Cluster, state: str, code: int | None, expected: int
) -> None:
    job = submit.submit("run bmu_moco", quiet=True)
    pieces = ["2026-01-01 00:00:00,123\tINFO job_manager.py:1 -- Runtime env is setting up.\n"]
    pieces += ["Running entrypoint for job x: y\nfirst: st", "ep 1\n", "", "caption \x1b]0;x\nlast\n"]
    grow(cluster, job, pieces, state, code)
    lines: list[str] = []
    assert job.follow(lines.append) == expected
    assert lines == ["first: step 1", "caption \\x1b]0;x", "last"]


def test_a_silent_cluster_is_waited_for_and_then_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit.submit("run bmu_moco", quiet=True)
    answers = iter([ConnectionError("no"), RuntimeError("Request failed with status code 503: busy"), None])
    real = cluster.get_job_info

    def flaky(id: str) -> SimpleNamespace:
        problem = next(answers, None)
        if problem:
            raise problem
        return real(id)

    monkeypatch.setattr(cluster, "get_job_info", flaky)
    grow(cluster, job, ["done\n"], "SUCCEEDED", 0)
    assert job.follow(lambda line: None) == 0
    answers = iter([ConnectionError("no")] * 10**6)
    monkeypatch.setattr(submit, "LOST_S", 0.01)
    with pytest.raises(submit.Lost, match="does not answer") as lost:
        job.wait()
    assert lost.value.exit_code == 75


def test_waiting_has_a_limit(cluster: Cluster) -> None:
    with pytest.raises(TimeoutError, match="did not end within 0 s"):
        submit.submit("run bmu_moco", quiet=True).wait(timeout_s=0)


def ends(cluster: Cluster, job: submit.Job, kind: str, folder: Path) -> None:
    """Let the job end with what a command prints in its environment."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        for name, value in cluster.sent[-1]["env"]["env_vars"].items():
            patch.setenv(name, value)
        print_folders(kind, [folder])
    cluster.end(job.id, "FAILED", 3)  # some runs failed
    cluster.log[job.id] = f"a table\n{printed.getvalue()}4 rows are left\n"


def test_the_result_is_where_the_job_says(cluster: Cluster, tmp_path: Path) -> None:
    from support.run_folders import make_run

    job = submit.submit("run bmu_moco", quiet=True)
    with pytest.raises(UsageError, match="has no result yet: it is running"):
        job.result()
    folder = make_run(tmp_path / "the 'rüns'")
    ends(cluster, job, "runs", folder)
    assert job.result().folder == folder
    shutil.rmtree(folder)
    with pytest.raises(UsageError, match=r"cannot be reached from here.*aws s3 sync URI runs"):
        job.result()
    cluster.end(job.id, "FAILED", 1, "UsageError: no.\n")
    cluster.log[job.id] = "UsageError: no.\n"
    with pytest.raises(UsageError, match=r"failed without a result \(UsageError: no\.\)"):
        job.result()


def test_the_result_of_a_sweep_is_the_sweep_and_of_a_figure_its_table(cluster: Cluster) -> None:
    folder = Path.cwd() / "runs" / "sweep-1"
    folder.mkdir(parents=True)
    record = {"protocol": "cvlm", "method": "bmu_moco", "stream": "moving-cvlm", "objectives": ["HM"]}
    (folder / "sweep.json").write_text(json.dumps(record))
    job = submit.submit("sweep bmu_moco", quiet=True)
    ends(cluster, job, "sweep", folder)
    assert job.result().folder == folder
    pd.DataFrame({"m_hat": [0.9], "HM": [50.0]}).to_csv(folder / "bmu-fig4.csv", index=False)
    job = submit.submit("reproduce bmu-fig4", quiet=True)
    ends(cluster, job, "table", folder)
    assert list(job.result()["HM"]) == [50.0]


def test_a_terminals_command_names_no_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    print_folders("runs", [tmp_path])
    assert capsys.readouterr().out == ""


# The address and the token


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert client.dashboard(None) == client.LOCAL
    assert client.dashboard("head:8265/") == "http://head:8265"
    monkeypatch.setenv("RAY_ADDRESS", "https://there:1")
    assert client.dashboard(None) == "https://there:1" and client.dashboard("http://here:2") == "http://here:2"
    for wrong in ("ray://head:10001", "http://", "http://x:y", "file:///etc"):
        with pytest.raises(UsageError, match="is not the address of a dashboard"):
            client.dashboard(wrong)
    near = [client.is_loopback(url) for url in (URL, "http://localhost:1", "http://[::1]:2", "http://10.0.0.1:8265")]
    assert near == [True, True, True, False]


def test_beyond_this_machine_only_with_a_token(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UsageError, match="RAY_AUTH_MODE is not token") as refused:
        submit.submit("run bmu_moco --runs /r", address="http://head:8265")
    assert refused.value.exit_code == 2 and not cluster.sent
    submit.submit("run bmu_moco --runs /r", address="http://head:8265", without_token=True)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    submit.submit("run base_moco --runs /r", address="http://head:8265")
    assert len(cluster.sent) == 2
    with pytest.raises(UsageError, match="No folder is given for the results"):
        submit.submit("run base_moco", address="http://head:8265")


def test_an_address_where_nobody_answers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    pytest.importorskip("aiohttp", reason="Ray's client needs pip install 'ray[default]'")
    monkeypatch.setattr(client, "TIMEOUT_S", 0.3)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(client.Unreachable, match=f"{url} does not answer"):  # refused
            client.connect(url)
        silent.listen()
        with pytest.raises(client.Unreachable, match=f"{url} does not answer"):  # accepted, and silence
            client.connect(url)
    assert os.environ["RAY_ADDRESS"] == "http://127.0.0.1:9"


# The command line


def test_submit_passes_the_words_on_and_says_how_to_go_on(kino: Callable[..., Outcome], cluster: Cluster) -> None:
    code, out, err = kino("submit", "--env", "KINORAY_DATA=/d", "run", "bmu_moco", "--json", "--set", "m_hat=0.9")
    assert code == 0, err
    (sent,) = cluster.sent
    assert json.loads(sent["metadata"]["words"])[3:] == ["bmu_moco", "--json", "--set", "m_hat=0.9"]
    assert sent["env"]["env_vars"]["KINORAY_DATA"] == "/d"
    assert out == f"Follow it: kinoray jobs logs {sent['id']} --address {URL} --follow\n"
    assert err == f"Submitted {sent['id']}; its results: {Path.cwd()}/runs\n"


def test_submit_follows_to_the_jobs_exit_code(
    kino: Callable[..., Outcome], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cluster.submit_job

    def fails(**asked: Any) -> str:
        id = real(**asked)
        cluster.log[id] = "UsageError: There is no folder /data.\n"
        cluster.end(id, "FAILED", 2, "tail:\nUsageError: There is no folder /data.\n")
        return id

    monkeypatch.setattr(cluster, "submit_job", fails)
    code, out, _ = kino("submit", "--follow", "run", "bmu_moco", "--stream", "/data")
    assert (code, out) == (2, "UsageError: There is no folder /data.\n")
    code, out, err = kino("submit", "--follow", "--json", "run", "bmu_moco", "--stream", "/data")
    row = json.loads(out)
    assert code == 2 and row["exit_code"] == 2 and row["error"] == "UsageError: There is no folder /data."
    assert "UsageError: There is no folder /data.\n" in err


def test_ctrl_c_leaves_the_job(kino: Callable[..., Outcome], cluster: Cluster) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    cluster.after_poll = interrupt
    code, _, err = kino("submit", "--follow", "run", "bmu_moco")
    (id,) = cluster.jobs
    assert code == 130 and f"{id} is still running. Follow it: kinoray jobs logs {id}" in err
    assert f"Stop it: kinoray jobs stop {id} --address {URL}" in err
    assert cluster.jobs[id].status.value == "RUNNING"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["submit", "run", "bmu_moco", "--sede", "1"], "--sede"),
        (["submit", "run"], "METHOD"),
        (["submit", "train", "x"], "No such command 'train'"),
        (["submit", "data", "chekc", "x"], "No such command 'chekc'"),
        (["submit", "list", "runs"], "must begin with run, sweep, extend"),
        (["submit", "--env", "A", "run", "bmu_moco"], "NAME=VALUE"),
        (["submit", "--address", "ray://x:1", "run", "bmu_moco"], "not the address of a dashboard"),
        (["jobs", "status", "run-bmu"], "There is no job named 'run-bmu'. Did you mean 'run-bmu_moco-1'?"),
        (["jobs", "logs", "../../etc"], "There is no job named"),
        (["jobs", "stop", "nothing"], "There is no job named 'nothing'. Known: run-bmu_moco-1."),
    ],
)
def test_a_mistake_is_exit_code_2(
    kino: Callable[..., Outcome], cluster: Cluster, words: list[str], message: str
) -> None:
    cluster.add("run-bmu_moco-1", "RUNNING", {"kinoray": "1"})
    code, _, err = kino(*words)
    assert code == 2 and message in err and not cluster.sent, err


def test_a_dry_run_sends_nothing(kino: Callable[..., Outcome], cluster: Cluster) -> None:
    code, out, _ = kino("submit", "--dry-run", "--json", "run", "bmu_moco", "--seed", "4")
    plan = json.loads(out)
    assert code == 0 and not cluster.sent and plan["package_bytes"] > 100_000
    assert plan["entrypoint"].endswith(f"kinoray run --runs {Path.cwd()}/runs bmu_moco --seed 4")
    assert plan["id"] == submit.submit("run bmu_moco --seed 4", quiet=True).id
    Path("own.py").write_text("")
    assert "\nfiles: own.py\n" in kino("submit", "--dry-run", "run", "own.py")[1]


def test_jobs_are_listed_shown_and_stopped(kino: Callable[..., Outcome], cluster: Cluster) -> None:
    assert kino("jobs", "list")[1:] == ("", "No kinoray jobs on this cluster.\n")
    job = submit.submit("run bmu_moco", quiet=True)
    cluster.add("theirs", "RUNNING", {})
    (row,) = json.loads(kino("jobs", "list", "--json")[1])["jobs"]
    assert row["id"] == job.id and row["command"] == f"kinoray run --runs {Path.cwd()}/runs bmu_moco"
    assert kino("jobs", "list")[1].split()[:3] == [job.id, "running", "2023-11-14T22:13:20Z"]
    cluster.log[job.id] = "one\ntwo\n"
    assert kino("jobs", "logs", job.id)[1] == "one\ntwo\n"
    assert json.loads(kino("jobs", "logs", job.id, "--json")[1])["log"] == ["one", "two"]
    assert kino("jobs", "stop", job.id)[1].startswith(f"{job.id} stopped. Submit it again to resume")
    assert json.loads(kino("jobs", "status", job.id, "--json")[1])["state"] == "stopped"
    assert "state: stopped\n" in kino("jobs", "status", job.id)[1]
