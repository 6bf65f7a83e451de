"""Commands sent to a real cluster from another folder, with the package alone: one head for all tests."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ray_head import Head, other_folder


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    pytest.importorskip("aiohttp_cors", reason="the job server needs pip install 'ray[default]'")
    with Head(tmp_path_factory.mktemp("head")) as started:
        yield started


def jobs_of(head: Head, name: str) -> list[dict[str, Any]]:
    """What the cluster lists of jobs whose id begins so."""
    rows = json.loads(head.kino("jobs", "list", "--json")[1])["jobs"]
    return [row for row in rows if row["id"].startswith(name)]


def follow_until(text: str, head: Head, *words: str, cwd: Path) -> None:
    """Submit a command and follow it until a line says this, within two minutes; the submitter is then killed."""
    with head.popen("submit", "--follow", *words, cwd=cwd) as follower:
        limit = threading.Timer(120, follower.kill)
        limit.start()
        assert follower.stdout is not None and any(text in line for line in follower.stdout)
        limit.cancel()
        follower.kill()


@pytest.mark.slow
@pytest.mark.ray
def test_a_real_cluster_from_another_folder_with_the_package_alone(head: Head, tmp_path: Path) -> None:
    user = other_folder(tmp_path)
    shutil.copytree(tmp_path / "clips", user / "mine")  # these travel, the others are the cluster's
    long = ["run", "bmu_moco", "--stream", str(tmp_path / "clips"), "--num-workers", "0", "--set", "epochs=100000"]
    words = ["run", "./random.py", "--stream", "mine", "--num-workers", "1", "--smoke"]
    where = ["--runs", str(tmp_path / "the runs; $(touch pwned)")]
    follow_until("step", head, *long, *where, cwd=user)
    (row,) = jobs_of(head, "run-bmu_moco")
    assert row["state"] == "running"

    code, out, err = head.kino("submit", *long, *where, cwd=user)
    assert code == 0 and f"{row['id']} is running; the same command is not run twice." in err
    code, out, err = head.kino("jobs", "stop", row["id"])
    assert (code, out.split()[1]) == (0, "stopped."), err
    (run,) = (tmp_path / where[1]).glob("bmu_moco-*/seed-0/result.json")
    assert json.loads(run.read_text())["state"] == "stopped"  # it had the time to commit

    lost = json.loads(head.kino("submit", "--json", "run", "bmu_moco", "--stream", "/no/where", *where)[1])
    code, out, err = head.kino("submit", "--follow", *words, *where, cwd=user)
    assert code == 0, out + err
    assert "task 1/1" in out and "Report: " in out and "Running entrypoint" not in out
    printed = head.python(
        "import kinoray.cluster.submit as s; (job,) = [j for j in s.list_jobs() if 'random' in j['id']]; "
        "print(s.find_job(job['id']).result().state)"
    )
    assert printed == "finished\n"

    submit_a_sweep(head, user, where)

    code, out, _ = head.kino("jobs", "logs", lost["id"], "--follow")
    assert code == 2 and out.startswith("UsageError: There is no folder /no/where"), out
    code, _, err = head.kino("jobs", "list", token="wrong")
    assert code == 2 and "does not accept the token" in err and len(err.splitlines()) == 1
    assert not [*tmp_path.rglob("pwned"), *head.folder.rglob("pwned")]


HELD = """
import time
from pathlib import Path
class Method(Method):
    def begin_task(self, task):
        super().begin_task(task)
        while Path({first!r}).exists() and Path({hold!r}).exists():
            time.sleep(0.1)
        Path({first!r}).touch()
