"""The plan: what every step sees, against plain loops that fill the memories one row at a time."""

import time
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinoray.data.plan import (
    Replay,
    TaskPlan,
    epoch_of,
    num_rows,
    rank_slice,
    row_seed,
    sample_id,
    split_id,
    step_rows,
    steps_for,
    substitutes,
)
from kinoray.errors import UsageError

SAMPLES, STEPS, BATCH = (10, 7, 9), (6, 5, 8), 4


def plan_of(policy=None, capacity=12, rows=5, seed=0, task=2, **changes):
    plan = TaskPlan(
        seed=seed,
        task=task,
        num_tasks=3,
        samples=SAMPLES[: task + 1],
        batch_size=BATCH,
        steps=STEPS[: task + 1],
        replay=policy and Replay(policy, capacity, rows),
        selections=tuple(tuple(sample_id(t, s) for s in (t, t + 2)) for t in range(task)),
        labels=tuple(np.arange(n) % 3 for n in SAMPLES[: task + 1]),
    )
    return replace(plan, **changes)


def current(plan, step):
    return [tuple(row) for row in step_rows(plan, step)[: plan.batch_size].tolist()]


def replayed(plan, step):
    return [tuple(row) for row in step_rows(plan, step)[plan.batch_size :].tolist()]


def written_before(task, step, **changes):
    """All current rows of earlier steps, in order."""
    steps = [(t, s) for t in range(task + 1) for s in range(STEPS[t] if t < task else step)]
    return [row for t, s in steps for row in current(plan_of(task=t, **changes), s)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 17), st.integers(0, 5), st.integers(0, 3))
def test_every_sample_comes_exactly_once_in_n_draws(samples, batch, seed, epoch):
    steps = steps_for(epoch + 1, samples, batch)
    plan = TaskPlan(seed, 0, 1, (samples,), batch, (steps,))
    draws = np.concatenate([step_rows(plan, step)[:, 1] for step in range(steps)])
    assert sorted(draws[epoch * samples : (epoch + 1) * samples]) == list(range(samples))
    assert all(len(step_rows(plan, step)) == batch for step in range(steps))


def test_epochs_have_different_orders_and_so_have_seeds():
    draws = [row for step in range(5) for row in current(plan_of(task=0), step)]
    assert draws[:10] != draws[10:20]
    assert draws[:10] != [row for step in range(3) for row in current(plan_of(task=0, seed=1), step)][:10]


