"""Towers that two packages ship: read as data, mapped by order, in eval mode where they normalise; errors in a line."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.stored import write_towers

from kinoray.backbones import backbone_class, check_backbone, is_small, load_backbone, weights_digest, weights_folder
from kinoray.backbones.backbone import FrameTowers, MixedTokens, Tokens
from kinoray.backbones.lite0_minilm import LITE0, MINILM, Lite0MiniLM, read_lite0
from kinoray.backbones.stored import StoredTowers
from kinoray.errors import UsageError


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_towers(tmp_path_factory.mktemp("towers") / "towers" / "unpacked")


def tokens_of(towers: FrameTowers, *captions: str) -> Tokens:
    ids, mask = towers.tokenize(list(captions), 64)
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask))


def test_weights_are_mapped_by_their_order(unpacked: Path) -> None:
    given = [value for name, value in torch.load(unpacked / LITE0, weights_only=True).items() if "_fc" not in name]
    own = read_lite0(unpacked / LITE0).state_dict()
    assert len(own) == len(given) == 294
    assert all(torch.equal(value, other) for value, other in zip(own.values(), given, strict=True))


def test_both_towers_embed_in_one_space(unpacked: Path) -> None:
    towers = load_backbone(f"lite0-minilm:{unpacked}", 64)
    assert isinstance(towers, Lite0MiniLM) and towers.multiple_px == 32
    clips = torch.randn(2, 3, 3, 64, 64)
    video, text = towers.embed_video(clips), towers.embed_text(tokens_of(towers, "a red ball", "a dog that runs away"))
    for of_one in (video, text):
        assert of_one.shape == (2, 256)
        torch.testing.assert_close(of_one.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(towers.embed_frames(clips)[1, 2], towers.embed_frames(clips[1:, 2:])[0, 0])
    alone = towers.embed_text(tokens_of(towers, "a red ball"))
    torch.testing.assert_close(text[:1], alone)  # padding changes nothing


def test_training_changes_no_statistics_and_drops_nothing(unpacked: Path) -> None:
    towers = load_backbone(f"lite0-minilm:{unpacked}", 64).train()
    clips, before = torch.randn(2, 1, 3, 64, 64), {name: value.clone() for name, value in towers.named_buffers()}
    first = towers.embed_video(clips)
    torch.testing.assert_close(first[:1], towers.embed_video(clips[:1]))
    assert all(torch.equal(value, before[name]) for name, value in towers.named_buffers())
    assert torch.equal(first, towers.eval().embed_video(clips))
    first.sum().backward()
    assert all(p.grad is not None for name, p in towers.named_parameters() if name.startswith("vision"))


def test_the_seed_draws_the_projections_alone(unpacked: Path) -> None:
    first, again, other = (load_backbone(f"lite0-minilm:{unpacked}", seed=seed).state_dict() for seed in (0, 0, 1))
    differing = {name for name in first if not torch.equal(first[name], other[name])}
    assert differing == {f"{side}_projection.{kind}" for side in ("vision", "text") for kind in ("weight", "bias")}
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_weights_lie_where_they_were_fetched_and_count_in_the_digest(unpacked: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KINORAY_DATA", str(unpacked.parent.parent))
    assert weights_folder("lite0-minilm") == [unpacked / LITE0, unpacked / MINILM / "model.safetensors"]
    assert weights_digest("lite0-minilm") == weights_digest(f"lite0-minilm:{unpacked}") != ""
    shutil.copytree(unpacked, tmp_path / "other")
    with (tmp_path / "other" / LITE0).open("ab") as file:
        file.write(b"0")
    assert weights_digest(f"lite0-minilm:{tmp_path / 'other'}") != weights_digest("lite0-minilm")


def test_what_is_missing_or_damaged_is_one_line_with_the_command(unpacked: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("KINORAY_DATA", raising=False)
    with pytest.raises(UsageError, match=r"Set KINORAY_DATA .* run `kinoray data fetch towers`"):
        load_backbone("lite0-minilm")
    monkeypatch.setenv("KINORAY_DATA", str(tmp_path))
    with pytest.raises(UsageError, match=r"lack .*efficientnet-lite0.*Run `kinoray data fetch towers`, or name"):
        load_backbone("lite0-minilm")
    damaged = tmp_path / "towers" / "unpacked"
    shutil.copytree(unpacked, damaged)
    state = torch.load(damaged / LITE0, weights_only=True)
    torch.save(dict(list(state.items())[1:]), damaged / LITE0)
    with pytest.raises(UsageError, match=r"another network.*Run `kinoray data fetch towers`"):
        load_backbone("lite0-minilm")
    (damaged / LITE0).write_bytes(b"no weights")
    with pytest.raises(UsageError, match=r"cannot be read"):
        load_backbone("lite0-minilm")
    shutil.copy(unpacked / LITE0, damaged / LITE0)
    settings = json.loads((damaged / MINILM / "config.json").read_text())
    (damaged / MINILM / "config.json").write_text(json.dumps(settings | {"hidden_size": 20}))
    with pytest.raises(UsageError, match=r"cannot be read"):
        load_backbone("lite0-minilm")


def test_a_file_of_weights_runs_no_code(unpacked: Path, tmp_path) -> None:
    class Runs:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    shutil.copytree(unpacked, tmp_path / "other")
    torch.save({"a": Runs()}, tmp_path / "other" / LITE0)
    with pytest.raises(UsageError, match=r"cannot be read"):
        load_backbone(f"lite0-minilm:{tmp_path / 'other'}")
    assert not (tmp_path / "ran").exists()


def test_a_words_form_is_checked_and_says_which_class_it_has() -> None:
    assert check_backbone("lite0-minilm:frozen,aligned") == "lite0-minilm"
    assert backbone_class("lite0-minilm:frozen") is StoredTowers and is_small("lite0-minilm:frozen,aligned")
    assert backbone_class("lite0-minilm:aligned") is Lite0MiniLM and not is_small("lite0-minilm")
    for argument, match in (
        ("frozn", "'frozn'.*'frozen'"),
        ("frozen,/towers", "not frozen beside a folder"),
        ("/a,/b", "one folder"),
    ):
        with pytest.raises(UsageError, match=match):
            check_backbone(f"lite0-minilm:{argument}")
    with pytest.raises(UsageError, match=r"not made yet. Run `kinoray data vectors sprites`"):
        load_backbone("lite0-minilm:frozen")


def test_stored_towers_project_rows_of_a_table_and_mix_them() -> None:
    table = torch.randn(3, 5).half()
    towers = StoredTowers(["", "a dog", "a cat"], table, 7, 4, "kinoray data vectors toy")
    tokens = tokens_of(towers, "a cat", "a dog")
    assert tokens.ids.tolist() == [[2], [1]] and tokens.mask.all()
    torch.testing.assert_close(towers.project_text(tokens), towers.text_projection(table.float()[[2, 1]]))
    mixed = MixedTokens(tokens.ids, tokens.ids.flip(0), tokens.mask, 0.25)
    wanted = 0.25 * towers.project_text(tokens) + 0.75 * towers.project_text(tokens).flip(0)
    torch.testing.assert_close(towers.project_text(mixed), wanted)
    drawn = towers.random_tokens(50, 6)
    assert drawn.ids.shape == (50, 1) and set(drawn.ids.flatten().tolist()) == {0, 1, 2}
    assert set(towers.state_dict()) == {f"{s}_projection.{k}" for s in ("vision", "text") for k in ("weight", "bias")}
    with pytest.raises(UsageError, match=r"no stored vector of the caption 'a bird'. Run `kinoray data vectors toy`"):
        towers.tokenize(["a dog", "a bird"], 8)
    with pytest.raises(UsageError, match=r"vectors have 6 numbers, not 7"):
        towers.embed_video(torch.zeros(1, 2, 6))
    assert np.array_equal(towers.tokenize([], 8)[0], np.empty((0, 1)))


def test_the_published_towers_agree_on_likeness() -> None:
    if not (Path(os.environ.get("KINORAY_DATA", "/nowhere")) / "towers" / "unpacked" / LITE0).is_file():
        pytest.skip("KINORAY_DATA holds no towers (kinoray data fetch towers)")
    towers = load_backbone("lite0-minilm").eval()
    assert isinstance(towers, Lite0MiniLM)
    towers.text_projection = torch.nn.Identity()
    dog, puppy, stocks = towers.embed_text(tokens_of(towers, "A dog runs", "a puppy is running", "stock prices fell"))
    assert dog @ puppy > 0.7 and dog @ stocks < 0.2
