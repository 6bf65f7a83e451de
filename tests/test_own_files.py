"""A user's own backbone, method, protocol and stream, each a short file outside the repository or a class."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.clips import grey_ramp, write_clip
from support.places import REPOSITORY

import kinoray
from kinoray import source
from kinoray.backbones import find_backbone, load_backbone
from kinoray.backbones.backbone import Backbone
from kinoray.errors import UsageError
from kinoray.evaluation.protocol import BaseProtocol, load_protocol
from kinoray.evaluation.protocols import cvlm
from kinoray.runs.result import Result
from kinoray.source import named
from kinoray.streams import Stream, load_stream
from kinoray.sweeps.plan import make_plan
from kinoray.sweeps.request import SweepRequest
from kinoray.sweeps.study import known_objectives
from kinoray.testing.engine import resolved

OWN = Path(__file__).parent / "support" / "own"
LONGEST = {"my_videomae.py": 60, "my_lora.py": 60, "my_protocol.py": 50}
ONE_STEP = {"max_steps": 1, "validations": 1}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files, as the current one."""
    for name in LONGEST:
        shutil.copy(OWN / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(method: Any, stream: Stream, **options: Any) -> Result:
    settings = ONE_STEP | options.pop("settings", {})
    made = kinoray.run(method, stream=stream, num_workers=0, runs="runs", quiet=True, settings=settings, **options)
    assert isinstance(made, Result)
    return made


def test_none_of_the_files_is_long() -> None:
    for name, most in LONGEST.items():
        assert len((OWN / name).read_text().splitlines()) <= most, name
    engine = "".join(path.read_text() for path in (REPOSITORY / "platform").rglob("*.py"))
    assert not [name for name in ("my_videomae", "my_lora", "MRR") if name in engine]


def test_own_method_and_protocol_run_and_are_read_without_their_code(there: Path, micro, kino, monkeypatch) -> None:
    result = run("./my_lora.py", replace(micro, protocol="./my_protocol.py"))
    ranks = result.ranks
    last = ranks[(ranks["reading"] == "") & (ranks["after_task"] == ranks["after_task"].max())]
    by_hand = [[100 / (1 + rank) for rank in of_task["rank"]] for _, of_task in last.groupby("task")]
    assert result.metrics["MRR"] == pytest.approx(np.mean([np.mean(values) for values in by_hand]))
    assert (result.folder / "protocol.py").read_text() == (OWN / "my_protocol.py").read_text()
    assert kinoray.open_method(result).spec.run.stream.protocol.source.text == (OWN / "my_protocol.py").read_text()

    def refuse(*_: object) -> None:
        raise AssertionError("showing results runs no recorded code")

    monkeypatch.setattr(source, "run_text", refuse)
    shown = kinoray.load(result.folder)
    assert "MRR" in repr(shown) and shown.protocol.metrics == result.protocol.metrics
    assert "mean reciprocal rank" in shown.protocol.about
    code, table, err = kino("compare", result.folder)
    assert code == 0 and "MRR" in table, err


def test_an_own_backbone_trains_is_reopened_and_is_trained_further(there: Path, micro) -> None:
    pictures = replace(micro, protocol="ucl")
    result = run("simsiam", pictures, backbone="./my_videomae.py:1", settings={"frames": 3})
    assert result.run["backbone"] == "my_videomae:1" and result.run["backbone_source"]["file"] == "backbone.py"
    (there / "my_videomae.py").unlink()
    opened = kinoray.open_method(result)
    assert type(opened.method.encoder().trunk).__name__ == "MyVideoMae" and len(repr(opened)) < 200
    further = run("simsiam", pictures, backbone=f"run:{result.folder}", settings={"frames": 2})
    assert further.state == "finished"
    (result.folder / "backbone.py").write_text("# another\n")
    with pytest.raises(UsageError, match="is not the backbone that the run was made with"):
        kinoray.open_method(result)


def test_the_code_of_each_part_is_the_identity_of_the_run(there: Path, micro) -> None:
    def folder(**options: Any) -> str:
        stream = replace(micro, protocol=options.pop("protocol", "ucl"))
        return resolved("simsiam", stream, there / "runs", **options).folder.parent.name

    before = folder(backbone="./my_videomae.py")
    assert folder(backbone=there / "my_videomae.py") == before != folder(backbone="./my_videomae.py:1")
    with (there / "my_videomae.py").open("a") as file:
        file.write("# edited\n")
    assert folder(backbone="./my_videomae.py") != before

    (there / "tested.py").write_text(
        "from kinoray.evaluation.protocols import ucl\nclass Protocol(ucl.Protocol):\n    like = 'ucl'\n"
    )
    first = folder(protocol="./tested.py")
    assert first != folder()
    with (there / "tested.py").open("a") as file:
        file.write("    pooled = True\n")
    assert folder(protocol="./tested.py") != first


class Mean(Backbone):
    """As typed into a notebook."""

    dim, mean, std = 3, (0.5,) * 3, (0.5,) * 3

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(3, 3)

    def embed_video(self, frames_BTCHW: torch.Tensor) -> torch.Tensor:
        return self.mix(frames_BTCHW.mean(dim=(1, 3, 4)))


class Same(cvlm.Protocol):
    like = "cvlm"


def test_classes_serve_as_files_do(there: Path, micro) -> None:
    result = run("simsiam", replace(micro, protocol="ucl"), backbone=Mean)
    assert result.run["backbone"] == "Mean" and result.run["backbone_source"]["kind"] == "class"
    assert "class Mean(Backbone)" in (result.folder / "backbone.py").read_text()
    with pytest.raises(UsageError, match="Mean, is a class of a running program"):
        kinoray.open_method(result)
    name = named(Same, "protocol", BaseProtocol)
    assert load_protocol(name).name == "Same" == str(name)
    assert resolved("base_moco", replace(micro, protocol=Same), there).stream.protocol.source.pickled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no {kind} file .*own.py"),
        ("x = 1", "own.py defines no class derived from"),
        ("import nowhere_at_all", "own.py does not run: ModuleNotFoundError"),
        ("def f(:", "own.py does not run: SyntaxError"),
        (
            "{imports}class A({base}): pass\nclass B({base}): pass",
            "defines A and B: say which one is meant, as `{constant} = B`",
        ),
        ("{constant} = 3", "`{constant}` must be a class derived from"),
        ("{imports}class Mine({base}): pass", "own: its class lacks"),
    ],
)
@pytest.mark.parametrize("kind", ["backbone", "protocol"])
def test_what_is_wrong_with_a_file_is_told_in_one_line(there: Path, kind: str, text: str | None, message: str) -> None:
    words = {
        "backbone": ("BACKBONE", "Backbone", "from kinoray.backbones.backbone import Backbone\n"),
        "protocol": ("Protocol", "BaseProtocol", "from kinoray.evaluation.protocol import BaseProtocol\n"),
    }[kind]
    filled = {"kind": kind, **dict(zip(("constant", "base", "imports"), words, strict=True))}
    if text is not None:
        (there / "own.py").write_text(text.format(**filled))
    with pytest.raises(UsageError, match=message.format(**filled)) as raised:
        if kind == "backbone":
            find_backbone("./own.py")
        else:
            load_protocol(named("./own.py", kind, BaseProtocol))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no `load"),
        ("def load(name, argument): return 3", "its `load` returned a int, not a Stream"),
        ("raise OSError('gone')", "own.py does not run: OSError: gone"),
    ],
)
def test_what_is_wrong_with_a_stream_is_told_in_one_line(there: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match="There is no stream file"):
        load_stream("./own.py")
    (there / "own.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_stream("./own.py:3")


def test_other_wrong_parts_are_refused(there: Path, micro) -> None:
    with pytest.raises(UsageError, match="takes no options, because it defines no `load`"):
        resolved("simsiam", replace(micro, protocol="ucl"), there, backbone=_written(there, BACKBONE) + ":3")
    with pytest.raises(UsageError, match="its `load` returned a int, not a Backbone"):
        load_backbone(find_backbone(_written(there, BACKBONE + "\ndef load(*a): return 3")))
    with pytest.raises(UsageError, match="Give a backbone as a name, "):
        resolved("simsiam", micro, there, backbone=3)
    protocol = "from kinoray.evaluation.protocols import cvlm\nclass Mine(cvlm.Protocol):\n    objective = 'nothing'"
    with pytest.raises(UsageError, match="nothing is not one of the protocol's `metrics`"):
        resolved("base_moco", replace(micro, protocol=_written(there, protocol)), there)


BACKBONE = """from kinoray.backbones.backbone import Backbone
class Mine(Backbone):
    def embed_video(self, frames):
        return frames
"""


def _written(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return "./mine.py"


def test_a_name_that_is_neither_file_nor_folder_is_told_as_what_it_looks_like(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="There is no stream file"):
        load_stream("./my_stream.py:3")
    with pytest.raises(UsageError, match=r"There is no folder .*videos"):
        load_stream("./videos:./my_protocol.py")
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "my_stream.py").write_text("")
    with pytest.raises(UsageError, match=r"my_stream\.py defines no `load"):
        load_stream("./a:b/my_stream.py")


