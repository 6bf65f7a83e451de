"""What every method must do, the packaged ones and the toys alike: found by file name, one test per promise."""

import copy
import json
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import cloudpickle
import pytest
import torch
import torch.multiprocessing as mp
from support.engine import (
    StopAfter,
    built,
    digest_of_run,
    facts_of,
    fresh_session,
    one_step,
    resolved,
    run_spec,
    spec_of,
    state_of,
    suited,
    two_ranks,
)
from support.growth import Late, learn, tasks_of
from support.places import REPOSITORY
from support.rules import RULES
from support.toys import TOYS

from kinoray.config import matters_from, plain
from kinoray.lineage.prefix_key import counts_tasks
from kinoray.momentum import Frozen, Momentum
from kinoray.runs.method_source import find_method, method_names
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import RunSpec
from kinoray.training.checkpoint import newest
from kinoray.training.loop import RunState
from kinoray.training.optim import names_and_params

METHODS: dict[str, Any] = {name: name for name in method_names()} | TOYS | RULES


@pytest.fixture(params=METHODS)
def spec(request: pytest.FixtureRequest, micro, tmp_path: Path) -> RunSpec:
    return make(request.param, micro, tmp_path)


def make(name: str, micro, folder: Path) -> RunSpec:
    return spec_of(METHODS[name], suited(METHODS[name], micro), folder)


def test_config_and_method_travel_between_processes(spec: RunSpec) -> None:
    cls = spec.method.load()
    config = cls.Config(**spec.settings)
    arrived = pickle.loads(pickle.dumps(spec)).method.load()
    assert plain(arrived.Config(**spec.settings)) == plain(config) == spec.settings
    method = built(spec)
    for twin in (copy.deepcopy(method), cloudpickle.loads(cloudpickle.dumps(method))):
        assert all(torch.equal(a, b) for a, b in zip(state_of(method).values(), state_of(twin).values(), strict=True))


def test_a_grown_state_loads_strictly_into_a_newly_grown_method(spec: RunSpec) -> None:
    old, new = built(spec), built(replace(spec, seed=1))
    for task in range(2):
        old.grow(facts_of(task))
        new.grow(facts_of(task))
    new.load_state_dict(old.state_dict(), strict=True)
    assert all(torch.equal(new.state_dict()[name], value) for name, value in old.state_dict().items())


def test_only_the_named_parameters_get_gradients_and_nothing_is_carried_with_one(spec: RunSpec) -> None:
    session = fresh_session(spec)
    groups = session.method.param_groups()
    with session.batches(spec.stages[0], 0, RunState()) as batches:
        output = session.method.loss(next(batches)[1])
    assert not any(value.requires_grad for value in output.carry.values())
    objectives = output.objectives if isinstance(output.objectives, dict) else {"": output.objectives}
    torch.stack(list(objectives.values())).sum().backward()
    named = {id(p) for p in names_and_params(groups).values()}
    strays = [name for name, p in session.method.named_parameters() if p.grad is not None and id(p) not in named]
    assert strays == []
    own = {id(p) for p in session.method.parameters()}
    assert named <= own, "a parameter outside the method's state would not be saved"


def test_frozen_modules_stay_frozen_and_momentum_moves_only_after_the_step(spec: RunSpec) -> None:
    step = one_step(spec)
    method = step["method"]
    for name, module in method.named_modules():
        if not isinstance(module, Frozen):
            continue
        assert module.follows_training or not any(m.training for m in module.modules())
        assert not any(p.requires_grad for p in module.parameters())
        inside = [key for key in step["before"] if key.startswith(f"{name}.")]
        assert inside
        if module.follows_training:  # its batch normalisation remembers what the forward pass saw
            buffers = {f"{name}.{key}" for key, _ in module.named_buffers()}
            inside = [key for key in inside if key not in buffers]
        assert all(torch.equal(step["before"][key], step["between"][key]) for key in inside)
        if not isinstance(module, Momentum):
            assert all(torch.equal(step["before"][key], step["after"][key]) for key in inside)


def test_two_tasks_of_four_steps_are_finite_move_weights_and_repeat(spec: RunSpec, tmp_path: Path) -> None:
    assert run_spec(spec)
    first = digest_of_run(spec)
    again = replace(spec, folder=str(tmp_path / "again"))
    Path(again.folder).mkdir()
    assert run_spec(again)
    assert digest_of_run(again) == first
    start = built(spec).encoder().state_dict()
    end = torch.cat([v.float().flatten() for v in start.values()])
    final = _final_encoder(spec)
    moved = torch.cat([v.float().flatten() for v in final.values()])
    assert torch.isfinite(moved).all()
    assert not torch.equal(end, moved)


def _final_encoder(spec: RunSpec) -> dict[str, torch.Tensor]:
    found = newest(Path(spec.folder) / "checkpoints", say=print)
    assert found is not None
    method = built(spec)
    for task in range(2):
        method.grow(facts_of(task))
    method.load_state_dict(found.tensors("method"))
    return method.encoder().state_dict()


