"""The chain of a run: the same however it was stopped and resumed, and of an extended run that of the whole one."""

import json
from pathlib import Path
from typing import Any

import torch

from kinoray.execution.extend import extend
from kinoray.streams import Stream
from kinoray.testing.engine import run_spec, spec_of, stopped
from kinoray.testing.small_stream import on_protocol, tasks_of
from kinoray.training.chain import Link, chain_of, leaves_of, links_in


def outcome(folder: str | Path) -> dict[str, Any]:
    return json.loads((Path(folder) / "result.json").read_text())


def test_a_chain_tells_each_link_and_all_before_it() -> None:
    links = [Link("a", "b"), Link("c", "d"), Link("e", "f")]
    chain = chain_of(links)
    other = chain_of([links[0], Link("c", "x"), links[2]])
    assert other[0] == chain[0] and other[1] != chain[1] and other[2] != chain[2]
    assert chain_of(links_in(json.loads(json.dumps(links)), 3)) == chain
    assert chain_of(links_in(None or [], 2)) == [None, None], "as older versions leave it"


def test_a_bit_of_a_tensor_changes_its_leaf_alone() -> None:
    tensors = {"method": {"a": torch.zeros(3), "b": torch.zeros(3)}}
    before = leaves_of(tensors)
    tensors["method"]["a"].view(torch.int32)[1] = 1
    after = leaves_of(tensors)
    assert [name for name in before if before[name] != after[name]] == ["method/a"]


def test_a_resumed_run_keeps_the_chain(micro: Stream, tmp_path: Path) -> None:
    whole, broken = (spec_of("base_moco", micro, tmp_path / name) for name in ("whole", "broken"))
    run_spec(whole)
    for looks in (0, 2, 1):
        stopped(broken, looks)
    run_spec(broken)
    ended = outcome(whole.folder)
    assert len(ended["chain"]) == len(ended["states"]) == 2 and None not in ended["chain"]
    assert outcome(broken.folder)["chain"] == ended["chain"]
    assert ended["processor"]


def test_an_extended_run_has_the_chain_of_the_whole_one(micro: Stream, tmp_path: Path) -> None:
    for protocol, method in (("cvlm", "base_moco"), ("ctvr", "avg_pool")):
        stream = on_protocol(micro, protocol)
        options = {"settings": {"planned_tasks": 3}}
        short = spec_of(method, stream, tmp_path / f"short-{protocol}", **options)
        whole = spec_of(method, tasks_of(stream, 3), tmp_path / f"whole-{protocol}", **options)
        run_spec(short)
        run_spec(whole)
        longer = extend(short.folder, tasks_of(stream, 3).tasks[2], quiet=True, num_workers=0)
        assert outcome(longer.folder)["chain"] == outcome(whole.folder)["chain"]
