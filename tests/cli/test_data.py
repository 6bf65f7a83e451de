"""`kinoray data`: what the commands print, write and answer to mistakes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from support import toy_set
from support.clips import grey_ramp, write_clip
from support.denied import obeying_modes
from support.places import REPOSITORY
from support.toy_set import write_set

from kinoray.cli import main as cli
from kinoray.cli.data import data_app
from kinoray.datasets.probing import FILE
from kinoray.system.folders import prepared_folder

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]

SLOW = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path.insert(0, {str(REPOSITORY / "tests")!r})
import pytest
from support import toy_set
from kinoray.cli import main as cli
from kinoray.cli.data import data_app
from kinoray.datasets import probing
toy_set.register(pytest.MonkeyPatch())
if "data" not in [group.name for group in cli.app.registered_groups]:
    cli.app.add_typer(data_app, name="data")
probe = probing.probe_batch
probing.probe_batch = lambda parts, root: (time.sleep(0.3 * len(parts)), probe(parts, root))[1]
cli.main()
"""
"""The command line with the toy set, a third of a second for each file."""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def root(rendered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    toy_set.register(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if "data" not in [group.name for group in cli.app.registered_groups]:
        monkeypatch.setattr(cli.app, "registered_groups", [*cli.app.registered_groups])
        cli.app.add_typer(data_app, name="data")
    return Path(shutil.copytree(rendered, tmp_path / "set"))


@pytest.fixture
def ready(kino: Command, root: Path) -> Path:
    assert kino("data", "prepare", "toy", "--root", root, "--workers", 0, "--quiet")[0] == 0
    return root


def test_prepare_says_what_it_found_and_where(kino: Command, root: Path) -> None:
    (root / "videos" / "v6.mp4").unlink()
    (root / "videos" / "v7.mp4").write_bytes(b"\0\0\0\x18ftyp")
    code, out, err = kino("data", "prepare", "toy", "--root", root, "--workers", 0)
    assert code == 0
    lines = out.splitlines()
    assert lines[:2] == [f"toy in {root}", "Layout: toy.json beside videos/"]
    cells = [line.split() for line in lines if line.startswith(("train", "test"))]
    assert cells == [["train", "4", "4", "4", "8", "8"], ["test", "2", "2", "0", "-", "0"]]
    folder = prepared_folder("toy")
    assert f"1 missing: {folder}/missing.txt" in lines and "    v6  test  v6" in lines
    assert f"1 corrupt: {folder}/corrupt.txt" in lines and "Note: a toy" in lines
    assert lines[-2:] == ["7 probed, 0 known from before.", f"Manifest: {folder}/manifest.parquet"]
    assert "Probing toy: 7/7, 1 bad, ETA 0:00" in err


def test_prepare_answers_in_json_and_finds_the_root_by_the_variable(
    kino: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KINORAY_DATA", raising=False)
    assert "Give their folder with --root" in kino("data", "prepare", "toy", "--workers", 0)[2]
    root.rename(root.with_name("toy"))
    monkeypatch.setenv("KINORAY_DATA", str(root.parent))
    code, out, err = kino("data", "prepare", "toy", "--workers", 0, "--json", "--quiet")
    answer = json.loads(out)
    assert (code, err) == (0, "") and answer["root"] == str(root.with_name("toy"))
    assert answer["problems"] == dict(missing=0, corrupt=0, short=0, duplicate=0, extra=0)
    assert answer["splits"]["validation"]["ready"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare", "toi", "--root", "."], "There is no data set named 'toi'. Did you mean 'toy"),
        (["prepare", "toy", "--root", "nowhere"], "There is no folder"),
        (["check", "toy"], "toy is not prepared. Run `kinoray data prepare toy --root DIR` first."),
        (["show", "toy", "v0"], "toy is not prepared."),
        (["show", "moving-cvln", "a"], "Did you mean 'moving-cvlm'"),
        (["show", "none.parquet", "v0"], "There is no manifest"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(kino: Command, root: Path, words: list[str], message: str) -> None:
    code, out, err = kino("data", *words)
    assert (code, out) == (2, "") and message in err and len(err.splitlines()) == 1


def test_check_exits_with_1_where_files_changed(kino: Command, ready: Path) -> None:
    code, out, _ = kino("data", "check", "toy", "--deep")
    assert (code, out) == (0, f"toy: 8 files in {ready}, all as they were probed.\n")
    (ready / "videos" / "v0.mp4").unlink()
    code, out, _ = kino("data", "check", "toy")
    assert code == 1 and out.splitlines()[0] == "videos/v0.mp4: No such file or directory"
    assert "`kinoray data prepare toy --root DIR`" in out
    code, out, _ = kino("data", "check", "toy", "--json", "--quiet")
    assert code == 1 and len(json.loads(out)["problems"]) == 1


def test_show_writes_a_sheet(kino: Command, ready: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "v3.png"
    code, out, _ = kino("data", "show", "toy", "v3", "--out", out_file, "--frames", 3)
    assert (code, out) == (0, f"Wrote {out_file}\n")
    assert "1. a grey clip number 3" in Image.open(out_file).text["Description"].splitlines()
    code, _, err = kino("data", "show", "toy", "v33")
    assert code == 2 and "Did you mean 'v3'" in err


def test_list_tells_what_is_known_and_prepared(kino: Command, ready: Path) -> None:
    code, out, _ = kino("data", "list")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("toy "))
    assert line.split()[1] == "prepared" and "4 train, 2 validation, 2 test" in line
    sets = json.loads(kino("data", "list", "--json")[1])["data_sets"]
    toy = next(known for known in sets if known["name"] == "toy")
    assert toy["prepared"] and toy["captions"] == {"train": 8} and toy["licence"] == "none"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_keeps_what_it_probed(kino: Command, root: Path, number: signal.Signals, code: int) -> None:
    words = [sys.executable, "-c", SLOW, "data", "prepare", "toy", "--root", str(root), "--workers", "0"]
    record = prepared_folder("toy") / FILE
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None and not (record.exists() and record.read_bytes()):
                time.sleep(0.01)
            os.kill(process.pid, number)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, out) == (code, ""), err
    assert (
        err.splitlines()[-1].endswith("Run the same command again to resume from the last saved state.")
        and "Trace" not in err
    )
    kept = record.read_bytes().count(b"\n")
    report = json.loads(kino("data", "prepare", "toy", "--root", root, "--workers", 0, "--json", "--quiet")[1])
    assert 1 <= kept == report["known"] < 8


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys\nfrom kinoray.cli.data import data_app\ntry:\n    data_app()\nexcept SystemExit:\n    pass\n"
        "heavy = ('torch', 'ray', 'av', 'pandas', 'pyarrow', 'numpy', 'matplotlib', 'PIL')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and "prepare" in done.stdout


def test_a_folder_of_ones_own_is_checked_at_once(kino: Command, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    for number, name in enumerate(("a.mp4", "b.mp4", "c.mkv")):
        write_clip(folder / name, grey_ramp(12, step=5 + number))
    shutil.copy(folder / "a.mp4", folder / "copy.mp4")
    data = (folder / "c.mkv").read_bytes()
    (folder / "c.mkv").write_bytes(data[: len(data) // 2])
    spans = ["a.mp4,x,,", "b.mp4,x,0,0.4", "b.mp4,x,0,90", "b.mp4,x,5,6", "c.mkv,x,,", "copy.mp4,x,,", "gone.mp4,x,,"]
    (folder / "captions.csv").write_text("\n".join(["video,caption,start,end", *spans]) + "\n")
    code, out, _ = kino("data", "check", folder, "--quiet")
    others = "2 unreadable, 1 shorter than their spans, 1 there twice"
    assert code == 1
    found = f"{folder}/captions.csv is read as a caption file:"
    assert out.splitlines() == [
        f"{found} 7 clips, 7 captions.",
        "b.mp4, 0 to 90 s: the video ends after 1.2 s",
        "b.mp4, 5 to 6 s: decode: the span begins at 5 s, behind the last frame at 1.10 s",
        f"c.mkv: decode: the file is cut off: {len(data) // 2:,} of {len(data):,} bytes",
        "copy.mp4: the same bytes as a.mp4",
        "gone.mp4: is listed, but not in the folder",
        f"{folder}: 5 files in {folder}, 5 problems (1 missing, {others}).",
    ]
    allowed = f"{folder}:allow-missing"
    assert kino("data", "check", allowed, "--quiet")[1].splitlines()[-2:] == [
        "gone.mp4: is listed, but not in the folder",
        f"{allowed}: 5 files in {folder}, 4 problems ({others}), 1 missing and left out.",
    ]
    (folder / "captions.csv").write_text("video,caption\na.mp4,x\nb.mp4,x\n")
    code, out, _ = kino("data", "check", folder, "--quiet")
    assert (code, out.splitlines()) == (
        0,
        [
            f"{found} 2 clips, 2 captions.",
            "2 files that no row names are left out, first 'c.mkv', 'copy.mp4'.",
            f"{folder}: 2 files in {folder}, all can be read.",
        ],
    )


def test_a_file_without_permission_and_a_loop_of_links_do_not_end_the_check(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    for name in ("a.mp4", "b.mp4", "private/c.mp4"):
        write_clip(folder / name, grey_ramp(4, step=len(name)))
    (folder / "b.mp4").chmod(0)
    (folder / "private").chmod(0)
    (folder / "l1.mp4").symlink_to("l2.mp4")
    (folder / "l2.mp4").symlink_to("l1.mp4")
    names = ("a.mp4", "b.mp4", "l1.mp4", "private/c.mp4", "gone.mp4")
    (folder / "captions.csv").write_text("video,caption\n" + "".join(f"{name},x\n" for name in names))
    words = [*obeying_modes(), sys.executable, "-m", "kinoray", "data", "check", str(folder), "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True)
    (folder / "private").chmod(0o755)  # for the tests' own cleaning up
    assert done.stdout.splitlines() == [
        f"{folder}/captions.csv is read as a caption file: 5 clips, 5 captions.",
        "1 files that no row names are left out, first 'l2.mp4'.",
        "b.mp4: open: no permission to read it",
        "gone.mp4: is listed, but not in the folder",
        "l1.mp4: its links lead in a circle",
        "private/c.mp4: no permission to read it",
        f"{folder}: 5 files in {folder}, 4 problems (3 missing, 1 unreadable).",
    ]
    assert (done.returncode, done.stderr) == (1, "")
