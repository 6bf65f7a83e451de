"""An evaluation that is stopped goes on behind what it had embedded, and ends the same."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.toys import Replays, ToyConfig

from kinoray.errors import StorageFull
from kinoray.evaluation.embedded import FILE, Embedded, EvaluationStopped
from kinoray.method import Batch, Needs, StepOutput, Stored
from kinoray.streams import Stream
from kinoray.testing.engine import StopAfter, digest_of_run, run_spec, spec_of
from kinoray.testing.small_stream import on_protocol
from kinoray.training.batches import BatchReader

SETTINGS = {"max_steps": 2, "validations": 0}


class PushedByStored(Replays):
    """Trains against the training videos of earlier tasks, as their own models left them."""

    @classmethod
    def needs(cls, config: ToyConfig) -> Needs:
        return Needs(stored=Stored(split="train", rows=4))

    def loss(self, batch: Batch) -> StepOutput:
        output = super().loss(batch)
        if batch.stored is None:
            return output
        assert isinstance(output.objectives, torch.Tensor)
        push = (self.online.embed_video(batch.video) @ batch.stored.T).mean()
        return replace(output, objectives=output.objectives + push)


def features_of(number: int) -> tuple[np.ndarray, torch.Tensor]:
    return np.array([number, number + 1]), torch.full((2, 3), float(number))


def test_answers_come_back_by_name_to_the_same_evaluation_alone(tmp_path: Path) -> None:
    first = Embedded(tmp_path, 3, lambda: len(first.known) == 2, pytest.fail)
    first.get("a", lambda: features_of(0))
    with pytest.raises(EvaluationStopped):
        first.get("b", lambda: features_of(1))
    first.write()
    assert Embedded(tmp_path, 4, lambda: False, pytest.fail).known == {}
    again = Embedded(tmp_path, 3, lambda: False, pytest.fail)
    for name, number in (("b", 1), ("a", 0), ("b", 2)):  # the second of one name is another answer
        rows, features = again.get(
            name, lambda number=number: features_of(number) if number == 2 else pytest.fail("embedded again")
        )
        assert rows.tolist() == [number, number + 1] and torch.equal(features, features_of(number)[1])
    again.remove()
    again.remove()
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]])
def test_what_was_damaged_is_embedded_again_and_said(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    embedded = Embedded(tmp_path, 3, lambda: False, pytest.fail)
    embedded.get("a", lambda: features_of(0))
    embedded.write()
    (tmp_path / FILE).write_bytes(damage((tmp_path / FILE).read_bytes()))
    messages: list[str] = []
    assert Embedded(tmp_path, 3, lambda: False, messages.append).known == {}
    (line,) = messages
    assert str(tmp_path / FILE) in line and "embedded again" in line


def test_a_full_disk_is_said_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kinoray.evaluation.embedded.save_file", full)
    embedded = Embedded(tmp_path, 3, lambda: False, pytest.fail)
    embedded.get("a", lambda: features_of(0))
    with pytest.raises(StorageFull):
        embedded.write()


@pytest.mark.parametrize("protocol", ["cvlm", "ctvr"])
def test_a_run_stopped_again_and_again_in_its_evaluations_embeds_nothing_twice(
    micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    method, stream = PushedByStored if protocol == "ctvr" else Replays, on_protocol(micro, protocol)
    embedded: list[tuple[Any, ...]] = []
    original = BatchReader.embed_clips

    def noted(self: BatchReader, name: str, *given: Any) -> Any:
        embedded.append((name, given[1]))
        return original(self, name, *given)

    monkeypatch.setattr(BatchReader, "embed_clips", noted)
    whole = spec_of(method, stream, tmp_path / "whole", settings=SETTINGS)
    assert run_spec(whole)
    once, starts = list(embedded), 1
    embedded.clear()
    broken = spec_of(method, stream, tmp_path / "broken", settings=SETTINGS)
    while not run_spec(broken, StopAfter(broken.folder, looks=3)):  # two steps and more
        starts += 1
    assert digest_of_run(broken) == digest_of_run(whole)
    assert embedded == once and starts > 3
    assert not (Path(broken.folder) / FILE).exists()
