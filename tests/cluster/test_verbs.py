"""What each submitted command means to a cluster: every word of the table is one of the command's own."""

import json
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.main import get_command

from kinoray.cli.main import app
from kinoray.cluster import install, ship, submit, unpack, verbs, words
from kinoray.errors import UsageError

PATHS = {"method", "methods", "stream", "backbone", "config", "space", "storage", "warm_start", "run", "task", "clips"}
PATHS |= {"like", "out", "root", "then"}
"""Parameters of the commands whose value names a file or a place."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder: empty, with nothing of this machine's variables."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "KINORAY_RUNS"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def staged(typed: str, folder: Path, runs: str | None = "runs") -> ship.Shipment:
    return ship.stage(shlex.split(typed), folder, {}, runs)


def parameters(verb: str) -> dict[str, Any]:
    """Option, or name of an argument -> parameter of the command."""
    command: Any = get_command(app)
    for name in verb.split():
        command = command.commands[name]
    by_word = {}
    for parameter in command.params:
        options = [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else []
        by_word |= dict.fromkeys(options or [parameter.name], parameter)
    return by_word


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_the_table_has_the_options_of_the_command(verb: str) -> None:
    known = verbs.VERBS[verb]
    there = {
        name: parameter for name, parameter in parameters(verb).items() if name.startswith("--") and name != "--help"
    }
    flags = {name for name, parameter in there.items() if parameter.is_flag}
    assert known.flags == flags - verbs.COMMON and verbs.COMMON & set(there) <= flags
    assert ("--runs" in there) == known.in_runs
    named = {name for name, parameter in there.items() if parameter.name in PATHS}
    assert set(known.options) == named - ({"--runs"} if known.in_runs else set())


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_the_table_has_the_arguments_of_the_command(verb: str) -> None:
    arguments = [name for name in parameters(verb) if not name.startswith("--")]
    known = dict(zip(arguments, verbs.VERBS[verb].arguments, strict=False))
    of_data = {"name"} if verb in ("data check", "data stats", "data show") else set()
    assert {name for name, meaning in known.items() if meaning is not words.plain} == set(known) & (PATHS | of_data)


def test_every_verb_gets_the_clusters_paths(here: Path, tmp_path: Path) -> None:
    for name in ("own.py", "red.mp4", "clip.mp4"):
        Path(name).write_text("")
    Path("clips").mkdir()
    cases = {
        "sweep own.py --keep 0.5 --stream clips": f"sweep --runs R ./own.py --keep 0.5 --stream {here}/clips",
        "extend a-1 --task moving-cvlm:3/radar": "extend --runs R a-1 --task moving-cvlm:3/radar",
        "extend a-1 --task clips/night": f"extend --runs R a-1 --task {here}/clips/night",
        "reproduce ctvr-fig5 --keep --clip clip.mp4": "reproduce --runs R ctvr-fig5 --keep --clip ./clip.mp4",
        "reproduce a --runs=./r --backbone tiny:./w": f"reproduce --runs {here}/r a --backbone tiny:{here}/w",
        "search a-1 own.py --out hits.html": f"search --runs R a-1 own.py --out {here}/hits.html",
        "search a-1 --like red.mp4 --method ./own.py": "search --runs R a-1 --like ./red.mp4 --method ./own.py",
        "search a-1 -- --runs": "search --runs R a-1 -- --runs",
        "data prepare msvd --root ./msvd --workers 0": f"data prepare msvd --root {here}/msvd --workers 0",
        "data check clips --deep": f"data check {here}/clips --deep",
        "data stats clip.mp4": f"data stats {here}/clip.mp4",
        "data check clips:ctvr": f"data check {here}/clips:ctvr",
        "data check clips:videos=clips,ctvr": f"data check {here}/clips:videos={here}/clips,ctvr",
        "data stats moving-cvlm --out=a.png": f"data stats moving-cvlm --out={here}/a.png",
        "run own.py --backbone run:old --joint": f"run --runs R ./own.py --backbone run:{here}/old --joint",
    }
    for number, (typed, sent) in enumerate(cases.items()):
        made = staged(typed, tmp_path / str(number), "/R").words
        assert shlex.join(made) == sent.replace("--runs R", "--runs /R"), typed


def test_a_run_given_by_its_path_says_where_the_results_are(here: Path, tmp_path: Path) -> None:
    for number, run in enumerate(("/shared/runs/a-1", "/shared/runs/a-1/seed-0")):
        sent = staged(f"search {run} red", tmp_path / str(number), None)
        assert sent.words[:3] == ("search", "--runs", "/shared/runs") and sent.runs == ""
    with pytest.raises(UsageError, match="Where does the cluster keep the results"):
        staged("search a-1 red", tmp_path / "n", None)
    assert staged("data check moving-cvlm", tmp_path / "d", None).runs == ""


def test_a_task_file_brings_its_folder_where_that_is_small(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    street = here / "new" / "street"
    street.mkdir(parents=True)
    (street / "captions.csv").write_text("video,caption\na.mp4,red\n")
    (street / "a.mp4").write_bytes(b"1234")
    task = here / "new" / "task.yaml"
    task.write_text("name: late\nfolder: ./street/captions.csv\n")
    sent = staged("extend a-1 --task new/task.yaml", tmp_path / "s", "/R")
    written = yaml.safe_load((sent.work / "files" / "new" / "task.yaml").read_text())
    digest = words.digest_of_folder(street)[:16]
    assert written == {"name": "late", "folder": f"/R/.shipped/{digest}/street"} and not sent.notes
    unpacked = tmp_path / "unpacked"
    for _ in range(2):  # the second job finds it there
        unpack.unpack(sent.work / "kept", unpacked)
    assert words.digest_of_folder(unpacked / digest / "street") == words.digest_of_folder(street)
    assert [path.name for path in unpacked.iterdir()] == [digest]
    assert sent.entrypoint.startswith("python -P -m kinoray.cluster.unpack kept /R/.shipped && cd files && exec python")

    (street / "a.mp4").write_bytes(b"12345")
    assert staged("extend a-1 --task new/task.yaml", tmp_path / "t", "/R").id != sent.id
    monkeypatch.setattr(words, "SMALL_BYTES", 10)
    large = staged("extend a-1 --task new/task.yaml", tmp_path / "l", "/R")
    assert yaml.safe_load((large.work / "files/new/task.yaml").read_text())["folder"] == str(street)
    assert not large.unpacks and len(large.notes) == 1 and f"The cluster must have {street}." in large.notes[0]
    task.write_text("folder: /data/street\n")
    (note,) = staged("extend a-1 --task new/task.yaml", tmp_path / "f", "/R").notes
    assert note == "/data/street is not here and not sent: the cluster must have /data/street."


def test_what_is_installed_is_all_that_is_needed_but_torch_and_ray() -> None:
    asked = install.requirements()
    names = {line.partition("<")[0].partition(">")[0].partition("=")[0] for line in asked}
    assert {"transformers", "open-clip-torch", "timm", "optuna", "regex", "av"} <= names
    assert not {name for name in names if name.startswith(("torch", "ray", "nvidia", "triton", "kinoray"))}
    assert "--no-deps" in install.pip(asked)["pip_install_options"]
    from importlib.metadata import version

    from packaging.requirements import Requirement

    assert all(Requirement(line).specifier.contains(version(Requirement(line).name)) for line in asked)


def test_install_is_part_of_what_is_sent(tmp_path: Path) -> None:
    bare = staged("run bmu_moco", tmp_path / "s")
    sent = ship.stage(["run", "bmu_moco"], tmp_path / "t", {}, "runs", install=True)
    assert sent.id != bare.id and "pip" not in submit.runtime_env(bare)
    assert submit.runtime_env(sent)["pip"] == {
        "packages": install.requirements(),
        "pip_check": False,
        "pip_install_options": ["--no-deps", "--disable-pip-version-check", "--no-cache-dir"],
    }


def test_each_result_is_found_in_the_log(tmp_path: Path) -> None:
    runs = str(tmp_path)
    table = tmp_path / "reproductions" / "bmu-fig4-micro-1"
    table.mkdir(parents=True)
    pd.DataFrame({"m_hat": [0.9], "HM": [50.0]}).to_csv(table / "bmu-fig4.csv", index=False)
    for log in (f"a head\n{table}\n", json.dumps({"name": "x", "folder": str(table)}, indent=1)):
        (folder,) = verbs.VERBS["reproduce"].result.folders(f"{log}\n", runs)
        assert folder == table
    assert list(verbs.VERBS["reproduce"].result.open([table])["HM"]) == [50.0]
    assert verbs.VERBS["extend"].result is verbs.VERBS["run"].result
    assert verbs.VERBS["search"].result is None
