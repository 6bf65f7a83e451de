"""A method under test, with the runs of it that several promises look at, each made once."""

import shutil
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kinoray.method import BaseMethod
from kinoray.runs.method_source import MethodSource
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import RunSpec
from kinoray.streams import Stream
from kinoray.testing.engine import (
    committed,
    digest_of_run,
    on_two_ranks,
    resolved,
    resumed,
    run_spec,
    spec_of,
    stages_of,
    stopped,
)
from kinoray.testing.small_stream import suited
from kinoray.training.plain_state import attribute_place, changed_attributes, plain_state

STOPS = (0, 1, 2, 1)
"""Looks of a rank at its monitor before each stop: after the first step, again in the first task, between tasks, and in
the second task."""


@dataclass(frozen=True)
class Subject:
    """A method on a small stream, with a folder for its runs. `Subject(find_method("./my_method.py"), small_stream(),
    folder)`."""

    method: MethodSource
    small: Stream
    folder: Path
    peers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Steps on two ranks by the method's name, where they were made beforehand."""
    device: str = "cpu"
    """cpu or cuda: where it learns; two ranks always meet on the CPU."""

    @cached_property
    def cls(self) -> type[BaseMethod]:
        """The class."""
        return self.method.load()

    @cached_property
    def stream(self) -> Stream:
        """The small stream under the first protocol that the method suits."""
        return suited(self.method, self.small)

    def resolved(self, name: str, **options: Any) -> Resolved:
        """A run of it that has not started, below a folder of its own."""
        return resolved(self.method, self.stream, self.folder / name, **options)

    @cached_property
    def spec(self) -> RunSpec:
        """What a rank of its usual run gets."""
        return spec_of(self.method, self.stream, self.folder, device=self.device)

    @cached_property
    def spec_of_two(self) -> RunSpec:
        """What each of two ranks gets: a run whose first task is learned where another one comes, for what holds to
        earlier tasks acts from then on."""
        if len(self.spec.stages) == 1:
            return spec_of(self.method, self.stream, self.folder / "ranks")
        assert self.first_task
        return replace(self.spec, device="cpu", autocast=False, run=replace(self.spec.run, folder=self._second))

    def copy(self, name: str) -> RunSpec:
        """The usual run in a new folder; what another promise left of it when the method failed is gone."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return replace(self.spec, run=replace(self.spec.run, folder=folder))

    @property
    def _second(self) -> Path:
        """Folder of the usual run as its second task finds it."""
        return self.folder / "second" / self.spec.run.folder.name

    @cached_property
    def first_task(self) -> dict[str, str]:
        """Digests of all tensors that its usual run has committed after the first task; learns the whole run."""
        stages = stages_of(self.spec)
        first = committed(self.spec, next(stages))
        if len(self.spec.stages) > 1:
            shutil.copytree(self.spec.folder, self._second, dirs_exist_ok=True)
        for _ in stages:
            pass
        return first

    @cached_property
    def whole(self) -> RunSpec:
        """Its usual run, learned without a stop."""
        assert self.first_task and digest_of_run(self.spec), "it has finished"
        return self.spec

    @cached_property
    def broken(self) -> tuple[RunSpec, list[tuple[str, str, str]]]:
        """The same run, stopped and resumed all along, and (class, attribute, place) of what resumes have lost."""
        spec, lost = self.copy("broken"), dict[tuple[str, str], tuple[str, str, str]]()
        left: BaseMethod | None = None

        def compare(again: BaseMethod) -> None:
            if left is None:
                return
            for module, attribute in changed_attributes(plain_state(left), plain_state(again)):
                owner = left.get_submodule(module)
                place = (type(owner).__name__, attribute, attribute_place(left, owner, attribute))
                lost.setdefault((module, attribute), place)

        for looks in STOPS:
            left = stopped(spec, looks, compare)
        compare(resumed(spec))
        assert run_spec(spec)
        return spec, list(lost.values())

    @cached_property
    def two_ranks(self) -> list[dict[str, Any]]:
        """`one_step` on each of two ranks; memories have rows by then."""
        name = self.method.name
        return self.peers.get(name) or on_two_ranks({name: self.spec_of_two}, goes_on=True)[name]