def test_an_epoch_begins_where_its_first_draw_is():
    assert [epoch_of(plan_of(task=0), step) for step in range(6)] == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("policy", [None, "ring", "reservoir", "class_balanced", "exemplars"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_global_batch_is_the_same_for_any_number_of_workers(policy, world):
    plan = plan_of(policy, rows=6, batch_size=6)
    for step in range(STEPS[2]):
        rows = step_rows(plan, step)
        count, again = num_rows(plan, step)
        assert len(rows) == count + again
        parts = [rows[:count][rank_slice(count, r, world)] for r in range(world)]
        memory = [rows[count:][rank_slice(again, r, world)] for r in range(world)]
        assert np.array_equal(np.concatenate([*parts, *memory]), rows)


def test_a_batch_that_does_not_divide_says_which_would():
    with pytest.raises(UsageError, match=r"50 rows per step do not divide evenly among 4 workers. Use 48 or 52"):
        rank_slice(50, 0, 4)


def simulated_ring(rows, capacity):
    portion = capacity // 3
    slots, seen = {}, Counter()
    for task, sample in rows:
        slots[task, seen[task] % portion] = (task, sample)
        seen[task] += 1
    return slots


@pytest.mark.parametrize(("task", "step"), [(0, 0), (0, 1), (0, 5), (1, 0), (1, 3), (2, 0), (2, 7)])
def test_ring_holds_what_a_loop_over_all_earlier_rows_leaves(task, step):
    plan = plan_of("ring", capacity=13, rows=200, task=task)
    expected = simulated_ring(written_before(task, step), capacity=13)
    drawn = Counter(replayed(plan, step))
    assert set(drawn) == set(expected.values())
    if expected:  # all slots are equally likely, so a sample in two slots comes twice as often
        shares = Counter(expected.values())
        means = {row: 200 * shares[row] / len(expected) for row in shares}
        assert all(abs(drawn[row] - mean) < 6 * mean**0.5 for row, mean in means.items())


@pytest.mark.parametrize("step", [0, 3, 7])
def test_without_replacement_each_slot_is_drawn_once(step):
    expected = simulated_ring(written_before(2, step), capacity=13)
    plan = plan_of("ring", capacity=13, rows=len(expected))
    assert Counter(replayed(plan, step)) == Counter(expected.values())


def test_reservoir_keeps_everything_while_there_is_room():
    plan = plan_of("reservoir", capacity=100, rows=8, task=0)
    assert sorted(replayed(plan, 2)) == sorted(written_before(0, 2))


def test_reservoir_changes_like_algorithm_r_one_slot_per_accepted_row():
    """Whole memories of successive steps differ only by rows written in between."""
    capacity = 9
    contents = []
    for step in range(STEPS[2]):
        memory = Counter(replayed(plan_of("reservoir", capacity=capacity, rows=capacity), step))
        assert memory.total() == capacity
        assert not memory - Counter(written_before(2, step))
        if contents:
            new = memory - contents[-1]
            assert not new - Counter(current(plan_of(), step - 1))
        contents.append(memory)
    task_one = Counter(replayed(plan_of("reservoir", capacity=capacity, rows=capacity, task=1), STEPS[1] - 1))
    kept = contents[0] - Counter(current(plan_of(task=1), STEPS[1] - 1))
    assert not kept - task_one, "what a task's plan sees continues in the next task's plan"


def test_reservoir_is_uniform_over_all_rows_ever_written():
    """One row a step and epochs of one pass, so each written row is one sample; chi-square over many seeds."""
    samples, capacity, seeds = 30, 6, 2000
    counts = np.zeros(2 * samples)
    for seed in range(seeds):
        plan = TaskPlan(seed, 1, 2, (samples, samples), 1, (samples, samples), Replay("reservoir", capacity, capacity))
        for task, sample in replayed(replace(plan, steps=(samples, samples + 1)), samples):
            counts[task * samples + sample] += 1
    expected = seeds * capacity / len(counts)
    # 59 degrees of freedom: 98 is exceeded once in a thousand.
    assert ((counts - expected) ** 2 / expected).sum() < 98


def test_class_balanced_memory_has_equal_shares_of_earlier_classes_and_only_shrinks():
    plan = plan_of("class_balanced", capacity=12, rows=12)
    memory = replayed(plan, 0)
    assert {task for task, _ in memory} == {0, 1}
    assert Counter((task, sample % 3) for task, sample in memory) == {(t, c): 2 for t in (0, 1) for c in range(3)}
    before = set(replayed(plan_of("class_balanced", capacity=9, rows=9, task=1), 0))
    after = {row for row in replayed(plan_of("class_balanced", capacity=9, rows=9), 0) if row[0] == 0}
    assert after < before
    assert len(set(replayed(plan_of("class_balanced", capacity=100, rows=17), 3))) == 17, "small classes are whole"


def test_exemplars_are_the_union_of_the_selections():
    assert sorted(replayed(plan_of("exemplars", rows=4), 3)) == [(0, 0), (0, 2), (1, 1), (1, 3)]


@pytest.mark.parametrize("policy", ["ring", "reservoir", "class_balanced", "exemplars"])
def test_replay_never_holds_the_future_nor_its_own_step(policy):
    for task in range(3):
        for step in range(STEPS[task]):
            past = set(written_before(task, step))
            for row in replayed(plan_of(policy, task=task), step):
                assert row[0] <= task
                assert row in past or (policy in ("class_balanced", "exemplars") and row[0] < task)


@pytest.mark.parametrize("policy", ["ring", "reservoir", "class_balanced", "exemplars"])
def test_num_rows_tells_what_step_rows_gives(policy):
    for task in range(3):
        for step in range(STEPS[task]):
            plan = plan_of(policy, task=task)
            assert sum(num_rows(plan, step)) == len(step_rows(plan, step))
    assert num_rows(plan_of(policy, task=0), 0) == (BATCH, 0)


@pytest.mark.parametrize("policy", ["ring", "reservoir"])
def test_steps_in_any_order_give_the_same_rows(policy):
    plan = plan_of(policy)
    forward = [step_rows(plan, step) for step in range(STEPS[2])]
    backward = [step_rows(plan_of(policy), step) for step in reversed(range(STEPS[2]))]
    assert all(np.array_equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))


def test_equal_plans_are_one_key_and_any_change_is_another():
    assert plan_of("ring") == plan_of("ring") and hash(plan_of("ring")) == hash(plan_of("ring"))
    changed = [plan_of("ring", seed=1), plan_of("ring", rows=6), plan_of("ring", selections=((), ()))]
    relabelled = plan_of("ring", labels=tuple(np.zeros(n, dtype=np.int64) for n in SAMPLES))
    assert len({plan_of("ring").key, relabelled.key, *(plan.key for plan in changed)}) == 5


@given(st.integers(0, 10**6), st.integers(0, 2**40 - 1))
def test_ids_come_back(task, sample):
    assert split_id(sample_id(task, sample)) == (task, sample)


def test_ids_work_on_arrays():
    tasks, samples = np.array([0, 3, 5]), np.array([7, 0, 2**40 - 1])
    again = split_id(sample_id(tasks, samples))
    assert np.array_equal(again[0], tasks) and np.array_equal(again[1], samples)


def test_row_seeds_depend_on_place_only_and_fit_int64():
    seeds = {row_seed(plan_of(), step, slot) for step in range(50) for slot in range(50)}
    assert len(seeds) == 2500 and min(seeds) >= 0 and max(seeds) < 2**63
    assert row_seed(plan_of(), 3, 4) == row_seed(plan_of("ring", samples=(10, 7, 100)), 3, 4)
    assert row_seed(plan_of(), 3, 4) != row_seed(plan_of(seed=1), 3, 4)


def test_substitutes_are_all_other_samples_once_in_a_seeded_uniform_order():
    plan = plan_of()
    assert sorted(substitutes(plan, 1, 2, 0, 4)) == [(0, sample) for sample in range(10) if sample != 4]
    assert list(substitutes(plan, 1, 2, 0, 4)) == list(substitutes(plan, 1, 2, 0, 4))
    firsts = Counter(next(substitutes(plan, step, 0, 0, 4))[1] for step in range(1800))
    assert sum((firsts[s] - 200) ** 2 / 200 for s in range(10) if s != 4) < 27  # 8 degrees of freedom, 1 in 1000
    assert list(substitutes(replace(plan, samples=(1, 1, 1)), 0, 0, 2, 0)) == []


def test_bad_settings_are_refused():
    with pytest.raises(UsageError, match="slot per task"):
        plan_of("ring", capacity=2)
    with pytest.raises(UsageError, match="needs a label"):
        plan_of("class_balanced", labels=None)
    with pytest.raises(UsageError, match="training samples"):
        plan_of(samples=(0, 1, 1))


@pytest.mark.parametrize("policy", ["ring", "reservoir"])
def test_a_million_samples_are_planned_in_about_a_second(policy):
    samples, batch = 1_000_000, 256
    steps = steps_for(3, samples, batch)
    plan = TaskPlan(0, 1, 2, (samples, samples), batch, (steps, steps), Replay(policy, 10_000, 64))
    began = time.process_time()
    for step in range(steps - 100, steps):
        step_rows(plan, step)
    list(islice(substitutes(plan, 0, 0, 0, 5), 10))
    assert time.process_time() - began < 10, "about 0.7 s"
