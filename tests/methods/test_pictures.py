"""A learner with batch normalisation and replay, on a stream of pictures under a classification protocol."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from support.ranks import two_ranks_with
from support.strangers import PACKAGES, copy_files, paths_with
from support.toys import ToyConfig
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.equations import unit
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, Replay, StepInfo, StepOutput, trainable
from kinoray.momentum import Momentum, average_into
from kinoray.rehearsal import joined
from kinoray.rule import compose
from kinoray.runs.method_source import find_method
from kinoray.runs.run_spec import RunSpec
from kinoray.streams import Stream, load_stream
from kinoray.testing.engine import StopAfter, digest_of_run, one_step, run_spec, spec_of
from kinoray.training.checkpoint import newest


class Pictures(BaseMethod):
    """Tells classes of current and replayed pictures apart, normalised over both; an average in train mode follows."""

    Config = ToyConfig
    suits = ("nearest-class",)
    backbones = Backbone
    uses_num_tasks = False

    def __init__(self, config: ToyConfig, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone
        self.head = nn.Linear(backbone.dim, 4)
        self.average = Momentum(backbone, train=True)

    @classmethod
    def needs(cls, config: ToyConfig) -> Needs:
        return Needs(replay=Replay("reservoir", capacity=8, rows=4))

    def param_groups(self) -> dict[str, ParamGroup]:
        return {"online": trainable(self.online, "online"), "head": trainable(self.head, "head")}

    def loss(self, batch: Batch) -> StepOutput:
        both = joined(batch)
        feature = self.online.embed_video(both.video)
        with torch.no_grad():
            steady = self.average.module.embed_video(both.video)
        named = nn.functional.cross_entropy(self.head(feature), both.labels, reduction="sum")
        near = (unit(feature) - unit(steady)).square().sum()
        log = {"replayed": torch.tensor((len(both.ids) - len(batch.ids)) / both.global_size)}
        return StepOutput((named + near) / both.global_size, log=log)

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        average_into(self.average.module, self.online, keep=0.9)

    def encoder(self) -> nn.Module:
        return self.online


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the stranger's files, found by the engine."""
    folder = tmp_path_factory.mktemp("strangers")
    copy_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, path in paths_with(folder).items():
            patch.setattr(PACKAGES[name], "__path__", path)
        importlib.invalidate_caches()
        yield folder


@pytest.fixture
def stream(home: Path) -> Stream:
    return replace(load_stream("shades"), backbone="tiny-cnn")


def state_of_run(spec: RunSpec) -> dict[str, torch.Tensor]:
    checkpoint = newest(Path(spec.folder) / "checkpoints", say=print)
    assert checkpoint is not None
    return checkpoint.tensors("method")


def test_stopped_and_resumed_equals_never_stopped_bit_for_bit(stream: Stream, tmp_path: Path) -> None:
    whole = spec_of(Pictures, stream, tmp_path / "whole")
    assert run_spec(whole)
    broken = spec_of(Pictures, stream, tmp_path / "broken")
    for looks in (0, 1, 3, 1):
        assert not run_spec(broken, StopAfter(broken.folder, looks))
    assert run_spec(broken)
    assert digest_of_run(broken) == digest_of_run(whole)
    counted = [value for name, value in state_of_run(whole).items() if name.endswith("num_batches_tracked")]
    assert len(counted) == 6 and min(map(int, counted)) > 0, "both encoders take statistics"


def test_two_ranks_equal_one_in_values_gradients_and_statistics(home: Path, stream: Stream, tmp_path: Path) -> None:
    spec = spec_of(Pictures, stream, tmp_path)
    alone = one_step(spec)
    assert alone["values"]["replayed"] == pytest.approx(4 / 12), "memory has rows in the second step"
    mp.spawn(two_ranks_with, (str(tmp_path), {"pictures": spec}, str(home)), nprocs=2)
    ranks = [torch.load(tmp_path / f"pictures-{rank}.pt") for rank in range(2)]
    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert rank["values"] == pytest.approx(alone["values"], rel=1e-5, abs=1e-6)
        for name, value in alone["gradients"].items():
            torch.testing.assert_close(rank["gradients"][name], value, rtol=1e-3, atol=2e-5)
        for name, value in alone["after"].items():
            if "running" in name:
                torch.testing.assert_close(rank["after"][name], value, rtol=1e-5, atol=1e-5)
    first, second = ranks
    assert all(torch.equal(first["after"][name], value) for name, value in second["after"].items())


def test_a_strangers_rule_of_weight_zero_is_its_learner_bit_for_bit(home: Path, stream: Stream, tmp_path: Path) -> None:
    rule = find_method(home / "my_rule.py").load()
    alone = spec_of(Pictures, stream, tmp_path)
    wrapped = spec_of(compose(rule, Pictures), stream, tmp_path, settings={"anchor_weight": 0.0})
    assert run_spec(alone) and run_spec(wrapped)
    whole = state_of_run(wrapped)
    assert all(torch.equal(whole[f"learner.{name}"], value) for name, value in state_of_run(alone).items())
