"""Every verb that can be submitted, on a real cluster, and its result found again."""

import json
import shutil
from pathlib import Path

import pytest
from support.ray_head import Head, other_folder

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
tiny = ["--stream", "../tasks", "--smoke"]
of_mine = ["./mine.py", "--space", "space.yaml", "--trials", "1", "--workers-per-trial", "0"]
swept = sent("sweep", *of_mine, *tiny)
run = ended(sent("run", "lwf:./mine.py", *tiny, "--num-workers", "0")).result()
name = run.folder.parent.name
table = sent("reproduce", "bmu-fig1", *tiny, "--seeds", "1")
counted = sent("data", "stats", "../tasks", "--json", install=True, env={{"PIP_NO_INDEX": "1"}})
print(json.dumps({{
    "run": [run.state, run.method, len(run.tasks)],
    "extend": ended(sent("extend", name, "--task", "new/task.yaml", "--num-workers", "0")).result().tasks[-1],
    "hits": len(printed(ended(sent("search", name, "a grey clip", "--json", "--out", "../hits.html")))["hits"]),
    "sweep": ended(swept).result().states["complete"],
    "table": sorted(set(ended(table).result()["settings"])),
    "parts": len(printed(ended(counted))["parts"]),
}}))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_every_verb_on_a_real_cluster_and_its_result_found_again(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp_cors", reason="the job server needs pip install 'ray[default]'")
    user = other_folder(tmp_path)
    rows = (tmp_path / "clips" / "captions.csv").read_text().splitlines()
    (user / "random.py").rename(user / "mine.py")
    (user / "new").mkdir()
    shutil.copytree(tmp_path / "clips", user / "new" / "street")
    (user / "new" / "task.yaml").write_text("name: street\nfolder: ./street\n")
    (user / "space.yaml").write_text("temperature: {low: 0.05, high: 0.2}\n")
    (tmp_path / "clips").rename(tmp_path / "tasks")
    tasks = [f"{row},{'grey' if number < 6 else 'pale'}" for number, row in enumerate(rows[1:])]
    (tmp_path / "tasks" / "captions.csv").write_text("\n".join([f"{rows[0]},task", *tasks]) + "\n")
    runs = tmp_path / "the runs"
    with Head(tmp_path) as head:
        said = head.python(f"import os; os.chdir({str(user)!r})\n{EVERY.format(runs=str(runs))}")
        found = json.loads(said.splitlines()[-1])
        assert found.pop("run") == ["finished", "lwf:mine", 2]
        assert found == {"extend": "street", "sweep": 1, "table": ["published", "shared"], "hits": 2, "parts": 6}
        assert (tmp_path / "hits.html").is_file() and len(list((runs / ".shipped").glob("*/street"))) == 1
        code, out, err = head.kino("submit", "--follow", "data", "check", "../tasks", cwd=user)
        assert code == 0 and "all can be read" in out, out + err