"""


def submit_a_sweep(head: Head, user: Path, where: list[str]) -> None:
    """Its submitter is killed while it follows; the second trial waits until the test has looked around."""
    hold, first = user / "hold", user / "first"
    hold.touch()
    (user / "held.py").write_text((user / "random.py").read_text() + HELD.format(first=str(first), hold=str(hold)))
    (user / "space.yaml").write_text("temperature: {low: 0.05, high: 0.2}\n")
    words = ["sweep", "./held.py", "--stream", str(user.parent / "clips"), "--space", "space.yaml", *where]
    words += ["--trials", "2", "--concurrent", "1", "--no-prune", "--smoke"]
    code, _, err = head.kino("submit", *words, cwd=user, token="wrong")
    assert code == 2 and "does not accept the token" in err and len(err.splitlines()) == 1
    follow_until("1/2 trial 0 complete", head, *words, cwd=user)
    code, _, err = head.kino("submit", *words, cwd=user)
    assert code == 0 and "is running; the same command is not run twice." in err
    (job,) = jobs_of(head, "sweep-held")
    hold.unlink()
    code, out, err = head.kino("jobs", "logs", job["id"], "--follow")
    assert code == 0, out + err
    ended = [line for line in out.splitlines() if "complete in" in line]
    assert [line[:11] for line in ended] == ["1/2 trial 0", "2/2 trial 1"], out
    code, _, err = head.kino("submit", *words, cwd=user)
    assert code == 0 and "has finished. Add --again to run it again." in err
    printed = head.python(
        f"import kinoray.cluster.submit as s; swept = s.find_job({job['id']!r}).result(); "
        "print(swept.states['complete'], len(swept.trials), swept.best.number in range(2))"
    )
    assert printed == "2 2 True\n"


# Every verb

EVERY = """
import json
import kinoray
from kinoray.cluster import client

client.TIMEOUT_S = 180  # two cores, and others' tests beside these

def sent(*words, **options):
    return kinoray.submit([*words, *WHERE[words[0] == "data"]], quiet=True, **options)

def ended(job):
    assert job.wait(timeout_s=900) == 0, job.id + job.logs()
    return job

def printed(job):
    log = job.logs()
    return json.JSONDecoder().raw_decode(log[log.index("{{\\n"):])[0]

WHERE = [["--runs", {runs!r}], []]
tiny = ["--stream", {tasks!r}, "--smoke"]
of_mine = ["./mine.py", "--space", "space.yaml", "--trials", "1", "--workers-per-trial", "0"]
swept = sent("sweep", *of_mine, *tiny)
run = ended(sent("run", "lwf:./mine.py", *tiny, "--num-workers", "0")).result()
name = run.folder.parent.name
table = sent("reproduce", "bmu-fig1", *tiny, "--seeds", "1")
checked = sent("data", "check", {tasks!r}, "--json", install=True, env={{"PIP_NO_INDEX": "1"}})
print(json.dumps({{
    "run": [run.state, run.method, len(run.tasks)],
    "extend": ended(sent("extend", name, "--task", "new/task.yaml", "--num-workers", "0")).result().tasks[-1],
    "hits": len(printed(ended(sent("search", name, "a grey clip", "--json", "--out", "../hits.html")))["hits"]),
    "sweep": ended(swept).result().states["complete"],
    "table": sorted(set(ended(table).result()["settings"])),
    "files": printed(ended(checked))["files"],
}}))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_every_verb_on_a_real_cluster_and_its_result_found_again(head: Head, tmp_path: Path) -> None:
    user = other_folder(tmp_path)
    rows = (tmp_path / "clips" / "captions.csv").read_text().splitlines()
    (user / "random.py").rename(user / "mine.py")
    (user / "new").mkdir()
    shutil.copytree(tmp_path / "clips", user / "new" / "street")
    (user / "new" / "task.yaml").write_text(f"name: street\nfolder: {user}/new/street\n")
    (user / "space.yaml").write_text("temperature: {low: 0.05, high: 0.2}\n")
    (tmp_path / "clips").rename(tmp_path / "tasks")
    tasks = [f"{row},{'grey' if number < 6 else 'pale'}" for number, row in enumerate(rows[1:])]
    (tmp_path / "tasks" / "captions.csv").write_text("\n".join([f"{rows[0]},task", *tasks]) + "\n")
    runs = tmp_path / "the runs"
    printed = head.python(
        f"import os; os.chdir({str(user)!r})\n{EVERY.format(runs=str(runs), tasks=str(tmp_path / 'tasks'))}"
    )
    answer = json.loads(printed.splitlines()[-1])
    assert answer.pop("run") == ["finished", "lwf:mine", 2]
    assert answer == {"extend": "street", "sweep": 1, "table": ["published", "shared"], "hits": 2, "files": 12}
    assert (tmp_path / "hits.html").is_file()
    code, out, err = head.kino("submit", "--follow", "data", "check", "new/street", cwd=user)
    assert code == 0 and "all can be read" in out, out + err
