"""Retrieval of whole runs: precision, which model's features are kept, how often texts are embedded, both readings."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.toys import PerBlock, Replays
from torch import Tensor

from kinoray.errors import CheckpointCorrupt
from kinoray.evaluation import ranking, retrieval
from kinoray.evaluation.feature_files import read_features
from kinoray.evaluation.protocol import load_protocol
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.metrics import Ranks, ranks_of
from kinoray.runs.result import Result
from kinoray.testing.engine import fresh_session, run_spec, spec_of, stages_of
from kinoray.testing.small_stream import on_protocol
from kinoray.training.checkpoint import newest
from kinoray.training.distributed import World


class Watched(Replays):
    """Notes in which precision it scores, and how often it embeds texts."""

    scored: list[tuple[torch.dtype, bool]] = []
    texts: list[int] = []

    def score(self, queries: Tensor, block: Tensor) -> Tensor:
        scores = queries @ block.T
        self.scored.append((scores.dtype, torch.is_autocast_enabled("cpu")))
        return scores

    def embed_text(self, text, task_index: int) -> Tensor:
        self.texts.append(task_index)
        return super().embed_text(text, task_index)


@pytest.mark.parametrize("protocol", ["cvlm", "ctvr"])
def test_a_run_in_bfloat16_ranks_in_float32(protocol, micro, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Watched, "scored", [])
    spec = spec_of(Watched, on_protocol(micro, protocol), tmp_path, settings={"precision": "bfloat16"})
    assert run_spec(spec)
    assert set(Watched.scored) == {(torch.float32, False)}


def test_cosines_that_bfloat16_cannot_tell_apart_are_ranked_apart() -> None:
    queries, block = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.9990, 0.0], [0.9991, 0.0], [0.5, 0.0]])
    with torch.autocast("cpu", torch.bfloat16):
        assert ranks_of((queries @ block.T).float().numpy(), [0]).ties.tolist() == [1], "they would be a tie"
        ranks = ranking.rank_queries(lambda q, b: q @ b.T, [queries], [block], np.array([0]), World())
    assert (ranks.middle.tolist(), ranks.ties.tolist()) == ([1.0], [0])


def test_a_gallery_larger_than_the_device_may_hold_is_ranked_in_parts(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(9, 4, generator=generator)
    blocks = [torch.randn(n, 4, generator=generator) for n in (11, 6)]
    truth = np.arange(9)
    score = lambda q, b: seen.append(len(b)) or q @ b.T  # noqa: E731
    seen: list[int] = []
    whole = ranking.rank_queries(score, [queries] * 2, blocks, truth, World())
    assert set(seen) == {11, 6}
    seen.clear()
    monkeypatch.setattr(ranking, "BLOCKS_NUMEL", 16)
    parts = ranking.rank_queries(score, [queries] * 2, blocks, truth, World())
    assert max(seen) == 4 and np.array_equal(parts.middle, whole.middle)


def test_features_kept_of_a_gallery_that_is_embedded_anew_are_the_last_models(micro, tmp_path) -> None:
    spec = spec_of("base_moco", micro, tmp_path)
    assert run_spec(spec)
    checkpoint = newest(Path(spec.folder) / "checkpoints", say=print)
    assert checkpoint is not None
    facts = checkpoint.state["tested"]["features"]
    assert {key: fact["after_task"] for key, fact in facts.items()} == {"test/0": 1, "test/1": 1}
    assert len(list((Path(spec.folder) / "features").iterdir())) == 2
    session = fresh_session(spec)
    session.resume()
    for task in (0, 1):
        stored = read_features(Path(spec.folder) / "features", facts[f"test/{task}"])
        now = session.tester.gallery(task, "test", task)
        assert stored.ids.to_pylist() == now.ids and torch.equal(stored.features, now.features)


def test_features_of_a_growing_gallery_are_of_the_model_that_learned_the_task(micro, tmp_path) -> None:
    spec = spec_of("base_moco", on_protocol(micro, "ctvr"), tmp_path)
    assert run_spec(spec)
    checkpoint = newest(Path(spec.folder) / "checkpoints", say=print)
    assert checkpoint is not None
    facts = checkpoint.state["tested"]["features"]
    assert {key: fact["after_task"] for key, fact in facts.items() if key.startswith("test/")} == {
        "test/0": 0,
        "test/1": 1,
    }


@pytest.mark.parametrize(("per_block", "passes"), [(False, [0, 0, 1]), (True, [0, 0, 1, 0, 1])])
def test_queries_are_embedded_once_a_task_unless_a_method_asks_for_each_block(
    per_block, passes, micro, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(Watched, "per_block", per_block, raising=False)
    session = fresh_session(spec_of(Watched, on_protocol(micro, "ctvr"), tmp_path))
    monkeypatch.setattr(Watched, "texts", [])
    for stage in session.spec.stages:
        session.protocol.test(session.tester, stage, "test")
    assert sorted(Watched.texts) == sorted(passes)


def test_both_readings_of_a_growing_gallery_reach_the_files_and_all_numbers_follow_from_them(micro, tmp_path) -> None:
    spec = spec_of(PerBlock, on_protocol(micro, "ctvr"), tmp_path)
    assert run_spec(spec)
    result, protocol = Result(spec.folder), load_protocol("ctvr")
    table = result.ranks
    assert table.groupby(["reading", "after_task"])["gallery"].unique().map(list).to_dict() == {
        ("", 0): [6],
        ("", 1): [12],
        ("own", 0): [6],
        ("own", 1): [6],
    }

    def ranks(rows) -> Ranks:
        return Ranks(*(rows[name].to_numpy() for name in ("rank", "ties", "gallery")))

    for reading in protocol.readings:
        for (after, task), rows in table[table["reading"] == reading].groupby(["after_task", "task"]):
            for score, k in protocol.scores.items():
                name = f"{reading}/{score}" if reading else score
                assert result.matrix_of(name).iloc[after, task] == pytest.approx(ranks(rows).score(k))
    last = table[(table["reading"] == "") & (table["after_task"] == 1)]
    assert result.metrics["R@5"] == pytest.approx(ranks(last).score(5))
    assert result.metrics["MedR"] == np.median(last["rank"]) + 1
    own = result.matrix_of("own/R@1").to_numpy()
    assert result.metrics["BWF_own"] == pytest.approx(own[0, 0] - own[1, 0])


def test_twins_are_found_by_their_ids_and_told_apart_by_their_order(micro, tmp_path, monkeypatch) -> None:
    assert retrieval._twins(["a/b/x", "c/x", "a/b/y", "alone"]).tolist() == [2, 1, 0, 3]
    monkeypatch.setattr(retrieval, "_twins", lambda ids: np.arange(len(ids)) ^ 1)
    spec = spec_of("base_moco", on_protocol(micro, "ctvr-twins"), tmp_path)
    assert run_spec(spec)
    result = Result(spec.folder)
    sizes = result.ranks.groupby(["reading", "after_task"])["gallery"].unique().map(list)
    assert (sizes["what", 1], sizes["order", 1]) == ([11], [2])
    for row, best in zip(
        *(result.ranks.query(f"reading == '{r}'").to_dict("records") for r in ("order", "")), strict=True
    ):
        assert row["sample"] == best["sample"]
        if not row["ties"] and best["rank"] == 0:
            assert row["rank"] == 0, "who is first of all stands before its twin"


def test_ranks_of_runs_without_ties_read_as_untied(micro, tmp_path) -> None:
    import pyarrow.parquet as pq

    spec = spec_of("base_moco", micro, tmp_path)
    assert run_spec(spec)
    path = Path(spec.folder) / "ranks.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["ties", "reading", "best"]), path)
    table = Result(spec.folder).ranks
    assert (table["ties"] == 0).all() and (table["reading"] == "").all()
    assert all(len(best) == 0 for best in table["best"])


@pytest.mark.parametrize("protocol", ["cvlm", "ctvr"])
def test_the_first_clips_that_are_noted_are_those_of_the_ranks(protocol, micro, tmp_path) -> None:
    spec = spec_of("base_moco", on_protocol(micro, protocol), tmp_path)
    assert run_spec(spec)
    ranks = Result(spec.folder).ranks
    assert set(ranks["gallery"]) == ({6} if protocol == "cvlm" else {6, 12})
    for row in ranks[ranks["ties"] == 0].to_dict("records"):
        best = list(row["best"])
        assert len(set(best)) == ranking.BEST
        assert (best.index(row["clip_id"]) if row["clip_id"] in best else None) == (
            row["rank"] if row["rank"] < ranking.BEST else None
        )


def test_ties_readings_and_first_clips_survive_a_checkpoint() -> None:
    ranks = ranks_of([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]], [0, 1])
    noted = replace(ranks, best=np.array([[0, 1, 2, -1, -1], [1, 0, 2, -1, -1]]))
    cells = {("", 1, 0): ranks, ("own", 10, 2): noted}
    back = ranking.from_tensors(*ranking.to_tensors(cells))
    assert back.keys() == cells.keys()
    for cell, read_back in back.items():
        for name in ("middle", "ties", "gallery", "best"):
            assert np.array_equal(getattr(read_back, name), getattr(cells[cell], name))


def test_a_damaged_feature_file_is_told_at_resume_and_not_when_it_is_needed(micro, tmp_path) -> None:
    spec = spec_of("base_moco", on_protocol(micro, "ctvr"), tmp_path)
    next(stages_of(spec))
    resumed = RankSession(spec, World(), RunMonitor(spec.folder), None).resume
    assert resumed().position.stage == 1
    (file,) = Path(spec.folder).glob("features/test-0-*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointCorrupt, match=f"{file.name} is not the file"):
        resumed()
