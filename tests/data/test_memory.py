"""Slots of a memory against plain dictionaries that are written one row at a time, and rows in proportion."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinoray.data.plan import (
    Replay,
    TaskPlan,
    memory_rows,
    num_rows,
    replay_rows,
    row_seed,
    sample_id,
    step_rows,
    step_slots,
    written_seeds,
)
from kinoray.errors import UsageError
from kinoray.method import Needs

plans = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 99),
        "samples": st.tuples(*[st.integers(1, 12)] * 3),
        "steps": st.tuples(*[st.integers(1, 5)] * 3),
        "batch_size": st.integers(1, 6),
        "capacity": st.integers(3, 25),
        "rows": st.integers(1, 9),
    }
)


def plan_of(facts, policy, task, **changes):
    replay = Replay(policy, facts["capacity"], facts["rows"])
    samples, steps = facts["samples"][: task + 1], facts["steps"][: task + 1]
    plan = TaskPlan(facts["seed"], task, 3, samples, facts["batch_size"], steps, replay)
    return replace(plan, **changes)


@settings(max_examples=60, deadline=None)
@given(plans, st.sampled_from(["ring", "reservoir"]))
def test_slots_tell_where_every_row_of_three_tasks_is_kept_and_comes_from(facts, policy):
    """A dictionary that is written as the current rows' slots say is the plan's memory before every step."""
    held, seeds = {}, {}
    for task in range(3):
        plan = plan_of(facts, policy, task)
        for step in range(plan.steps[task]):
            rows, slots = step_rows(plan, step), step_slots(plan, step)
            assert len(rows) == len(slots) and slots.max() < facts["capacity"]
            current, again = slots[: plan.batch_size], slots[plan.batch_size :]
            assert [tuple(row) for row in rows[plan.batch_size :]] == [held[slot] for slot in again.tolist()]
            assert written_seeds(plan, step).tolist() == [seeds[slot] for slot in again.tolist()]
            everything = memory_rows(plan, step)
            assert dict(zip(everything[0].tolist(), map(tuple, everything[1].tolist()), strict=True)) == held
            written = current[current >= 0].tolist()
            assert len(set(written)) == len(written), "of rows that want one slot, the last stays"
            for place, slot in enumerate(current.tolist()):
                if slot >= 0:
                    held[slot], seeds[slot] = tuple(rows[place].tolist()), row_seed(plan, step, place)


def test_of_a_rings_rows_that_share_a_slot_the_last_is_kept():
    facts = {"seed": 0, "samples": (9,) * 3, "steps": (3,) * 3, "batch_size": 5, "capacity": 8, "rows": 2}
    assert step_slots(plan_of(facts, "ring", 1), 0)[:5].tolist() == [-1, -1, -1, 3, 2]


def test_a_class_balanced_row_keeps_its_slot_while_it_is_held():
    labels = tuple(np.arange(n) % 3 for n in (20, 21, 22, 23))
    before = {}
    for task in range(1, 4):
        replay = Replay("class_balanced", 13, 4)
        plan = TaskPlan(
            0, task, 4, (20, 21, 22, 23)[: task + 1], 4, (2,) * (task + 1), replay, labels=labels[: task + 1]
        )
        slots, rows = memory_rows(plan, 0)
        assert sorted(set(slots.tolist())) == list(range(len(slots))) and len(slots) == 13
        now = dict(zip(map(tuple, rows.tolist()), slots.tolist(), strict=True))
        assert all(now[row] == slot for row, slot in before.items() if row in now)
        of_step = zip(map(tuple, step_rows(plan, 1)[4:].tolist()), step_slots(plan, 1)[4:].tolist(), strict=True)
        assert all(now[row] == slot for row, slot in of_step)
        assert step_slots(plan, 1)[:4].tolist() == [-1] * 4
        before = now


def test_exemplars_stand_in_the_order_in_which_they_were_chosen():
    selections = ((sample_id(0, 5), sample_id(0, 1)), (sample_id(1, 3),))
    plan = TaskPlan(0, 2, 3, (9, 9, 9), 4, (2, 2, 2), Replay("exemplars", 3, 3), selections)
    slots, rows = memory_rows(plan, 0)
    assert slots.tolist() == [0, 1, 2] and rows.tolist() == [[0, 5], [0, 1], [1, 3]]


@pytest.mark.parametrize(
    ("held", "batch", "samples", "rows"),
    [(0, 48, 100, 0), (1, 48, 1000, 4), (10, 48, 100, 8), (10, 40, 100, 4), (100, 48, 100, 48), (300, 48, 100, 144)],
)
def test_rows_in_proportion_are_rounded_up_to_a_multiple_of_four(held, batch, samples, rows):
    """round(B M / N): 0; 0.048, but at least 4; 4.8 -> 5 -> 8; 4; 48; 144."""
    selections = (tuple(sample_id(0, sample) for sample in range(held)),)
    plan = TaskPlan(0, 1, 2, (300, samples), batch, (2, 2), Replay("exemplars", 300, 0), selections)
    assert replay_rows(plan) == rows
    assert num_rows(plan, 1) == (batch, rows)
    assert len(step_rows(plan, 1)) == len(step_slots(plan, 1)) == batch + rows


def test_rows_in_proportion_share_out_among_the_groups_of_batch_normalisation():
    selections = (tuple(sample_id(0, sample) for sample in range(10)),)
    shape = (0, 1, 2, (300, 100), 48, (2, 2), Replay("exemplars", 300, 0), selections)
    rows = [replay_rows(TaskPlan(*shape, row_multiple=groups)) for groups in (1, 2, 4, 6, 8, 32)]
    assert rows == [8, 8, 8, 12, 8, 32]  # of 4.8


def test_the_proportion_of_a_ring_is_that_of_the_tasks_beginning():
    facts = {"seed": 0, "samples": (8, 16, 8), "steps": (4, 4, 4), "batch_size": 8, "capacity": 24, "rows": 0}
    assert [num_rows(plan_of(facts, "ring", 0), step)[1] for step in range(4)] == [0] * 4
    assert [num_rows(plan_of(facts, "ring", 1), step)[1] for step in range(4)] == [4] * 4  # 8 * 8 / 16


def test_as_many_rows_as_current_ones_come_once_the_memory_holds_any():
    facts = {"seed": 0, "samples": (8, 16, 8), "steps": (4, 4, 4), "batch_size": 8, "capacity": 6, "rows": None}
    assert [num_rows(plan_of(facts, "ring", 0), step) for step in range(3)] == [(8, 0), (8, 8), (8, 8)]
    assert num_rows(plan_of(facts, "ring", 1), 0) == (8, 8)
    assert len(step_rows(plan_of(facts, "ring", 1), 0)) == 16


def test_a_capacity_of_zero_is_no_replay_and_less_is_refused():
    assert Needs(replay=Replay("ring", 0, 4)).replay is None
    assert Needs(replay=Replay("ring", 5, 4)).replay is not None
    for replay in (Replay("ring", 0, 4), Replay("ring", 5, -1)):
        with pytest.raises(UsageError, match="rows >= 0"):
            TaskPlan(0, 0, 1, (9,), 4, (2,), replay)


@pytest.mark.parametrize("policy", ["class_balanced", "exemplars"])
def test_rows_that_no_step_wrote_have_no_view_as_written(policy):
    with pytest.raises(UsageError, match="as-written"):
        TaskPlan(0, 0, 1, (9,), 4, (2,), Replay(policy, 5, 2, ("plain", "as-written")))