def test_a_folder_names_its_protocol(there: Path) -> None:
    folder = there / "videos"
    folder.mkdir()
    for number in range(3):
        write_clip(folder / f"{number}.mp4", grey_ramp(4))
    (folder / "captions.csv").write_text("video,caption,split\n0.mp4,a,train\n1.mp4,b,test\n2.mp4,c,validation\n")
    stream = load_stream("./videos:./my_protocol.py")
    assert stream.name == "videos:my_protocol" and stream.source == f"{folder}:{there}/my_protocol.py"
    assert resolved("base_moco", stream, there).stream.protocol == "my_protocol"


def test_a_record_of_somebody_else_runs_no_file(there: Path, micro) -> None:
    result = run("simsiam", replace(micro, protocol="ucl"))
    evil = _written(there, "from pathlib import Path\nPath('ran').write_text('')")
    record = json.loads((result.folder / "run.json").read_text())
    gone = [str(there / "gone.parquet")] * len(record["manifests"])
    for change in (
        {"backbone": evil},
        {"protocol": evil},
        {"manifests": gone, "stream_source": record["stream_source"] | {"made_from": evil}},
    ):
        (result.folder / "run.json").write_text(json.dumps(record | change))
        with pytest.raises(UsageError):
            kinoray.open_method(result.folder)
    assert not (there / "ran").exists()


