"""Runs that are made up: tables of `kinoray reproduce` without an engine."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.offline import offline
from support.run_folders import make_run

from kinoray.papers import tuned
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.entries import ENTROPY, ENTROPY_OCCLUDED, ENTROPY_RISE, FINE_TUNED_OCCLUDED
from kinoray.runs.request import RunRequest
from kinoray.runs.result import Result
from kinoray.streams import moving_actions

GAINS = {"base_moco": 0.0, "lwf:base_moco": 1.0, "er_ring:base_moco": 2.0, "der:base_moco": 1.5, "co2l:base_moco": 0.8,
         "lump:base_moco": 1.2, "bmu_moco": 6.0, "bmu_moco_views": 6.0, "moco": 0.0, "simple_replay:moco": 1.0,
         "ccsl:moco": 4.0}  # fmt: skip
"""How much better than the first the made-up runs of a method are; the local variant a point less."""


def gain_of(request: RunRequest) -> float:
    """Of streams of pictures, the more tasks the less."""
    *_, last = str(request.stream).partition(":")[0].split("-")
    lost = int(last) * (5 - GAINS.get(str(request.method), 3.0)) / 10 if last.isdigit() else 0.0
    return GAINS.get(str(request.method), 3.0) - (request.settings.get("variant") == "local") - lost


def protocol_of(stream: str) -> str:
    if stream.startswith(("digits-", "shapes-ucl-")):
        return "ucl"
    if stream.startswith("moving-retention"):
        return "retention"
    return "cssl" if stream.startswith("shapes-") else "cvlm"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in REPRODUCTIONS.items():
        monkeypatch.setitem(REPRODUCTIONS, name, offline(entry))
    few = partial(moving_actions.build, clips=dict.fromkeys(moving_actions.CLIPS, (1, 1, 1)), progress=False)
    monkeypatch.setattr(moving_actions, "load", lambda name, argument: few(name, int(argument)))


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """`run_all` answers with made-up runs; collects the requests."""
    asked: list[RunRequest] = []

    def folder(request: RunRequest, seed: int) -> Path:
        settings, protocol = dict(request.settings), protocol_of(str(request.stream))
        kind: dict[str, Any] = {"joint": request.joint, "zero_shot": request.zero_shot}
        parts = [
            str(request.method).replace(":", "-"),
            *[f"{key}{value}" for key, value in settings.items()],
            *[n for n, on in kind.items() if on],
            *filter(None, [request.backbone, request.control.replace("/", "-"), str(request.equal_flops or "")]),
        ]
        if protocol != "cvlm" or "moving-conflict" in str(request.stream):
            kind |= {"stream": str(request.stream), "protocol": protocol}
            parts.append(str(request.stream).replace(":", "-"))
        root = tmp_path / "made" / "-".join(parts)
        there = list(root.glob(f"*/seed-{seed}"))
        return (
            there[0]
            if there
            else make_run(root, str(request.method), seed, gain_of(request), overrides=settings, **kind)
        )

    def run_all(requests: Sequence[RunRequest]) -> list[list[Result]]:
        asked.extend(requests)
        return [[Result(folder(request, seed)) for seed in request.all_seeds] for request in requests]

    monkeypatch.setattr("kinoray.execution.run.run_all", run_all)
    # They have no weights whose predictions could be looked at.
    seen = {ENTROPY: 1.0, ENTROPY_OCCLUDED: 1.5, ENTROPY_RISE: 0.5, FINE_TUNED_OCCLUDED: 40.0}
    monkeypatch.setattr("kinoray.papers.tables.occlusion", lambda run: seen)
    monkeypatch.setattr(tuned, "FOLDER", tmp_path / "tuned")
    (tmp_path / "tuned").mkdir()
    return asked
