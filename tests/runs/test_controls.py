"""`--control`: what a method's gain is held against; one a run, part of its name, refused where it means nothing."""

import numpy as np
import pytest
import torch

import kinoray
from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import draw_anew
from kinoray.data.slots import as_ordered
from kinoray.decoding.sampling import Sampling
from kinoray.errors import UsageError
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.runs.result import command_of

SHORT = {"max_steps": 2, "validations": 0}


def run(stream, folder, control="", **options):
    return kinoray.run("base_moco", stream=stream, control=control, runs=folder, settings=SHORT, num_workers=0,
                       quiet=True, **options)  # fmt: skip


def test_a_control_is_part_of_the_name_and_of_the_label(micro, tmp_path) -> None:
    plain, half = run(micro, tmp_path), run(micro, tmp_path, "rate/2")
    assert plain.folder.parent != half.folder.parent
    assert "base_moco-rate-2-" in half.folder.parent.name
    assert half.label == plain.label.replace("base_moco", "base_moco", 1) + " (rate/2)"
    assert half.run["config"]["recipe"]["learning_rate"] == plain.run["config"]["recipe"]["learning_rate"] / 2
    assert half.outcome["state_digest"] != plain.outcome["state_digest"]
    assert kinoray.load(half.folder).control == "rate/2"
    row_labels = {row.label for row in kinoray.compare([plain.folder, half.folder]).rows}
    assert len(row_labels) == 2


def test_the_same_command_goes_on_with_a_control(micro, tmp_path) -> None:
    first = run(micro, tmp_path, "order-blind")
    assert first.joint and run(micro, tmp_path, "order-blind").outcome == first.outcome


def test_a_random_encoder_makes_no_step(micro, tmp_path) -> None:
    result = run(micro, tmp_path, "random-encoder")
    assert result.zero_shot and not (result.folder / "metrics.jsonl").read_text()
    assert result.outcome["state_digest"] != run(micro, tmp_path, zero_shot=True).outcome["state_digest"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"control": "rate/1"}, "no control named 'rate/1'"),
        ({"control": "order_blind"}, "no control named 'order_blind'. Did you mean 'order-blind'"),
        ({"control": "rate/2", "joint": True}, "leave `joint` out"),
        ({"control": "order-blind", "zero_shot": True}, "leave `zero_shot` out"),
    ],
)
def test_what_is_no_control_is_refused(options, message) -> None:
    with pytest.raises(UsageError, match=message) as error:
        RunRequest("base_moco", **options)
    assert error.value.exit_code == 2


def test_pictures_and_single_frames_have_no_order(micro, tmp_path) -> None:
    with pytest.raises(UsageError, match="a clip is one frame"):
        resolve(RunRequest("moco", stream="digits-5", control="order-blind", runs=tmp_path))
    with pytest.raises(UsageError, match="its clips are pictures"):
        settings = {"frames": 2, "test_frames": 2}
        resolve(RunRequest("moco", stream="digits-5", control="first-frame", settings=settings, runs=tmp_path))


class Wants:
    def __init__(self, order: str, sampling: Sampling) -> None:
        self.order, self.sampling = order, sampling


def test_frames_are_shuffled_by_the_clip_and_within_runs() -> None:
    video = np.arange(12)[:, None] * np.ones((1, 5))
    shuffled = Wants("shuffled", Sampling("uniform", 12))
    orders = [as_ordered(video, shuffled, 7, sample)[:, 0] for sample in range(400)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert (orders[0] == as_ordered(video, shuffled, 7, 0)[:, 0]).all(), "the same clip of the plan, the same order"
    assert np.abs(np.mean(orders, axis=0) - 5.5).max() < 0.8, "no place tells when a frame was shown"
    runs = Wants("shuffled", Sampling("consecutive", 12, clips=3))
    for sample in range(5):
        parts = as_ordered(video, runs, 0, sample)[:, 0].reshape(3, 4)
        assert (np.sort(parts, axis=1) == np.arange(12).reshape(3, 4)).all()


def test_the_first_frame_stands_for_its_run() -> None:
    video = np.arange(12)[:, None] * np.ones((1, 5))
    assert as_ordered(video, Wants("first", Sampling("uniform", 12)), 1, 2)[:, 0].tolist() == [0] * 12
    runs = Wants("first", Sampling("consecutive", 12, clips=3))
    assert as_ordered(video, runs, 1, 2)[:, 0].tolist() == [0] * 4 + [4] * 4 + [8] * 4


@pytest.mark.parametrize("name", ["tiny", "tiny-cnn", "tiny-3d", "tiny-clip"])
def test_fresh_weights_keep_nothing_of_the_old_ones(name: str) -> None:
    old, new, again, other = (load_backbone(name) for _ in range(4))
    before = torch.get_rng_state()
    draw_anew(new, 1)
    draw_anew(again, 1)
    draw_anew(other, 2)
    assert torch.equal(before, torch.get_rng_state())
    for key, value in new.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
        if value.dtype.is_floating_point and value.numel() > 64 and value.std() > 0:
            for known in (old, other):
                pair = torch.stack([value.flatten(), known.state_dict()[key].flatten()])
                assert torch.corrcoef(pair)[0, 1].abs() < 6 / value.numel() ** 0.5, key
    assert new.state_dict().keys() == old.state_dict().keys()


def test_the_command_that_makes_it_again_names_the_control(tmp_path) -> None:
    result = kinoray.run("moco", stream="digits-5", control="from-scratch", runs=tmp_path,
                         settings={"max_steps": 1, "validations": 0}, num_workers=0, quiet=True)  # fmt: skip
    assert "--control from-scratch" in command_of(result)
    assert "--joint" not in command_of(result)
