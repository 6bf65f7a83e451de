"""An evaluation that is stopped goes on behind what it had embedded, and ends the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kinoray.evaluation.embedded import FILE, Embedded, EvaluationStopped
from kinoray.streams import Stream
from kinoray.testing.engine import StopAfter, digest_of_run, run_spec, spec_of
from kinoray.training.batches import Feed

SETTINGS = {"max_steps": 2, "queue_size": 16, "validations": 0}


def found(number: int) -> tuple[np.ndarray, torch.Tensor]:
    return np.array([number, number + 1]), torch.full((2, 3), float(number))


def test_answers_come_back_in_order_to_the_same_evaluation_alone(tmp_path: Path) -> None:
    first = Embedded(tmp_path, 3, stops=lambda: len(first.done) == 2)
    first.next(lambda: found(0))
    with pytest.raises(EvaluationStopped):
        first.next(lambda: found(1))
    first.write()
    assert Embedded(tmp_path, 4, lambda: False).known == []
    again = Embedded(tmp_path, 3, stops=lambda: False)
    for number in range(3):
        rows, features = again.next(
            lambda number=number: found(number) if number == 2 else pytest.fail("embedded again")
        )
        assert rows.tolist() == [number, number + 1] and torch.equal(features, found(number)[1])
    again.remove()
    again.remove()
    assert not (tmp_path / FILE).exists()


def test_a_run_stopped_again_and_again_in_its_evaluations_embeds_nothing_twice(
    micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[tuple[Any, ...]] = []
    original = Feed.embed_clips

    def noted(self: Feed, name: str, *given: Any) -> Any:
        embedded.append((name, given[1]))
        return original(self, name, *given)

    monkeypatch.setattr(Feed, "embed_clips", noted)
    whole = spec_of("base_moco", micro, tmp_path / "whole", settings=SETTINGS)
    assert run_spec(whole)
    once, starts = list(embedded), 1
    embedded.clear()
    broken = spec_of("base_moco", micro, tmp_path / "broken", settings=SETTINGS)
    while not run_spec(broken, StopAfter(broken.folder, looks=3)):  # two steps and more
        starts += 1
    assert digest_of_run(broken) == digest_of_run(whole)
    assert embedded == once and starts > 3
    assert not (Path(broken.folder) / FILE).exists()
