"""Pre-training: the loss against plain loops, tables of pairs, and two small runs."""

import json
import math

import av
import numpy as np
import pytest
import torch
from support.places import REPOSITORY, load_script

from kinoray.backbones import load_backbone
from kinoray.backbones.towers import TowerShape
from kinoray.errors import UsageError

pretrain = load_script(REPOSITORY / "benchmarks" / "pretrain.py")
MINUTE = TowerShape(width=16, vision_blocks=1, text_blocks=1, heads=1, size_px=16, patch_px=8, max_tokens=32, dim=8)


def write_png(path, rgb):
    with av.open(str(path), "w", format="image2") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 20, 16, "rgb24"
        pixels = np.broadcast_to(np.asarray(rgb, dtype=np.uint8), (16, 20, 3)).copy()
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


@pytest.fixture
def table(tmp_path):
    lines = ["image,caption"]
    for number in range(8):
        write_png(tmp_path / f"{number}.png", (30 * number, 255 - 30 * number, 80))
        lines.append(f"{number}.png,picture number {number}")
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_symmetric_info_nce_matches_plain_loops():
    generator = torch.Generator().manual_seed(0)
    video, text = (torch.nn.functional.normalize(torch.randn(4, 3, generator=generator), dim=1) for _ in range(2))
    total = 0.0
    for i in range(4):
        for a, b in ((video, text), (text, video)):
            scores = [math.exp(float(a[i] @ b[j]) / 0.1) for j in range(4)]
            total += -math.log(scores[i] / sum(scores))
    assert pretrain.symmetric_info_nce(video, text, 0.1).item() == pytest.approx(total / 8, rel=1e-5)


def test_equal_similarities_give_the_logarithm_of_the_batch():
    same = torch.ones(5, 4) / 2
    assert pretrain.symmetric_info_nce(same, same, 0.07).item() == pytest.approx(math.log(5), rel=1e-5)


def test_pretraining_tiny_twice_gives_the_same_weights_and_their_provenance(tmp_path):
    first, again = (pretrain.pretrain_tiny(tmp_path / n, steps=2, batch_size=4, progress=False, pairs=8) for n in "ab")
    assert all(torch.equal(again.state_dict()[k], v) for k, v in first.state_dict().items())
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    provenance = json.loads((tmp_path / "a/provenance.json").read_text())
    assert provenance["seed"] == 0 and provenance["steps"] == 2 and len(provenance["sha256"]) == 64
    assert load_backbone(f"tiny:{tmp_path / 'a'}").vocabulary == pretrain.world_vocabulary()


def test_pretraining_vit_bert_from_a_table_writes_a_backbone(table, tmp_path):
    out = tmp_path / "out"
    trained = pretrain.pretrain_vit_bert(table, out, shape=MINUTE, epochs=1, batch_size=4, progress=False)
    loaded = load_backbone(f"vit-bert:{out}")
    assert all(torch.equal(loaded.state_dict()[k], v) for k, v in trained.state_dict().items())
    further = pretrain.pretrain_vit_bert(
        table, tmp_path / "more", start=f"vit-bert:{out}", epochs=1, batch_size=8, progress=False
    )
    assert further.vocabulary == loaded.vocabulary


def test_an_image_is_read_with_its_colours(table):
    image = pretrain.read_image(table.parent / "2.png", 16)
    assert image.shape == (16, 16, 3) and image.dtype == np.uint8
    assert np.abs(image.reshape(-1, 3).astype(int) - (60, 195, 80)).max() <= 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pairs.txt", "", "must end in .parquet, .csv or .jsonl"),
        ("pairs.csv", "image,text\na.png,b\n", "columns image and caption, but has image, text"),
        ("pairs.csv", "image,caption\nmissing.png,b\n", "which is no file under"),
        ("pairs.csv", "image,caption\n../outside.png,b\n", "which is no file under"),
    ],
)
def test_a_wrong_table_is_one_clear_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        pretrain.read_pairs(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_too_few_pairs_and_a_broken_image_are_one_clear_line(table, tmp_path):
    with pytest.raises(UsageError, match="8 pairs, fewer than a batch of 9"):
        pretrain.pretrain_vit_bert(table, tmp_path / "out", shape=MINUTE, batch_size=9, progress=False)
    (table.parent / "3.png").write_bytes(b"no image")
    with pytest.raises(UsageError, match=r"3\.png cannot be decoded"):
        pretrain.pretrain_vit_bert(table, tmp_path / "out", shape=MINUTE, epochs=1, batch_size=8, progress=False)


def test_a_learned_vocabulary_starts_with_padding_and_keeps_common_words():
    vocabulary = pretrain.train_vocabulary(["the red fox", "the red hen", "the red cat"] * 5, size=200)
    assert vocabulary[0] == "[PAD]" and "red" in vocabulary and len(vocabulary) <= 200


def test_its_command_line_trains_or_says_in_a_line_what_is_wrong(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(pretrain, "pretrain_tiny", lambda **options: asked.append(options))
    monkeypatch.setattr("sys.argv", ["pretrain.py", "tiny", "--out", str(tmp_path), "--seed", "3"])
    pretrain.main()
    assert asked == [{"out": tmp_path, "steps": 1200, "seed": 3}]
    assert f"--backbone tiny:{tmp_path}" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["pretrain.py", "vit-bert", "--data", "pairs.txt"])
    with pytest.raises(SystemExit, match="must end in"):
        pretrain.main()
