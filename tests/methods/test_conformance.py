"""Every method keeps every promise of `kinoray.testing`: the packaged ones, found by file name, and the toys."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.growth import Late
from support.places import REPOSITORY
from support.rules import RULES, Pairs, Pulled, PulledByShare
from support.toys import TOYS

from kinoray.rule import Rule
from kinoray.runs.method_source import MethodSource, find_method, method_names, with_learner
from kinoray.streams import Stream
from kinoray.testing import suite
from kinoray.testing.engine import on_two_ranks
from kinoray.testing.small_stream import suited
from kinoray.testing.subject import Subject
from kinoray.testing.suite import (
    PROMISES,
    BrokenPromise,
    Promise,
    learns_two_tasks,
    resumes_bit_for_bit,
    two_ranks_equal_one,
)

DEVICE = os.environ.get("KINORAY_TEST_DEVICE", "cpu")
"""cuda on a machine that has one: methods learn there, and torch refuses what it cannot repeat."""
METHODS: dict[str, Any] = {name: name for name in method_names()} | TOYS | RULES | {"late": Late}


@pytest.fixture(scope="module")
def subjects(micro, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """Every method with the runs of it that several promises look at; one start of two ranks for all."""
    folder, peers = tmp_path_factory.mktemp("subjects"), dict[str, list[dict[str, Any]]]()
    by_name = {
        name: Subject(source_of(method, micro), micro, folder / name, peers, DEVICE) for name, method in METHODS.items()
    }
    peers.update(on_two_ranks({subject.method.name: subject.spec_of_two for subject in by_name.values()}, goes_on=True))
    return by_name


def source_of(method: Any, stream: Stream) -> MethodSource:
    """A method, or a rule around the default learner of its first protocol."""
    source = find_method(method)
    return with_learner(source, suited(source, stream).protocol)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_method_keeps_its_promise(promise: Promise, name: str, subjects: dict[str, Subject]) -> None:
    promise(subjects[name])


RULE_NAMES = [name for name in method_names() if issubclass(find_method(name).load(), Rule)]


@pytest.mark.slow
def test_rules_keep_their_promises_around_a_whole_method_too(micro, tmp_path: Path) -> None:
    """Every rule on its default learner stands above; here around BMU-MoCo, on pictures where it is a rule of these."""
    peers: dict[str, list[dict[str, Any]]] = {}
    suits = {name: find_method(name).load().suits or ("cvlm",) for name in RULE_NAMES}
    pairs = [find_method(f"{name}:bmu_moco{'' if 'cvlm' in suits[name] else '_views'}") for name in RULE_NAMES]
    subjects = [Subject(pair, micro, tmp_path / pair.name.replace(":", "-"), peers) for pair in pairs]
    peers.update(on_two_ranks({subject.method.name: subject.spec_of_two for subject in subjects}, goes_on=True))
    for subject in subjects:
        for promise in (learns_two_tasks, resumes_bit_for_bit, two_ranks_equal_one):
            promise(subject)


def test_of_a_penalty_on_weights_each_rank_takes_its_share(micro, tmp_path: Path) -> None:
    """One that is 0 where the task begins, too."""
    peers: dict[str, list[dict[str, Any]]] = {}
    whole, shared = (Subject(source_of(m, micro), micro, tmp_path / m.__name__, peers) for m in (Pulled, PulledByShare))
    peers.update(on_two_ranks({subject.method.name: subject.spec_of_two for subject in (whole, shared)}, goes_on=True))
    two_ranks_equal_one(shared)
    share = r"take len\(batch.ids\) / batch.global_size of a penalty, and draw random numbers by batch.normal"
    with pytest.raises(BrokenPromise, match=share):
        two_ranks_equal_one(whole)


@pytest.mark.parametrize("verb", ["embed_video", "embed_text", "probe_features"])
def test_an_encoder_that_is_not_tested_breaks_a_promise(verb: str, micro, tmp_path: Path) -> None:
    class Apart(Pairs):
        pass

    setattr(Apart, verb, lambda self, *inputs: getattr(Pairs, verb)(self, *inputs).roll(1, dims=-1))
    with pytest.raises(BrokenPromise, match=f"`{verb}` is not what `encoder\\(\\)` gives"):
        suite.tests_its_encoder(Subject(source_of(Apart, micro), micro, tmp_path))


def test_a_packaged_method_has_its_three_files() -> None:
    for name in method_names():
        assert (REPOSITORY / "search_spaces" / f"{name}.py").is_file()
        assert (REPOSITORY / "tests" / "methods" / f"test_{name}.py").is_file()
        assert find_method(name).load().__doc__
