"""Commands sent to a cluster: what travels, under which name, what is said; a made-up one here."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from kinoray.cluster import client, ship, submit
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
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    """A cluster that is asked nothing over any network; the current folder is empty."""
    fake = Cluster()
    monkeypatch.setattr(submit, "connect", lambda url: fake)
    monkeypatch.setattr(submit, "POLL_S", 0.0)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "KINORAY_RUNS"):
        monkeypatch.delenv(name, raising=False)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return fake


def staged(words: str, folder: Path, runs: str | None = "runs") -> ship.Shipment:
    return ship.stage(shlex.split(words), folder, {}, runs)


# What travels


def test_the_package_is_one_folder_that_works_alone(tmp_path: Path) -> None:
    tree, metadata = ship.stage_package(tmp_path / "stage")
    for file in ("cli/main.py", "methods/bmu_moco.py", "search_spaces/bmu_moco.py", "cluster/ship.py", "backbones"):
        assert (tree / file).exists(), file
    assert not [*tree.rglob("__pycache__"), *tree.rglob("*.egg-info")]
    code = "import kinoray.methods, kinoray.cluster.ship as s; print(kinoray.__version__, s.__file__)"
    place = {"PYTHONPATH": str(tree.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [metadata.name.split("-")[1].removesuffix(".dist"), str(tree / "cluster/ship.py")]


def test_files_keep_their_place_and_strangers_get_one(cluster: Cluster, tmp_path: Path) -> None:
    Path("mine").mkdir()
    for path in (Path("mine/one.py"), Path("two.yaml"), tmp_path / "far.py"):
        path.write_text("stream: moving-cvlm\n")
    sent = staged(f"run mine/one.py {tmp_path}/far.py --config=two.yaml --set x=one.py", tmp_path / "s")
    far = next(name for name in sent.files if "far" in name)
    assert far.startswith("outside-") and set(sent.files) == {"mine/one.py", far, "two.yaml"}
    assert sent.words[3:] == ("./mine/one.py", f"./{far}", "--config=./two.yaml", "--set", "x=one.py")
    assert all((sent.work / "files" / name).is_file() for name in sent.files)


def test_the_method_that_comes_after_a_sweep_travels_too(cluster: Cluster, tmp_path: Path) -> None:
    Path("probe.py").write_text('"""A method."""\n')
    sent = staged("sweep moco --then ./probe.py", tmp_path / "own")
    assert set(sent.files) == {"probe.py"} and sent.words[-2:] == ("--then", "./probe.py")
    assert staged("sweep moco --then classify", tmp_path / "ours").words[-2:] == ("--then", "classify")


def test_no_path_of_here_reaches_the_cluster_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    here = Path.cwd()
    Path("weights").mkdir()
    for words, sent_as in (
        ("--storage sqlite:///x.db", f"sqlite:///{here}/x.db"),
        ("--storage sqlite:////data/x.db", "sqlite:////data/x.db"),
        ("--storage postgresql://host/db", "postgresql://host/db"),
        ("--warm-start ./first", f"{here}/first"),
        ("--warm-start first", "first"),
        ("--backbone vit-bert:./vit,weights", f"vit-bert:{here}/vit,{here}/weights"),
        ("--backbone vit-bert:random", "vit-bert:random"),
        ("--backbone tiny", "tiny"),
    ):
        sent = staged(f"sweep bmu_moco {words}", tmp_path / words.replace("/", "-").replace(" ", "-"))
        assert sent.words[-1] == sent_as
    with pytest.raises(UsageError, match="is gone with the job"):
        staged("sweep bmu_moco --storage sqlite:///:memory:", tmp_path / "memory")


def test_an_experiment_brings_its_method(cluster: Cluster, tmp_path: Path) -> None:
    Path("own.py").write_text("")
    Path("a.yaml").write_text("method: [./own.py, bmu_moco]\nruns: there\n")
    sent = staged("run a.yaml", tmp_path / "s")
    assert set(sent.files) == {"a.yaml", "own.py"} and sent.runs == str(Path.cwd() / "there")


def test_what_an_experiment_names_gets_the_clusters_paths(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("own.py", "far.py"):
        (Path.cwd() if name == "own.py" else tmp_path).joinpath(name).write_text("")
    Path("clips").mkdir()
    far = tmp_path / "far.py"
    Path("a.toml").write_text(f'method = "{far}:own.py"\nstream = "clips"\nbackbone = "run:old"\nm_hat = 0.5\n')
    sent = staged("run a.toml", tmp_path / "s")
    written = yaml.safe_load((sent.work / "files" / "a.toml.yaml").read_text())
    assert sent.words[-1] == "./a.toml.yaml" and len(sent.files) == 3
    assert written.pop("method") == f"./{next(name for name in sent.files if 'far' in name)}:./own.py"
    here = Path.cwd()
    assert written == {"stream": f"{here}/clips", "backbone": f"run:{here}/old", "m_hat": 0.5}
    Path("b.yaml").write_text("method: bmu_moco  # as it is\nstream: moving-cvlm\n")
    sent = staged("run bmu_moco --config b.yaml", tmp_path / "t")
    assert (sent.work / "files" / "b.yaml").read_text() == Path("b.yaml").read_text()


def test_a_rule_and_its_learner_bring_their_files(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("rule.py", "own.py"):
        Path(name).write_text("")
    (tmp_path / "far.py").write_text("")
    for words, sent_as, files in (
        ("rule.py:base_moco", "./rule.py:base_moco", {"rule.py"}),
        ("lwf:./own.py", "lwf:./own.py", {"own.py"}),
        ("./rule.py:./own.py", "./rule.py:./own.py", {"rule.py", "own.py"}),
    ):
        sent = staged(f"run {words} --backbone tiny:/w", tmp_path / sent_as.replace("/", "-"))
        assert sent.words[3:] == (sent_as, "--backbone", "tiny:/w") and set(sent.files) == files
    far = staged(f"run rule.py:{tmp_path}/far.py", tmp_path / "far")
    assert far.words[3].startswith("./rule.py:./outside-") and len(far.files) == 2
    Path("a.yaml").write_text("method: rule.py:own.py\n")
    assert set(staged("run a.yaml", tmp_path / "e").files) == {"a.yaml", "rule.py", "own.py"}


def test_folders_become_absolute(cluster: Cluster, tmp_path: Path) -> None:
    Path("clips").mkdir()
    for words in ("run m --stream clips --runs r", "run m --stream=./clips --runs=r"):
        sent = staged(words, tmp_path / str(len(words)))
        assert f"{Path.cwd()}/clips" in " ".join(sent.words) and sent.words[1:3] == ("--runs", f"{Path.cwd()}/r")
    assert staged("run m --stream moving-cvlm --runs s3://b/r", tmp_path / "u").runs == "s3://b/r"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train bmu_moco", "begins with run, sweep, extend"),
        ("run ./nothing.py", "There is no file ./nothing.py"),
        ("run bmu_moco --config no.yaml", "There is no file no.yaml"),
    ],
)
def test_what_cannot_be_sent_is_one_line(cluster: Cluster, tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        staged(words, tmp_path / "s")


def test_no_word_is_a_command_of_the_shell(cluster: Cluster, tmp_path: Path) -> None:
    evil = ["a b", "x=';touch pwned;'", 'q="$(touch pwned)"', "`touch pwned`", "--name=&& touch pwned", "é\n*"]
    sent = ship.stage(["run", *evil], tmp_path / "s", {}, "$(touch pwned) ; x")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    python.chmod(0o755)
    path = {"PATH": f"{python.parent}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", sent.entrypoint], cwd=sent.work, env=path, capture_output=True, text=True)
    runs = str(Path.cwd() / "$(touch pwned) ; x")
    assert json.loads(done.stdout) == ["-P", "-m", "kinoray", "run", "--runs", runs, *evil]
    assert not list(tmp_path.rglob("pwned"))


def test_the_name_is_the_hash_of_all_that_is_run(cluster: Cluster, tmp_path: Path) -> None:
    method = Path("my_method.py")
    method.write_text("a = 1\n")
    first = staged("run my_method.py --seed 1", tmp_path / "1").id
    assert first.startswith("run-my_method-") and first == staged("run my_method.py --seed 1", tmp_path / "2").id
    assert staged("run my_method.py --seed 2", tmp_path / "3").id != first
    assert ship.stage(["run", "my_method.py", "--seed", "1"], tmp_path / "4", {"A": "b"}, "runs").id != first
    method.write_text("a = 2\n")
    assert staged("run my_method.py --seed 1", tmp_path / "5").id != first


# Once, and again


def test_the_same_command_finds_its_job(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    first = submit.submit("run bmu_moco --seeds 3")
    assert first.status() == "running"
    assert cluster.sent[0]["env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "60"
    assert cluster.shipped == ["files/job.json"]
    assert submit.submit("run bmu_moco --seeds 3") == first
    assert "is running; the same is not run twice." in capsys.readouterr().err
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
    with pytest.raises(UsageError, match="prints what it finds"):
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
    with pytest.raises(TimeoutError, match="has not ended within 0 s"):
        submit.submit("run bmu_moco", quiet=True).wait(timeout_s=0)


def test_the_result_is_where_the_job_says(cluster: Cluster, tmp_path: Path) -> None:
    from support.run_folders import make_run

    job = submit.submit("run bmu_moco", quiet=True)
    with pytest.raises(UsageError, match="it is running"):
        job.result()
    folder = make_run(tmp_path / "runs")
    cluster.end(job.id, "SUCCEEDED", 0)
    cluster.log[job.id] = f"a table\nReport: {folder}/report.html\n"
    assert job.result().folder == folder
    cluster.log[job.id] = json.dumps({"runs": [], "reports": [f"{folder}/report.html"]}, indent=1) + "\n"
    assert job.result().folder == folder
    shutil.rmtree(folder)
    with pytest.raises(UsageError, match="cannot be reached from here"):
        job.result()


def test_the_result_of_a_sweep_is_the_sweep(cluster: Cluster, tmp_path: Path) -> None:
    folder = Path.cwd() / "runs" / "sweep-1"
    folder.mkdir(parents=True)
    record = {"protocol": "cvlm", "method": "bmu_moco", "stream": "moving-cvlm", "objectives": ["HM"]}
    (folder / "sweep.json").write_text(json.dumps(record))
    Path("space.yaml").write_text("m_hat: {low: 0.9, high: 1.0}\n")
    job = submit.submit("sweep bmu_moco --space space.yaml", quiet=True)
    assert "files/space.yaml" in cluster.shipped
    cluster.end(job.id, "FAILED", 3)  # some trials failed
    for log in (f"sweep of bmu_moco\n{folder}\nImportance\n", json.dumps({"folder": str(folder), "a": 1}, indent=1)):
        cluster.log[job.id] = f"{log}\n"
        assert job.result().folder == folder


# The address and the token


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert client.dashboard(None) == client.LOCAL
    assert client.dashboard("head:8265/") == "http://head:8265"
    monkeypatch.setenv("RAY_ADDRESS", "https://there:1")
    assert client.dashboard(None) == "https://there:1" and client.dashboard("http://here:2") == "http://here:2"
    for wrong in ("ray://head:10001", "http://", "http://x:y", "file:///etc"):
        with pytest.raises(UsageError, match="is no address of a dashboard"):
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
    with pytest.raises(UsageError, match="Where does the cluster keep the results"):
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
    assert code == 130 and f"{id} runs on. Follow it: kinoray jobs logs {id}" in err
    assert f"Stop it: kinoray jobs stop {id} --address {URL}" in err
    assert cluster.jobs[id].status.value == "RUNNING"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["submit", "run", "bmu_moco", "--sede", "1"], "--sede"),
        (["submit", "run"], "METHOD"),
        (["submit", "train", "x"], "begins with run, sweep, extend"),
        (["submit", "--env", "A", "run", "bmu_moco"], "NAME=VALUE"),
        (["submit", "--address", "ray://x:1", "run", "bmu_moco"], "no address of a dashboard"),
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
    assert kino("jobs", "stop", job.id)[1].startswith(f"{job.id} stopped. The same submit goes on")
    assert json.loads(kino("jobs", "status", job.id, "--json")[1])["state"] == "stopped"
    assert "state: stopped\n" in kino("jobs", "status", job.id)[1]
