"""Exported weights load without kinoray, and give what the run's own encoder gives."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.model_folders import saved, saved_open_clip

import kinoray
from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.lora import add_lora
from kinoray.backbones.vision import open_clip, transformers
from kinoray.errors import UsageError
from kinoray.method import ParamGroup, TaskFacts
from kinoray.methods.avg_pool import Method as AvgPool
from kinoray.runs.result import Result
from kinoray.testing.engine import run_spec, spec_of
from kinoray.testing.small_stream import on_protocol


def run_of(method: str, micro, folder: Path, backbone: str = "") -> Path:
    stream = on_protocol(micro, "ctvr")
    options = {"backbone": backbone} if backbone else {}
    spec = spec_of(method, stream, folder, **options)
    assert run_spec(spec)
    return Path(spec.folder)


def test_a_vit_with_bert_comes_back_as_a_backbone(micro, tmp_path) -> None:
    run = run_of("base_moco", micro, tmp_path / "runs")
    folder = kinoray.export_weights(run, tmp_path / "weights")
    again, own = load_backbone(f"tiny:{folder}").eval(), kinoray.open_method(run).method.encoder()
    video = torch.randn(2, 2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(again.embed_video(video), own.embed_video(video))  # type: ignore[operator]
    about = json.loads((folder / "kinoray.json").read_text())
    assert (about["method"], about["seed"], about["tasks"]) == ("base_moco", 0, ["paper", "neon"])
    assert about["settings"]["m"] and about["size_px"] == 32 and str(tmp_path) not in json.dumps(about)


def test_a_plain_clip_has_open_clips_own_names(micro, tmp_path) -> None:
    run = run_of("avg_pool", micro, tmp_path / "runs", backbone="tiny-clip")
    weights = load_file(kinoray.export_weights(run, tmp_path / "weights") / "model.safetensors")
    library = open_clip()
    vision = library.CLIPVisionCfg(layers=12, width=48, head_width=16, patch_size=8, image_size=32)
    vocabulary = weights["token_embedding.weight"].shape[0]
    text = library.CLIPTextCfg(context_length=40, vocab_size=vocabulary, width=48, heads=3, layers=12)
    model = library.CLIP(48, vision, text)
    model.load_state_dict(weights)
    own = kinoray.open_method(run).method.encoder()
    tokens = Tokens(torch.tensor([[2, 50, 51, 3]]), torch.ones(1, 4, dtype=torch.bool))
    with torch.inference_mode():
        assert torch.allclose(
            model.eval().encode_image(torch.ones(1, 3, 32, 32)), own.model.visual(torch.ones(1, 3, 32, 32))
        )
        assert own.embed_text(tokens).shape == (1, 48)


LIBRARY = {
    "hf": lambda folder: transformers().CLIPModel.from_pretrained(folder),
    "open_clip": lambda folder: open_clip().create_model_from_pretrained(f"local-dir:{folder}")[0],
}


def zero_shot(folder: Path, to: str, stream, runs: Path) -> Result:
    return kinoray.run("avg_pool", stream=stream, backbone=f"{to}:{folder}", zero_shot=True, num_workers=0, runs=runs)


@pytest.mark.parametrize(("to", "make"), [("hf", partial(saved, "clip")), ("open_clip", saved_open_clip)])
def test_a_librarys_folder_loads_there_and_comes_back_as_a_backbone_with_the_runs_scores(
    to: str, make, micro, tmp_path
) -> None:
    stream, runs = on_protocol(micro, "cvlm"), tmp_path / "runs"
    options = {"stream": stream, "num_workers": 0, "runs": runs, "seed": 0}
    run = kinoray.run("avg_pool", backbone=f"{to}:{make(tmp_path / 'given')}", **options)
    folder = kinoray.export_weights(run, tmp_path / "weights", to=to)
    again = zero_shot(folder, to, stream, runs)
    last, whole = run.ranks.query("after_task == 1"), again.ranks
    keys = ["task", "sample", "rank", "gallery"]
    assert len(whole) and last[keys].to_numpy().tolist() == whole[keys].to_numpy().tolist()
    for task in run.tasks:
        own, theirs = run.features(task), again.features(task)
        assert own.index.equals(theirs.index) and np.allclose(own, theirs, atol=1e-6)
    assert not np.allclose(own, zero_shot(tmp_path / "given", to, stream, runs).features(task), atol=1e-3), "it learned"
    encoder, model = run.model().method.encoder(), LIBRARY[to](folder).eval()
    with torch.inference_mode():
        expected = encoder.embed_frames(torch.ones(1, 1, 3, 32, 32))[0]
        seen = (
            model.encode_image(torch.ones(1, 3, 32, 32))
            if to == "open_clip"
            else (model.get_image_features(torch.ones(1, 3, 32, 32)).pooler_output)
        )
    torch.testing.assert_close(seen, expected)
    card = (folder / "README.md").read_text()
    for said in (run.outcome["state_digest"], run.run["digests"]["data"]["paper"], "±", "learning_rate: ", f"{to}:own"):
        assert said in card, said
    assert not [file.name for file in folder.iterdir() if str(tmp_path).encode() in file.read_bytes()]


class LowRankPool(AvgPool):
    """Only LoRA learns."""

    def grow(self, task: TaskFacts) -> None:
        if task.index == 0:
            self.names = [f"online.{name}" for name in add_lora(self.online, 2)]

    def param_groups(self) -> dict[str, ParamGroup]:
        return {"lora": ParamGroup({name: self.get_parameter(name) for name in self.names}, rate=100.0)}


@pytest.mark.parametrize("to", ["hf", "safetensors"])
def test_lora_is_merged(to: str, micro, tmp_path) -> None:
    given, runs = saved("clip", tmp_path / "given"), tmp_path / "runs"
    stream = on_protocol(micro, "cvlm")
    run = kinoray.run(LowRankPool, stream=stream, backbone=f"hf:{given}", num_workers=0, runs=runs)
    folder = kinoray.export_weights(run, tmp_path / "weights", to=to, method=LowRankPool)
    weights = load_file(folder / "model.safetensors")
    before = {f"model.{k}" if to == "safetensors" else k: v for k, v in load_file(given / "model.safetensors").items()}
    assert weights.keys() == before.keys()
    moved = {name for name in weights if not torch.equal(weights[name], before[name])}
    assert moved and all("_proj" in name for name in moved)


def test_a_form_that_does_not_fit_is_refused_with_those_that_do(micro, tmp_path, kino) -> None:
    plain = run_of("base_moco", micro, tmp_path / "runs")
    adapted = run_of("moe_adapter", micro, tmp_path / "runs", backbone=f"clip:{saved_open_clip(tmp_path / 'given')}")
    before = sorted(tmp_path.iterdir())
    for run, to, words in (
        (plain, "hf", r"cannot be exported as hf\. Use --to safetensors"),
        (adapted, "hf", "--to safetensors or open_clip"),
        (adapted, "open_clip", "has parts that open_clip has no place for, such as adapters"),
        (plain, "onnx", "no form of weights named 'onnx'"),
    ):
        code, _, err = kino("export", "weights", str(run), "--to", to, "-o", str(tmp_path / "out"))
        assert code == 2 and err.count("\n") == 1 and re.search(words, err), err
    assert sorted(tmp_path.iterdir()) == before, "nothing is left"


def test_the_command_says_where_and_refuses_a_folder_that_is_there(micro, tmp_path, kino) -> None:
    run = run_of("base_moco", micro, tmp_path / "runs")
    folder = tmp_path / "own"
    assert json.loads(kino("export", "weights", str(run), "--out", str(folder), "--json")[1]) == {"folder": str(folder)}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years")
    for there in (folder, tmp_path / "other"):
        with pytest.raises(UsageError, match="exists already; nothing was written"):
            kinoray.export_weights(run, there)
    with pytest.raises(UsageError, match="Cannot write weights"):
        kinoray.export_weights(run, tmp_path / "other" / "thesis.tex" / "x")
