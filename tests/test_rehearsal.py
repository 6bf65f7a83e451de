"""Replayed rows as methods meet them: their slots and views, the joined batch, payloads, passes over the memory."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.toys import Rehearses, Replays
from torch import Tensor

from kinoray.data.plan import sample_id, split_id
from kinoray.errors import RunFailed, UsageError
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.method import Batch, Needs, Replay, Rows, Task
from kinoray.rehearsal import (
    Payloads,
    fill,
    joined,
    some_of_each_class,
    steadiest_of_clusters,
    view_variance,
)
from kinoray.testing.engine import built, digest_of_run, run_spec, spec_of
from kinoray.training.distributed import World
from kinoray.training.encode import encode
from kinoray.training.loop import RunState


def session_of(micro: Any, folder: Path, needs: Needs) -> RankSession:
    """A rank whose reader delivers what `needs` says."""
    spec = spec_of(type("Asks", (Replays,), {"needs": classmethod(lambda cls, config: needs)}), micro, folder)
    return RankSession(spec, World(), RunMonitor(spec.folder), None)


def batches_of(session: RankSession, tasks: int = 2) -> Iterator[Batch]:
    for stage in session.spec.stages[:tasks]:
        with session.batches(stage, 0, RunState()) as batches:
            yield from (batch for _, batch in batches)


@pytest.mark.parametrize("policy", ["ring", "reservoir"])
def test_a_view_as_written_is_the_second_view_that_the_row_had_in_its_step(policy: str, micro, tmp_path: Path) -> None:
    """Bit for bit, frames included, over two tasks; the plain view beside it is of the same frames."""
    replay = Replay(policy, 9, rows=4, views=("plain", "as-written"))
    held: dict[int, tuple[int, Tensor, Tensor]] = {}
    compared = 0
    for batch in batches_of(session_of(micro, tmp_path, Needs(views=2, plain="all", replay=replay))):
        if batch.replay is not None:
            plain, written = batch.replay.views
            for i, slot in enumerate(batch.replay.slots.tolist()):
                id, second, untouched = held[slot]
                assert batch.replay.ids[i] == id
                assert torch.equal(written[i], second) and torch.equal(plain[i], untouched)
                compared += 1
        assert batch.plain is not None
        for i, slot in enumerate(batch.slots.tolist()):
            if slot >= 0:
                held[slot] = int(batch.ids[i]), batch.views[1][i], batch.plain[i]
    assert compared == 7 * 4


def test_views_of_replayed_rows_are_as_many_as_are_named(micro, tmp_path: Path) -> None:
    replay = Replay("ring", 8, rows=4, views=("plain", "plain", "ucl-replay"))
    batch = list(batches_of(session_of(micro, tmp_path, Needs(views=2, plain="replay", replay=replay)), 1))[1]
    assert batch.replay is not None and len(batch.views) == 2 and len(batch.replay.views) == 3
    first, second, drawn = batch.replay.views
    assert torch.equal(first, second) and not torch.equal(first, drawn)
    assert batch.plain is None and batch.replay.plain is not None and torch.equal(batch.replay.plain, first)
    usual = list(batches_of(session_of(micro, tmp_path / "b", Needs(views=2, replay=replace(replay, views=()))), 1))[1]
    assert usual.replay is not None and len(usual.replay.views) == 2 and usual.replay.plain is None
    assert torch.equal(usual.replay.ids, batch.replay.ids)


def test_an_unknown_view_is_refused_with_the_nearest_name(micro, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ucl-replay"):
        session_of(micro, tmp_path, Needs(replay=Replay("ring", 8, rows=4, views=("ucl-repaly",))))


def test_a_batch_knows_its_step_its_tasks_and_even_noise(micro, tmp_path: Path) -> None:
    session = session_of(micro, tmp_path, Needs(replay=Replay("ring", 8, rows=4)))
    batches = list(batches_of(session))
    assert [batch.step.step for batch in batches] == [0, 1, 2, 3] * 2
    assert [batch.step.epoch for batch in batches[:4]] == [0, 0, 1, 2]  # 12 samples, 8 a step
    last = batches[-1]
    assert last.tasks.tolist() == [1] * 8 and last.replay is not None and set(last.replay.tasks.tolist()) <= {0, 1}
    even = last.uniform(500)
    assert even.shape == (8, 500) and even.min() >= 0 and even.max() < 1 and even.mean() == pytest.approx(0.5, abs=0.02)
    assert last.uniform(3, replay=True).shape == last.normal(3, replay=True).shape == (4, 3)


def test_joined_rows_stand_behind_each_other_and_count_together(micro, tmp_path: Path) -> None:
    session = session_of(micro, tmp_path, Needs(replay=Replay("ring", 8, rows=4)))
    empty, batch = list(batches_of(session, 1))[:2]
    assert joined(empty) is empty
    both = joined(batch)
    assert batch.replay is not None and both.replay is None and (both.global_size, both.replay_size) == (12, 0)
    for part, current, again in (
        (both.video, batch.video, batch.replay.video),
        (both.ids, batch.ids, batch.replay.ids),
        (both.slots, batch.slots, batch.replay.slots),
        (both.labels, batch.labels, batch.replay.labels),
    ):
        assert torch.equal(part, torch.cat([current, again]))
    for rows, text in ((slice(0, 8), batch.text), (slice(8, 12), batch.replay.text)):
        length = text.ids.shape[1]
        assert torch.equal(both.text.ids[rows, :length], text.ids) and not both.text.mask[rows, length:].any()
    assert both.normal(2).shape == both.uniform(2).shape == (12, 2)
    assert torch.equal(both.gather(both.ids), both.ids)
    assert both.order.tolist() == list(range(12))


def test_rows_with_other_numbers_of_views_are_not_joined(micro, tmp_path: Path) -> None:
    session = session_of(micro, tmp_path, Needs(views=2, replay=Replay("ring", 8, rows=4, views=("plain",))))
    with pytest.raises(RunFailed, match=r"Current rows have 2 views and replayed ones 1"):
        joined(list(batches_of(session, 1))[1])


def test_a_payload_is_valid_for_the_sample_it_was_written_for() -> None:
    payloads = Payloads(3, 2)
    payloads.write(torch.tensor([1, -1, 2]), torch.tensor([10, 11, 12]), torch.arange(6.0).reshape(3, 2))
    values, valid = payloads.read(torch.tensor([1, 2, 2, 0, -1]), torch.tensor([10, 12, 99, 10, 12]))
    assert valid.tolist() == [True, True, False, False, False]
    assert values.tolist() == [[0, 1], [4, 5], [0, 0], [0, 0], [0, 0]]
    with pytest.raises(RunFailed, match="Payloads of 3 slots got slot 3"):
        payloads.write(torch.tensor([3]), torch.tensor([1]), torch.zeros(1, 2))
    kept = payloads.values.clone(), payloads.ids.clone()
    payloads.write(torch.tensor([-1, -1]), torch.tensor([7, 8]), torch.ones(2, 2))  # none of them is kept
    payloads.write(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2))
    assert torch.equal(payloads.values, kept[0]) and torch.equal(payloads.ids, kept[1])
    again = Payloads(3, 2)
    again.load_state_dict(payloads.state_dict())
    assert torch.equal(again.read(torch.tensor([1]), torch.tensor([10]))[0], values[:1])


def test_a_substituted_row_does_not_get_anothers_payload(micro, tmp_path: Path) -> None:
    """Every payload that is read as valid was made of the sample that comes back."""
    payloads, seen = Payloads(8, 1), 0
    for batch in batches_of(session_of(micro, tmp_path, Needs(replay=Replay("reservoir", 8, rows=4)))):
        if batch.replay is not None:
            values, valid = payloads.read(batch.replay.slots, batch.replay.ids)
            assert valid.all() and torch.equal(values[:, 0], (batch.replay.ids % 1000).float())
            seen += len(valid)
        payloads.write(batch.slots, batch.ids, (batch.ids % 1000).float()[:, None])
    assert seen == 7 * 4


def memory_of(session: RankSession, task: int, made: int, selections: Any = ()) -> tuple[list[int], list[int]]:
    """Ids and slots, as `encode` gives and `fn` sees them."""
    slots: list[int] = []

    def fn(rows: Rows) -> Tensor:
        assert rows.plain is not None and len(rows.plain) == len(rows.slots)
        slots.extend(rows.slots.tolist())
        return rows.slots[:, None].float()

    ids, features = encode(session.reader, task, selections, made, fn, "memory")
    assert features.flatten().tolist() == sorted(slots)
    return ids.tolist(), sorted(slots)


def test_the_memory_is_encoded_slot_by_slot_at_both_ends_of_a_task(micro, tmp_path: Path) -> None:
    session = session_of(micro, tmp_path, Needs(replay=Replay("ring", 8, rows=4)))
    held = {}
    assert memory_of(session, 0, 0) == ([], [])
    for task, stage in enumerate(session.spec.stages):
        ids, slots = memory_of(session, task, 0)
        assert dict(zip(slots, ids, strict=True)) == held
        with session.batches(stage, 0, RunState()) as batches:
            for _, batch in batches:
                held |= {s: i for s, i in zip(batch.slots.tolist(), batch.ids.tolist(), strict=True) if s >= 0}
        ids, slots = memory_of(session, task, 4)
        assert dict(zip(slots, ids, strict=True)) == held


def test_exemplars_are_encoded_in_the_order_of_the_choice_and_payloads_filled_once(micro, tmp_path: Path) -> None:
    session = session_of(micro, tmp_path, Needs(replay=Replay("exemplars", 8, rows=2)))
    chosen = [sample_id(0, sample) for sample in (7, 2, 7, 11)]
    assert memory_of(session, 1, 0, [chosen, [sample_id(1, 3)]]) == (chosen, [0, 1, 2, 3]), "not yet this task's own"
    payloads = Payloads(5, 3, 2)
    payloads.write(torch.tensor([1]), torch.tensor([chosen[1]]), torch.full((1, 3, 2), 9.0))
    task = session.task(session.spec.stages[1], [chosen])
    fill(payloads, task, lambda rows: rows.ids[:, None, None].expand(-1, 3, 2).float())
    values, valid = payloads.read(torch.arange(4), torch.tensor(chosen))
    assert valid.all() and values[:, 0, 0].tolist() == [7, 9, 7, 11]


class Switchable(Replays):
    """`Replays` with a ring of some capacity, its rows in the loss where there are any."""

    capacity = 0

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(replay=Replay("ring", cls.capacity, rows=4))


class Without(Replays):
    """The same loss without a memory."""

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs()


def test_replay_at_capacity_zero_is_its_learner_bit_for_bit(micro, tmp_path: Path) -> None:
    digests = []
    for cls in (Switchable, Without, type("Eight", (Switchable,), {"capacity": 8})):
        spec = spec_of(cls, micro, tmp_path / cls.__name__)
        assert run_spec(spec)
        digests.append(digest_of_run(spec))
    assert digests[0] == digests[1] != digests[2]


def test_a_run_fills_its_payloads_and_they_are_those_of_the_plan(micro, tmp_path: Path) -> None:
    """What `Rehearses` has kept after two tasks belongs to the rows that the plan's memory holds."""
    spec = spec_of(Rehearses, micro, tmp_path)
    assert run_spec(spec)
    session = RankSession(spec, World(), RunMonitor(spec.folder), None)
    session.resume()
    ids, slots = memory_of(session, 1, 4)
    assert len(ids) == Rehearses.CAPACITY
    assert session.method.payloads.ids[slots].tolist() == ids
    assert (session.method.payloads.values.norm(dim=1) > 0.99).all()
    assert (built(spec).payloads.ids == -1).all()


