"""The README and the pages of the site name commands, options, files and Python names that exist."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer
from support.clips import grey_ramp, write_clip
from support.places import REPOSITORY
from support.run_folders import make_run
from support.toy_set import read_rows, write_set

import kinoray
from kinoray.cli.main import app
from kinoray.config import Recipe, names_of
from kinoray.method import BaseMethod
from kinoray.report.tables import Comparison
from kinoray.runs.experiment_file import read_experiment
from kinoray.runs.method_source import find_method
from kinoray.runs.result import Result
from kinoray.streams import stream_families

ROOT = REPOSITORY
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "cluster" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```([^\n`]*)\n(.*?)^```$", TEXT, re.S | re.M)
LINES = [line.split("#")[0].strip() for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
COMMANDS = sorted({command.strip() for line in LINES for command in re.split(r" &&? ", line)})


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("kinoray ")])
def test_commands_of_the_pages_exist_with_their_options(command: str) -> None:
    words = shlex.split(command.replace("[", "").replace("]", ""))[1:]
    known = typer.main.get_command(app)
    while words and words[0] in getattr(known, "commands", {}):
        known = known.commands[words.pop(0)]
    assert not hasattr(known, "commands"), f"{command}: no such command"
    options = {name for parameter in known.params for name in [*parameter.opts, *parameter.secondary_opts]}
    if known.name == "submit":  # what follows the address is a command of its own
        start = next(place for place, word in enumerate(words) if word.split("|")[0] in ("run", "sweep"))
        if "|" not in words[start]:
            test_commands_of_the_pages_exist_with_their_options(shlex.join(["kinoray", *words[start:]]))
        words = words[:start]
    assert {word for word in words if word.startswith("--")} <= options


STARTED = [
    command
    for command in COMMANDS
    if re.match("kinoray (run|sweep|reproduce) ", command)
    and not re.search(r"METHOD\.|NAME|\[|--stream s3:", command)  # `--stream s3://` waits for a network
]
SPACE = TEXT.split("--space my_space.yaml\n```\n\n```\n")[1].split("```")[0]


@pytest.fixture
def beside_ones_own(kino, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files of one's own that the pages name."""
    monkeypatch.chdir(tmp_path)
    for words in ("method my_method --single", "backbone my_backbone", "protocol my_protocol", "stream my_stream"):
        assert kino("new", *words.split())[0] == 0
    (tmp_path / "my_space.yaml").write_text(SPACE)
    write_set(tmp_path / "my-videos")
    rows = [(f"videos/{row['id']}.mp4", row["split"], row["captions"][0]) for row in read_rows(tmp_path / "my-videos")]
    table = "\n".join(",".join(row) for row in [("video", "split", "caption"), *rows])
    (tmp_path / "my-videos" / "captions.csv").write_text(table)
    (tmp_path / "videos").symlink_to("my-videos")
    return tmp_path


