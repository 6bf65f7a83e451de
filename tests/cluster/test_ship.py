"""What travels to a cluster: a word that names a file or folder below the current folder, and nothing else."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import REPOSITORY
from typer.main import get_command

from kinoray.cli.main import app
from kinoray.cluster import install, ship, submit
from kinoray.errors import UsageError

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def staged(tmp_path: Path):
    """Stages a typed command in a folder of its own."""
    folders = (tmp_path / f"staged-{number}" for number in range(100))

    def stage(typed: str, runs: str | None = "/R") -> ship.Shipment:
        return ship.stage(shlex.split(typed), next(folders), {}, runs)

    return stage


def write(*names: str, text: str = "") -> None:
    for path in map(Path, names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_package_is_one_folder_that_works_alone(tmp_path: Path) -> None:
    tree, metadata = ship.stage_package(tmp_path / "stage")
    for file in ("cli/main.py", "methods/bmu_moco.py", "search_spaces/bmu_moco.py", "cluster/ship.py", "backbones"):
        assert (tree / file).exists(), file
    assert not [*tree.rglob("__pycache__"), *tree.rglob("*.egg-info")]
    code = "import kinoray.methods, kinoray.cluster.ship as s; print(kinoray.__version__, s.__file__)"
    place = {"PYTHONPATH": str(tree.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [metadata.name.split("-")[1].removesuffix(".dist"), str(tree / "cluster/ship.py")]


def test_what_a_word_names_travels_under_its_path_and_the_words_stay(staged, tmp_path: Path) -> None:
    write("two.yaml", "a=b, c.yaml", text="m_hat: 0.9\n")
    write("own.py", "mine/rule.py", "clips/a.mp4", "clips/deep/b.mp4", "v/c.mp4", "red.mp4")
    (tmp_path / "far.py").write_text("")
    clips = {"clips/a.mp4", "clips/deep/b.mp4"}
    cases: dict[str, set[str]] = {
        "run mine/rule.py --config=two.yaml --set x=own.py": {"mine/rule.py", "two.yaml", "own.py"},
        "run ./mine/../own.py": set(),
        "run ./own.py --config 'a=b, c.yaml'": {"own.py", "a=b, c.yaml"},
        "run ./mine/rule.py:own.py lwf:./own.py rule:bmu_moco": {"mine/rule.py", "own.py"},
        f"run {tmp_path}/far.py --stream {tmp_path}/here/clips": set(),
        "run moco --stream clips:ctvr,videos=./v --backbone vit-bert:./mine,random": {
            *clips,
            "v/c.mp4",
            "mine/rule.py",
        },
        "run moco --stream clips:./own.py --backbone=./mine/rule.py:4": {*clips, "own.py", "mine/rule.py"},
        "sweep moco --stream ./own.py:3 --backbone mine/rule.py": {"own.py", "mine/rule.py"},
        "run moco --stream=clips --copy-to s3://own.py/x": clips,
        "sweep moco --then ./own.py --space two.yaml --storage postgresql://host/own.py": {"own.py", "two.yaml"},
        "extend a-1 --task moving-cvlm:3/radar": set(),
        "reproduce ctvr-fig5 --clip red.mp4": {"red.mp4"},
        "search a-1 'a red square' --like red.mp4 --method own.py": {"red.mp4", "own.py"},
        "data check clips:ctvr": clips,
    }
    for typed, files in cases.items():
        if not files and ".." in typed:
            with pytest.raises(UsageError, match="not uploaded: it is outside"):
                staged(typed)
            continue
        sent = staged(typed)
        assert set(sent.files) == files and len(sent.files) == len(files), typed
        words = shlex.split(typed)
        assert list(sent.words) == (words if words[0] == "data" else [words[0], "--runs", "/R", *words[1:]])
        there = {str(path.relative_to(sent.work / "files")) for path in sent.work.rglob("*") if path.is_file()}
        assert there == {*files, "job.json"}


def test_what_is_written_has_an_absolute_path(staged, here: Path) -> None:
    write("out/x.txt", "r/x.txt")
    for typed, sent in {
        "run moco --runs r": f"run moco --runs {here}/r",
        "run moco --runs=./r --seed 1": f"run moco --runs {here}/r --seed 1",
        "run moco --runs s3://b/r": "run moco --runs s3://b/r",
        "search a-1 red --out hits.html": f"search --runs /R a-1 red --out {here}/hits.html",
        "search a-1 -- --runs": "search --runs /R a-1 -- --runs",
        "data prepare msvd --root=out": f"data prepare msvd --root {here}/out",
        "data show clip 1 --out ../a.png": f"data show clip 1 --out {here.parent}/a.png",
    }.items():
        made = staged(typed)
        assert shlex.join(made.words) == sent and not made.files
    with pytest.raises(UsageError, match="No folder is given for the results"):
        staged("search a-1 red", None)
    assert staged("data check moving-cvlm", None).runs == ""


def test_the_line_of_the_page_lists_what_travels(kino) -> None:
    page = (REPOSITORY / "cluster" / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("kinoray submit --dry-run ")]
    write("my_method.py", "clips/a.mp4", "clips/captions.csv")
    write("experiment.yaml", text="method: lwf:./my_method.py\n")
    code, out, err = kino(*shlex.split(line)[1:], "--smoke")
    assert code == 0, err
    assert "\nfiles: my_method.py, clips/a.mp4, clips/captions.csv, experiment.yaml\n" in out
    assert "kinoray run lwf:./my_method.py --stream ./clips:ctvr --config experiment.yaml --runs /shared/runs" in out


def test_the_options_that_are_written_to_are_the_commands_own() -> None:
    groups = [get_command(app), get_command(app).commands["data"]]
    commands = [command for group in groups for name, command in group.commands.items()]
    known = {name for command in commands for parameter in command.params for name in parameter.opts}
    assert set(ship.WRITTEN) <= known and set(ship.COMMANDS) <= set(groups[0].commands)


def test_an_experiment_travels_as_it_is_and_says_where_the_results_are(staged, here: Path) -> None:
    write("own.py", "other.py")
    write("a.yaml", text="method: ./own.py  # not a word\nruns: there\n")
    sent = staged("run other.py --config=a.yaml")
    assert set(sent.files) == {"other.py", "a.yaml"} and sent.runs == f"{here}/there"
    assert (sent.work / "files" / "a.yaml").read_text() == Path("a.yaml").read_text()
    assert staged("run a.yaml --runs /S").runs == "/S"
    write("b.toml", text='method = "moco"\n')
    assert staged("run b.toml").runs == "/R"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train bmu_moco", "must begin with run, sweep, extend"),
        ("", "must begin with run, sweep, extend"),
        ("run ./nothing.py", r"There is no \./nothing\.py here to upload"),
        ("run nothing.py", r"There is no nothing\.py here"),
        ("run bmu_moco --config no.yaml", r"There is no no\.yaml here"),
        ("run bmu_moco --stream ./clips:ctvr", r"There is no \./clips here"),
        ("run bmu_moco --stream ../outside", r"\.\./outside is not uploaded: it is outside the current folder"),
        ("run bmu_moco --stream .", r"\. is not uploaded"),
        ("run bmu_moco --stream link", "link is not uploaded: .* or a link to a folder"),
        ("run file-link", "file-link is not uploaded: it is outside"),
        ("run bmu_moco --stream mine", "mine/far is not uploaded: it is outside"),
        ("run bmu_moco --stream looped", "looped/again is not uploaded: .* or a link to a folder"),
        ("sweep bmu_moco --storage sqlite:///x.db", "would be lost with the job"),
        ("sweep bmu_moco --storage=sqlite://", "would be lost with the job"),
        ("sweep bmu_moco --storage sqlite+pysqlite:///:memory:", "would be lost with the job"),
    ],
)
def test_what_cannot_be_sent_is_one_line(staged, tmp_path: Path, words: str, message: str) -> None:
    outside = tmp_path / "outside"
    write(str(outside / "a"), "mine/own.py", "looped/a")
    for name, target in (("link", outside), ("file-link", outside / "a"), ("mine/far", outside / "a")):
        Path(name).symlink_to(target)
    Path("looped/again").symlink_to("../looped")
    with pytest.raises(UsageError, match=message) as refused:
        staged(words)
    assert "\n" not in str(refused.value)


def test_a_link_to_a_file_of_the_current_folder_travels_as_the_file(staged) -> None:
    write("own.py", text="a = 1\n")
    write("mine/a")
    Path("mine/same.py").symlink_to("../own.py")
    sent = staged("run mine/same.py --stream mine")
    copy = sent.work / "files" / "mine" / "same.py"
    assert copy.read_text() == "a = 1\n" and not copy.is_symlink() and set(sent.files) == {"mine/same.py", "mine/a"}


def test_hidden_files_of_a_folder_stay(staged) -> None:
    write("clips/a.mp4", "clips/.git/config", "clips/.gitignore", "clips/__pycache__/x.pyc", ".mine/own.py")
    assert set(staged("run .mine/own.py --stream clips").files) == {"clips/a.mp4", ".mine/own.py"}


def test_nothing_travels_above_the_limit(staged, monkeypatch: pytest.MonkeyPatch) -> None:
    write("clips/a.mp4", "clips/b.mp4", text="123")
    write("own.py", text="12")
    monkeypatch.setattr(ship, "MOST_BYTES", 8)
    sent = staged("run own.py --stream clips --set x=clips/a.mp4 --set y=./own.py")  # 8 bytes: each file counts once
    assert len(sent.files) == 3
    monkeypatch.setattr(ship, "MOST_BYTES", 7)
    for typed in ("run own.py --stream clips", "run --stream clips own.py"):
        with pytest.raises(
            UsageError, match=r"^More than 0 MB would be uploaded; the largest file is clips\. Put it on the"
        ):
            staged(typed)


def test_no_word_is_a_command_of_the_shell(tmp_path: Path) -> None:
    evil = ["a b", "x=';touch pwned;'", 'q="$(touch pwned)"', "`touch pwned`", "--name=&& touch pwned", "é\n*"]
    write("$(touch pwned); x")
    sent = ship.stage(["run", *evil, "$(touch pwned); x"], tmp_path / "s", {}, "$(touch pwned) ; x")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    python.chmod(0o755)
    path = {"PATH": f"{python.parent}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", sent.entrypoint], cwd=sent.work, env=path, capture_output=True, text=True)
    runs = str(Path.cwd() / "$(touch pwned) ; x")
    assert json.loads(done.stdout) == ["-P", "-m", "kinoray", "run", "--runs", runs, *evil, sent.files[0]]
    assert not list(tmp_path.rglob("pwned"))


def test_the_name_is_the_hash_of_all_that_is_run(staged, tmp_path: Path) -> None:
    write("my_method.py", "clips/a", text="a = 1\n")
    typed = "run my_method.py --seed 1 --stream clips"
    first = staged(typed).id
    assert first.startswith("run-my_method-") and first == staged(typed).id
    assert staged("run my_method.py --seed 2 --stream clips").id != first
    assert ship.stage(shlex.split(typed), tmp_path / "own", {"A": "b"}, "/R").id != first
    assert staged(typed, "/S").id != first
    for name in ("my_method.py", "clips/a", "clips/b"):
        write(name, text="a = 2\n")
        assert staged(typed).id not in (first, staged("run my_method.py").id)
        first = staged(typed).id
    assert staged("data check moving-cvlm").id.startswith("data-check-moving-cvlm-")
    assert len(staged("run --seeds 3 moco").id) == len("run-") + 10


def test_what_is_installed_is_all_that_is_needed_but_torch_and_ray() -> None:
    asked = install.requirements()
    names = {line.partition("<")[0].partition(">")[0].partition("=")[0] for line in asked}
    assert {"transformers", "open-clip-torch", "timm", "optuna", "regex", "av"} <= names
    assert not {name for name in names if name.startswith(("torch", "ray", "nvidia", "triton", "kinoray"))}
    assert "--no-deps" in install.pip(asked)["pip_install_options"]
    from importlib.metadata import version

    from packaging.requirements import Requirement

    assert all(Requirement(line).specifier.contains(version(Requirement(line).name)) for line in asked)


def test_install_is_part_of_what_is_sent(staged, tmp_path: Path) -> None:
    bare = staged("run bmu_moco")
    sent = ship.stage(["run", "bmu_moco"], tmp_path / "t", {}, "/R", install=True)
    assert sent.id != bare.id and "pip" not in submit.runtime_env(bare)
    assert submit.runtime_env(sent)["pip"] == {
        "packages": install.requirements(),
        "pip_check": False,
        "pip_install_options": ["--no-deps", "--disable-pip-version-check", "--no-cache-dir"],
    }