def test_a_sweep_aims_at_what_an_own_protocol_computes(there: Path, micro) -> None:
    (there / "tested.py").write_text((REPOSITORY / "platform/kinoray/cli/templates/protocol.py").read_text())
    request = SweepRequest("base_moco", stream=replace(micro, protocol="./tested.py"), runs=there)
    plan = make_plan(request)
    assert plan.record["objectives"] == ["worst"]
    assert known_objectives(json.loads(json.dumps(plan.record)))["worst"] == "max"
    (there / "tested.py").write_text((there / "tested.py").read_text() + "# edited\n")
    assert make_plan(request).folder != plan.folder


TOWERS = """from kinoray.backbones import tiny
BACKBONE = tiny.BACKBONE
def load(name, argument, size_px, seed):
    return tiny.load("tiny", argument, size_px, seed)
"""


@pytest.mark.ray
def test_own_parts_travel_to_a_ray_worker(cluster: None, there: Path) -> None:
    templates = REPOSITORY / "platform/kinoray/cli/templates"
    shutil.copy(templates / "stream.py", there / "own_stream.py")
    (there / "towers.py").write_text(TOWERS)
    result = kinoray.run(
        "base_moco",
        stream=replace(load_stream("./own_stream.py:4"), protocol="./my_protocol.py"),
        backbone="./towers.py",
        settings=ONE_STEP | {"queue_size": 8},
        num_workers=1,
        runs="runs",
        quiet=True,
    )
    assert result.state == "finished" and result.metrics["MRR"] > 0
    assert (result.stream, result.run["backbone"]) == ("own_stream:4", "towers")
