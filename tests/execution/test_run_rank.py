"""What a rank asks of its machine and of its peers before the first step."""

import os
import pickle
import pickletools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import deterministic

from kinoray.config import Recipe
from kinoray.errors import RunFailed
from kinoray.execution import commits, run_rank
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.vitals import Clock
from kinoray.method import Rows
from kinoray.testing.engine import fresh_session, spec_of
from kinoray.testing.small_stream import suited
from kinoray.training.checkpoint import Position
from kinoray.training.distributed import World

NO_BUDGET = SimpleNamespace(budget=None, recipe=Recipe())


def begins(*_: Any) -> None:
    """In place of a session: a rank is ready to begin, and needs go no further."""
    raise InterruptedError


@pytest.mark.parametrize(("device", "asked"), [("cuda", [(True,)]), ("cpu", [])])
def test_a_gpu_takes_deterministic_kernels_or_fails(monkeypatch, device: str, asked: list[tuple[Any, ...]]) -> None:
    """With `warn_only` attention's backward pass would stay as it is: two runs would end differently."""
    calls: list[tuple[Any, ...]] = []

    def asks(*words: Any, **options: Any) -> None:
        calls.append((*words, *options.items()))

    monkeypatch.setattr(torch, "use_deterministic_algorithms", asks)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(run_rank, "RankSession", begins)
    spec: Any = SimpleNamespace(threads=1, folder=".", run=NO_BUDGET)
    with pytest.raises(InterruptedError):
        next(run_rank.stage_by_stage(spec, World(device=torch.device(device)), None, None))
    assert calls == asked
    assert torch.backends.cudnn.benchmark == (device == "cpu")


def test_a_rank_takes_no_more_threads_than_its_own_machine_has_cores(monkeypatch) -> None:
    taken: list[int] = []

    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.setattr(run_rank, "usable_cores", lambda: 2)
    monkeypatch.setattr(run_rank, "RankSession", begins)
    for threads in (63, 1):
        spec: Any = SimpleNamespace(threads=threads, folder=".", run=NO_BUDGET)
        with pytest.raises(InterruptedError):
            next(run_rank.stage_by_stage(spec, World(), None, None))
    assert taken == [2, 1]


def test_ranks_that_see_different_checkpoints_stop_and_say_what_to_do(monkeypatch, tmp_path) -> None:
    places = [Position(0, 0, 8), Position(0, 0, 4)]
    monkeypatch.setattr(commits, "gather_objects", lambda own, world: places)
    ours = commits.Commits(tmp_path, World(), Clock(), None)
    with pytest.raises(RunFailed, match=r"The workers see different checkpoints of .*: give a folder that they share"):
        ours.newest(pytest.fail, [8])


def test_what_a_run_tells_its_actors_imports_nothing_there(micro, monkeypatch, tmp_path) -> None:
    """A class of ours would bring torch into both, which takes a second and 0.14 GB each."""
    told: list[tuple[Any, bytes]] = []
    monkeypatch.setattr(commits, "call", lambda actor, *words: told.append((actor, pickle.dumps(words))))
    spec = spec_of("bmu_moco", suited("bmu_moco", micro), tmp_path)
    assert run_rank.run_rank(spec, World(), RunMonitor(spec.folder), commits.Stores("momentum", "features"))
    assert {actor for actor, _ in told} == {"momentum", "features"}
    named = {text for _, data in told for _, text, _ in pickletools.genops(data) if isinstance(text, str)}
    assert "encoder" in " ".join(named) and not [text for text in named if text.startswith(("kinoray", "torch"))]


def test_what_repeatable_products_need_is_set_before_any_is_made() -> None:
    """torch looks once in a process, whoever makes the first product on a GPU."""
    code = "import os, kinoray; print(os.environ['CUBLAS_WORKSPACE_CONFIG'])"
    for own, wanted in ({}, ":4096:8"), ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, ":16:8"):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CUBLAS")} | own
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == wanted


def test_a_run_in_this_process_leaves_torch_as_it_was() -> None:
    threads = torch.get_num_threads()
    with run_rank.settings_kept():
        torch.set_num_threads(threads + 1)
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
        deterministic.fill_uninitialized_memory = False
    assert torch.get_num_threads() == threads and deterministic.fill_uninitialized_memory
    assert not torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark


def test_a_gpu_repeats_unless_the_recipe_says_that_it_need_not(micro, tmp_path: Path) -> None:
    for repeatable in (True, False):
        spec = spec_of("base_moco", micro, tmp_path / str(repeatable), settings={"repeatable": repeatable})
        with run_rank.settings_kept():
            run_rank.compute_repeatably(spec, World(device=torch.device("cuda")))
            assert torch.are_deterministic_algorithms_enabled() == repeatable
            assert torch.backends.cudnn.benchmark != repeatable
            assert not deterministic.fill_uninitialized_memory


def test_a_gpu_that_is_full_is_one_line_with_the_switches_that_are_left() -> None:
    for recipe, names in ((Recipe(), True), (Recipe(checkpoint_activations=True), False)):
        spec: Any = SimpleNamespace(run=SimpleNamespace(recipe=recipe), folder=".")
        with pytest.raises(RunFailed, match="48 rows of 4 frames at 384 px") as told, run_rank.resources_named(spec):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        assert ("checkpoint_activations=true" in str(told.value)) == names and "\n" not in str(told.value)


def test_what_a_task_encodes_has_no_graph_and_the_runs_precision(micro, tmp_path: Path) -> None:
    session = fresh_session(replace(spec_of("base_moco", micro, tmp_path), autocast=True))
    task, seen = session.task(session.spec.stages[0]), []

    def fn(rows: Rows) -> torch.Tensor:
        embedded = session.method.encoder().vision_projection(torch.ones(len(rows.ids), 64))
        seen.append((embedded.requires_grad, embedded.dtype))
        return embedded

    _, features = task.encode(fn)
    assert set(seen) == {(False, torch.bfloat16)} and features.dtype == torch.float32
