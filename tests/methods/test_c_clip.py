"""C-CLIP beside its equations: CKC by hand, LoRA at weight 0, merges by share, groups by tower."""

from types import SimpleNamespace

import pytest
import torch
from support.random_numbers import drawn

from kinoray.backbones import load_backbone
from kinoray.backbones.lora import LowRank
from kinoray.equations import clip_contrast, unit
from kinoray.methods.c_clip import Config, Method, knowledge_contrast
from kinoray.testing.engine import run_spec, spec_of, stopped
from kinoray.testing.small_stream import suited

NOW = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [1.0, 1.0]]], dtype=torch.float64)
OLD = torch.tensor([[[1.0, 0.5], [0.2, 1.0]], [[0.0, 1.0], [1.0, 0.8]]], dtype=torch.float64)
ALONE = SimpleNamespace(global_size=2, gather=lambda x: x)
"""Two samples of one rank, a video's and a caption's features in each."""


def made(backbone: str = "tiny-clip:random", **settings: object) -> Method:
    return Method(Config(**settings), load_backbone(backbone), 2).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "temperature", "wanted"),
    [("stack", 0.07, 0.5936967062), ("stack", 0.5, 1.0171389917), ("concat", 0.07, 0.0034379792),
     ("concat", 0.5, 0.3337045200)],
)  # fmt: skip
def test_the_contrast_with_the_old_model_is_that_worked_out_by_hand(shape, temperature, wanted) -> None:
    h, z = (x if shape == "stack" else x.flatten(1)[:, None] for x in (NOW, OLD))
    assert knowledge_contrast(ALONE, h, z, temperature).item() == pytest.approx(wanted, abs=1e-9)
    both = clip_contrast(ALONE, unit(OLD[:, 0]), unit(OLD[:, 1]), 1 / 0.07)
    assert (sum(both) / 2).item() == pytest.approx(5.1469057475, abs=1e-9)


def test_at_weight_0_it_is_lora_bit_for_bit(micro, tmp_path) -> None:
    shared = {"rank": 4, "alpha": 8.0, "layers": "all", "merged_share": 0.5}
    own = {"ckc_weight": 0.0, "text_rate": 1.0}
    ends = []
    for name, settings in (("lora", shared), ("c_clip", shared | own)):
        spec = spec_of(name, suited(name, micro), tmp_path / name, settings=settings)
        assert run_spec(spec)
        ends.append(stopped(spec, 0).state_dict())
    assert ends[0].keys() == ends[1].keys() and all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_task_leaves_its_share_of_what_it_has_learned(share: float) -> None:
    method = made(merged_share=share)
    towers = method.online.state_dict()
    wanted, by_name = {}, dict(method.online.named_modules())
    with torch.no_grad():
        for number, (name, pair) in enumerate((n, m) for n, m in by_name.items() if isinstance(m, LowRank)):
            pair.up_POr.copy_(drawn(*pair.up_POr.shape, seed=number))
            before = towers[name.removesuffix(".0") + ".original"].clone()
            wanted[name] = before + share * 2.0 * torch.cat([*(pair.up_POr @ pair.down_PrI)])
        method.end_task(None)  # type: ignore[arg-type]
    after = method.online.state_dict()
    assert wanted and all(
        torch.allclose(after[name.removesuffix(".0") + ".original"], value, atol=1e-5) for name, value in wanted.items()
    )


@pytest.mark.parametrize("backbone", ["tiny-clip:random", "tiny"])
@pytest.mark.parametrize("embeddings", [False, True])
def test_the_text_tower_has_a_rate_of_its_own_and_embeddings_train_if_asked(backbone: str, embeddings: bool) -> None:
    groups = made(backbone, embeddings=embeddings).param_groups()
    assert groups["text"].rate == 10.0 and groups["video"].rate == 1.0
    assert all(("vis" in name) == (group == "video") for group in ("video", "text") for name in groups[group].params)
    trains = [name for group in ("video", "text") for name in groups[group].params if "parametrizations" not in name]
    assert len(trains) == ({"tiny": 5, "tiny-clip:random": 4}[backbone] if embeddings else 0), trains


def test_the_old_model_is_the_one_before_the_task_and_the_first_task_may_go_without(micro, tmp_path) -> None:
    for first, terms in ((True, 8), (False, 4)):
        spec = spec_of("c_clip", suited("c_clip", micro), tmp_path / str(first), settings={"ckc_first_task": first})
        assert run_spec(spec)
        lines = (tmp_path / str(first)).rglob("metrics.jsonl")
        assert next(lines).read_text().count("loss/ckc") == terms
    method = stopped(spec, 0)
    assert isinstance(method, Method)
    method.begin_task(SimpleNamespace(index=1))  # type: ignore[arg-type]
    before, now = method.before.module.state_dict(), method.online.state_dict()
    assert all(torch.equal(before[name], now[name]) for name in now)
    assert not any(p.requires_grad for p in method.before.parameters())