def test_stopped_and_resumed_equals_never_stopped_bit_for_bit(spec: RunSpec, tmp_path: Path) -> None:
    """Stopped after the first step, again in the middle of the first task, between tasks, and in the second task."""
    assert run_spec(spec)
    broken = replace(spec, folder=str(tmp_path / "broken"))
    Path(broken.folder).mkdir()
    for looks in (0, 1, 2, 1):
        assert not run_spec(broken, StopAfter(broken.folder, looks))
    assert run_spec(broken)
    assert digest_of_run(broken) == digest_of_run(spec)
    assert _lines(broken) == _lines(spec), "the log of a resumed run must not repeat or miss a step"


def _lines(spec: RunSpec) -> list[dict[str, Any]]:
    lines = map(json.loads, (Path(spec.folder) / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "time_s"} for line in lines]


# What a state depends on: `uses_num_tasks` and `from_task`


def state_after(one: Resolved, stages: int) -> dict[str, torch.Tensor]:
    """All tensors that a run has committed after so many tasks."""
    found = newest(learn(one, stages) / "checkpoints", say=print)
    assert found is not None and found.position.stage == stages
    return {
        f"{kind}.{name}": t for kind in ("method", "ranks", "validation") for name, t in found.tensors(kind).items()
    }


def agree(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_says_it_does_not_count_tasks_learns_the_same_among_two_and_five(name, micro, tmp_path) -> None:
    stream = suited(METHODS[name], micro)
    ones = [resolved(METHODS[name], stream, tmp_path, settings={"planned_tasks": count}) for count in (2, 5)]
    if counts_tasks(ones[0]):
        pytest.skip("it or its memory counts tasks")
    assert agree(*(state_after(one, 1) for one in ones))


class Hasty(Late):
    """Says that `distill` matters from the second task on, and uses it in the first."""

    def loss(self, batch):
        output = super().loss(batch)
        return replace(output, objectives=output.objectives * (1 + self.config.distill))


LATER = METHODS | {"late": Late}
FIELDS = [
    (name, field, task)
    for name, method in LATER.items()
    for field, task in matters_from(find_method(method).load().Config).items()
    if task > 1
]


def with_another(method: Any, field: str, task: int, micro, folder: Path) -> list[Resolved]:
    """Two runs that differ in one setting alone."""
    stream = suited(method, tasks_of(micro, min(5, max(2, task))))
    first = resolved(method, stream, folder)
    cls, old = first.method.load(), first.settings[field]
    words = get_args(cls.Config.__pydantic_fields__[field].annotation)
    values = (
        words if isinstance(old, str) else [not old] if isinstance(old, bool) else [0, 1, old + 1, old / 2, old * 2]
    )
    for value in values:
        with suppress(ValueError):
            if value != old and cls.Config(**first.settings | {field: value}):
                return [first, resolved(method, stream, folder, settings={field: value})]
    raise AssertionError(f"{field} takes no other value than {old}.")


@pytest.mark.parametrize(("name", "field", "task"), FIELDS)
def test_a_setting_that_matters_from_a_task_on_changes_nothing_before(name, field, task, micro, tmp_path) -> None:
    ones = with_another(LATER[name], field, task, micro, tmp_path)
    assert agree(*(state_after(one, min(task - 1, len(one.stream.tasks))) for one in ones))


def test_a_setting_that_matters_earlier_than_it_says_is_found(micro, tmp_path) -> None:
    ones = with_another(Hasty, "distill", 2, micro, tmp_path)
    assert not agree(*(state_after(one, 1) for one in ones))


# Two ranks


@pytest.fixture(scope="module")
def ranks(micro, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The second step of every method by two gloo processes, in one start of them; memories have rows by then."""
    folder = tmp_path_factory.mktemp("ranks")
    specs = {name: make(name, micro, folder / name) for name in METHODS}
    mp.spawn(two_ranks, (str(folder), specs), nprocs=2)
    return {name: [torch.load(folder / f"{name}-{rank}.pt") for rank in range(2)] for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_equal_one_in_values_gradients_and_state(name: str, ranks, micro, tmp_path: Path) -> None:
    alone = one_step(make(name, micro, tmp_path))
    for rank in ranks[name]:
        for key, value in alone["values"].items():
            assert rank["values"][key] == pytest.approx(value, rel=1e-5, abs=1e-6)
        assert rank["gradients"].keys() == alone["gradients"].keys()
        for key, value in alone["gradients"].items():
            torch.testing.assert_close(rank["gradients"][key], value, rtol=1e-3, atol=2e-5)
        for key, value in alone["after"].items():
            if "queue" in key or "keys" in key or value.dtype == torch.int64:
                torch.testing.assert_close(rank["after"][key], value, rtol=1e-4, atol=1e-5)
    first, second = ranks[name]
    assert all(torch.equal(first["after"][key], second["after"][key]) for key in first["after"])


def test_a_packaged_method_has_its_three_files() -> None:
    root = REPOSITORY
    for name in method_names():
        assert (root / "search_spaces" / f"{name}.py").is_file()
        assert (root / "tests" / "methods" / f"test_{name}.py").is_file()
        assert find_method(name).load().__doc__