def test_the_variance_of_views_gives_the_worked_number() -> None:
    views = torch.tensor([[[1.0, 2.0], [3.0, 2.0], [2.0, 5.0]]])
    assert view_variance(views).tolist() == pytest.approx([2.6666667], abs=1e-7)


def test_the_steadiest_of_each_cluster_are_chosen() -> None:
    torch.manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]).repeat_interleave(6, dim=0)
    plain = centres + 0.1 * torch.randn(18, 2)
    spread = torch.rand(18, 1, 1) * torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 3, 1)
    views = plain[:, None] + spread
    chosen = steadiest_of_clusters(plain, views, clusters=3, count=2)
    expected = [sorted(range(6 * c, 6 * c + 6), key=lambda i: float(spread[i, 2]))[:2] for c in range(3)]
    assert sorted(chosen.tolist()) == sorted(i for cluster in expected for i in cluster)
    assert len(steadiest_of_clusters(plain, views, clusters=3, count=9)) == 18
    assert len(steadiest_of_clusters(plain[:2], views[:2], clusters=5, count=1)) == 2


def test_some_of_each_class_are_ids_of_the_task_and_all_of_a_small_class() -> None:
    labels = np.array([0] * 5 + [1] * 2 + [2] * 9)
    task = Task(3, "t", 4, 16, 3, 1, encode=lambda *args: None, total=lambda *args: None, labels=labels)
    chosen = some_of_each_class(task, 3)
    tasks, samples = split_id(np.array(chosen))
    assert set(tasks) == {3} and np.bincount(labels[samples]).tolist() == [3, 2, 3]
    assert some_of_each_class(task, 0) == []