@pytest.mark.parametrize("command", STARTED)
def test_commands_of_the_pages_would_start_or_say_what_to_get_first(command: str, kino, beside_ones_own: Path) -> None:
    code, _, err = kino(*shlex.split(command)[1:], "--dry-run", "--runs", beside_ones_own / "runs")
    if code != 0:  # published sets, packages, and what lies in folders of the reader's machine
        assert code == 2 and "UsageError: " in err and "Traceback" not in err, err
        last = err.strip().splitlines()[-1]
        assert re.search(r"Not prepared yet: .* Run `kinoray data |[Tt]here is no (folder )?[^ ]*/|/weights/", last), (
            err
        )


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if re.match(r"kinoray (list|status|data list|cluster init|new) ?[^\[A-Z]*$", c)],
)
def test_commands_of_the_pages_that_show_or_write_a_little_run(command: str, kino, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", "bmu_moco")
    code, out, err = kino(*shlex.split(command)[1:])
    assert code == 0 and out + err, err


OF_RUNS = [
    re.sub(r" \[[^\]]*\]", "", command)  # what may be left out is
    for command in COMMANDS
    if re.match(r"kinoray (compare|report|search|export|bundle|describe|doctor|data check \.|submit --d)", command)
]


def test_commands_of_the_pages_that_read_runs_or_clips_run(
    micro, kino, beside_ones_own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    options = {"stream": micro, "smoke": True, "num_workers": 0, "quiet": True}
    base, bmu = (kinoray.run(name, **options).folder.parent.name for name in ("base_moco", "bmu_moco"))
    write_clip(beside_ones_own / "clip.mp4", grey_ramp(8))
    shutil.copytree(beside_ones_own / "my-videos", beside_ones_own / "clips")
    (beside_ones_own / "experiment.yaml").write_text("epochs: 1\n")
    named = {"/data/my-videos": "my-videos/"}
    named |= {"RUN...": bmu, "RUN": bmu, "base_moco-moving-cvlm-1f2e3d4c": base, "NAME": "bmu_moco", "FILE": "kept"}
    named |= {"stream=ctvr-msrvtt-10": f"stream={micro.name}", "hf": "safetensors"}  # its towers have no other form
    assert len(OF_RUNS) > 10
    for command in OF_RUNS:
        words = [named.get(word, word) for word in shlex.split(command)[1:]]
        code, out, err = kino(*words)
        assert code == 0 and out + err, f"{command}: {err}"
    code, out, err = kino("verify", "table.zip", "--stream", beside_ones_own / "my-videos")
    assert code == 4, (code, out + err)


def test_python_of_the_pages_runs(micro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    small = "stream=micro, smoke=True, num_workers=0, quiet=True"
    kinoray.run("base_moco", stream=micro, smoke=True, num_workers=0, quiet=True)
    (base,) = [folder for folder in (tmp_path / "runs").iterdir() if folder.name.startswith("base_moco")]
    run, loop, trained = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8"), re.S | re.M
    )
    names: dict[str, object] = {"micro": micro}
    exec(
        run.replace('stream="moving-cvlm"', small).replace("runs/base_moco-moving-cvlm-...", f"runs/{base.name}"), names
    )
    exec(loop.replace('stream="moving-cvlm"', "stream=micro").replace("seed=0", "seed=1"), names)
    folder = names["result"].folder  # type: ignore[attr-defined]
    write_clip(tmp_path / "clip.mp4", grey_ramp(8))
    trained = re.sub(r'"runs/bmu_moco-[^"]*"', repr(str(folder)), trained).replace(
        '"street"', repr(micro.tasks[0].name)
    )
    exec(trained, names)
    assert (tmp_path / "my-towers").is_dir()
    (read,) = [text for kind, text in BLOCKS if kind == "python" and "read_parquet" in text]
    exec(re.sub(r'"runs/[^"]*"', repr(f"{folder}/matrix.parquet"), read), names)
    assert names["table"].shape == (len(micro.tasks), len(micro.tasks))  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`kinoray (run [a-z][^`]*)` \|", TEXT))))
def test_the_commands_of_the_methods_would_start(command: str, kino, tmp_path: Path) -> None:
    code, _, err = kino(*shlex.split(command), "--dry-run", "--runs", tmp_path)
    assert code == 0, err


WEIGHTS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").split("| what you have |")[1].split("\n\n")[0]
FORMS = re.findall(r"`((?:hf|open_clip|clip|timm|vit-bert|features|run):[^`]+)`", WEIGHTS)


@pytest.mark.parametrize("form", FORMS)
def test_weights_of_each_form_are_accepted_or_refused_by_one_helpful_line(form: str, kino, tmp_path: Path) -> None:
    code, _, err = kino("run", "avg_pool", "--backbone", form, "--dry-run", "--runs", tmp_path)
    if code != 0:  # their own tests load what lies there (`tests/backbones`)
        assert code == 2 and err.startswith("UsageError: ") and err.count("\n") == 1, err
        named = form.partition(":")[2].strip("/").split("//")[-1]
        assert named in err, err


def test_the_experiment_of_the_pages_is_one(tmp_path: Path) -> None:
    (text,) = [text for kind, text in BLOCKS if kind == "yaml"]
    (tmp_path / "experiment.yaml").write_text(text)
    options, settings = read_experiment(tmp_path / "experiment.yaml")
    assert options["stream"] in stream_families()
    for name in options["method"]:
        known = names_of(find_method(name).load().Config) + names_of(Recipe)
        assert set(settings) <= set(known)


def test_make_targets_of_the_pages_exist() -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", TEXT, re.M))
    assert named
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert named <= targets


@pytest.mark.parametrize(
    ("file", "fact"),
    [
        ("platform/kinoray/training/optim.py", "The cosine falls with every step"),
        ("platform/kinoray/training/loop.py", "The optimizer is fresh at each task"),
        ("platform/kinoray/data/plan.py", "run over the ends of epochs"),
        ("methods/frame_fusion_moe.py", "Of equal validations the first is kept"),
        ("methods/frame_fusion_moe.py", "eps before the bias correction"),
        ("methods/avg_pool.py", "CLIP4Clip's cosine runs over all steps"),
        ("platform/kinoray/backbones/vit_bert.py", "run without dropout"),
        ("platform/kinoray/decoding/sampling.py", "the last frame repeats"),
        ("platform/kinoray/data/manifest.py", "how crops are to be drawn"),
        ("platform/kinoray/data/presets.py", "Differs"),
    ],
)
def test_what_moves_results_is_told_here_and_where_it_is_made(file, fact) -> None:
    section = TEXT.split("## What moves results")[1].split("\n## ")[0]
    assert f"(../{file})" in section
    assert fact in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_python_of_the_pages_uses_public_names() -> None:
    code = "\n".join(text for kind, text in BLOCKS if kind == "python")
    compile(code, "README.md", "exec")
    assert set(re.findall(r"(?<!from )kinoray\.(\w+)", code)) <= set(kinoray.__all__)
    known = set(dir(Result)) | set(dir(Comparison))
    assert set(re.findall(r"(?:result|both)\.(\w+)", code)) <= known


def test_the_worked_examples_of_the_pages_are_right() -> None:
    worked = [text for kind, text in BLOCKS if kind == "python" and "assert " in text]
    assert worked
    for text in worked:
        exec(compile(text, "a page", "exec"), {})


def test_the_method_of_the_readme_learns(micro, tmp_path: Path) -> None:
    code = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    (text,) = [text for text in code if "class Method(" in text]
    (tmp_path / "my_method.py").write_text(text)
    options = {"stream": micro, "runs": tmp_path / "runs", "smoke": True, "num_workers": 0, "quiet": True}
    assert kinoray.run(str(tmp_path / "my_method.py"), **options).state == "finished"


def test_verbs_of_the_page_are_a_methods() -> None:
    table = (ROOT / "docs" / "methods.md").read_text().split("| verb |")[1].split("\n\n")[0]
    verbs = re.findall(r"`(\w+)", "".join(line.split("|")[1] for line in table.splitlines()[2:]))
    assert len(verbs) > 9 and [verb for verb in verbs if not hasattr(BaseMethod, verb)] == []


def test_its_tables_say_what_the_kept_results_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import readme_tables

    pages = {
        "README.md": "](methods/base_moco.py)",
        "docs/reading-tables.md": "> no (shared): ",
        "docs/results.md": "| no |",
        "docs/settings.md": "| `0.07` |",
        "docs/which-runs.md": "| runs |",
    }
    assert pages.keys() == readme_tables.PAGES.keys()
    for page, typed in pages.items():
        text = (REPOSITORY / page).read_text()
        assert readme_tables.rewritten(page, text) == text, "run python benchmarks/readme_tables.py"
        changed = text.replace(typed, typed + "!")
        assert readme_tables.rewritten(page, changed) == text != changed, "what somebody typed there is written over"
