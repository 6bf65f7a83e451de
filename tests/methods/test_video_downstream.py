"""VideoMoCo's two halves end to end: a pretext run, its encoder probed and fine-tuned, and what the order of frames is
worth."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from support.sweeps import whole_trial

import kinoray
from kinoray.data.manifest import read_manifest
from kinoray.errors import KinorayError
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.entries import ENTROPY, ENTROPY_OCCLUDED, ENTROPY_RISE, FINE_TUNED_OCCLUDED, MapEntry
from kinoray.papers.maps import MapReproduction
from kinoray.papers.occlusion import entropy, occluded, occlusion
from kinoray.papers.reproduction import Facts
from kinoray.report.tables import compare
from kinoray.runs.result import Result
from kinoray.streams import Stream, downstream_set, moving_actions
from kinoray.streams.events import EVENTS
from kinoray.sweeps.plan import make_plan
from kinoray.sweeps.request import SweepRequest
from kinoray.sweeps.trial import Job

PRETEXT = {"queue_size": 32, "max_steps": 4}
FINE_TUNE = {"max_steps": 4, "validations": 1}
PROBE = FINE_TUNE | {"train": "head"}


def learned(method: str, stream: Stream, runs: Path, **options) -> Result:
    result = kinoray.run(method, stream=stream, num_workers=0, runs=runs, quiet=True, **options)
    assert isinstance(result, Result) and result.state == "finished"
    return result


def test_a_pretext_run_is_probed_and_fine_tuned_and_its_table_shows_both(actions: Stream, tmp_path: Path) -> None:
    parent = learned("video_moco", actions, tmp_path, settings=PRETEXT)
    downstream = downstream_set(actions, "downstream")
    name = f"run:{parent.folder}"
    results = [learned("classify", downstream, tmp_path, backbone=name, settings=s) for s in (FINE_TUNE, PROBE)]
    for result in results:
        assert (result.tasks, result.protocol.name) == (["downstream"], "classification")
        assert set(result.ranks["gallery"]) == {len(EVENTS)} and len(result.ranks) == 2 * len(EVENTS)
    rested, moved = (kinoray.open_method(result).method.encoder().state_dict() for result in reversed(results))
    given = kinoray.open_method(parent).method.encoder().trunk.state_dict()
    assert all(torch.equal(given[key], value) for key, value in rested.items())
    assert not torch.equal(given["projection.weight"], moved["projection.weight"])
    comparison = compare([parent.folder])
    shown = [(column.group, column.key) for column in comparison.downstream]
    assert {group for group, _ in shown} == {"moving-actions/downstream"}
    measured = [comparison.rows[0].estimate(key).mean for _, key in shown]
    assert sorted(measured) == pytest.approx(sorted(result.metrics["accuracy"] for result in results))
    measured = occlusion(results[0])
    assert 0 < measured[ENTROPY] <= np.log(len(EVENTS)) and 0 <= measured[FINE_TUNED_OCCLUDED] <= 100
    assert measured[ENTROPY_RISE] == pytest.approx(measured[ENTROPY_OCCLUDED] - measured[ENTROPY])


def test_what_was_released_learns_and_refuses_other_clips_in_its_first_step(actions: Stream, tmp_path: Path) -> None:
    result = learned("video_moco", actions, tmp_path, settings=PRETEXT, as_released=True)
    settings = result.config["method"]
    assert (settings["generator"], settings["decay"], settings["dropped"]) == ("released", "released", "lowest")
    assert result.losses["gap"].notna().sum() == 2, "frames are lost from the middle on"
    with pytest.raises(KinorayError, match=r"made for 8 frames of 32 px, but got 4 of 32 x 32 px\. Set clip_frames"):
        learned("video_moco", actions, tmp_path, settings=PRETEXT | {"frames": 4}, as_released=True)
    (stopped,) = [r for r in map(Result, tmp_path.glob("*/seed-0")) if r.state == "failed"]
    assert not (stopped.folder / "metrics.jsonl").exists() or stopped.losses.empty


def test_a_classifier_on_a_run_is_searched_like_any_other(actions: Stream, tmp_path: Path) -> None:
    parent = learned("video_moco", actions, tmp_path, settings=PRETEXT)
    downstream = downstream_set(actions, "downstream")
    request = SweepRequest("classify", stream=downstream, space="probe", backbone=f"run:{parent.folder}", runs=tmp_path)
    plan = make_plan(request)
    assert plan.record["settings"]["weight_decay"] == 0.0 and plan.base.recipe.milestones == (60, 80)
    run = replace(plan.run, settings={**plan.run.settings, "max_steps": 2, "validations": 1})
    job = Job(folder=str(tmp_path / "s"), run=run, seeds=(0,), objectives=("accuracy",), threads=1)
    reports = [whole_trial(job, {"learning_rate": rate}, number)[-1] for number, rate in enumerate((0.1, 10.0))]
    runs = [Result(report["folders"][0]) for report in reports]
    assert [run.config["recipe"]["learning_rate"] for run in runs] == [0.1, 10.0]
    assert all(run.run["backbone"] == f"run:{parent.folder}" and run.state == "finished" for run in runs)
    assert [report["accuracy"] for report in reports] == [run.outcome["validation"]["accuracy"] for run in runs]


def test_two_rows_are_looked_through_clip_by_clip(actions: Stream, tmp_path: Path) -> None:
    """Figure 5: maps of both rows over the same frames, and a statement about the two."""
    entry = REPRODUCTIONS["videomoco-fig5"]
    assert isinstance(entry, MapEntry)
    runs = {
        row.label: [learned(row.method, actions, tmp_path, settings=PRETEXT | dict(row.settings))] for row in entry.rows
    }
    facts = Facts(actions.name, "tiny-3d", range(1), False, {}, "c" * 64, [])
    made = MapReproduction("videomoco-fig5", entry, runs, facts, tmp_path)
    assert set(made.frame["attention"]) == {"MoCo: activation", "VideoMoCo: activation"}
    assert len(made.frame) == 2 * len(EVENTS) and made.frame["clip"].nunique() == len(EVENTS)
    frames, of_clip = next(iter(made.pictures.values()))
    assert len(of_clip) == 2
    for weights in of_clip.values():
        assert len(weights) == len(frames)
        np.testing.assert_allclose(weights.sum(axis=(1, 2)), 1, rtol=1e-4)
    (statement,) = made.statements
    assert statement.answer == "cannot be seen at this size", "one seed decides nothing"
    made.write()


def test_the_middle_of_every_fourth_frame_is_covered() -> None:
    frames = np.random.default_rng(0).integers(0, 120, (8, 32, 32, 3)).astype(np.uint8)
    covered = occluded(frames)
    changed = (covered != frames).any(axis=-1)
    assert changed[[0, 4], 8:24, 8:24].all() and changed.sum() == 2 * 16 * 16
    assert np.array_equal(covered[[1, 2, 3, 5, 6, 7]], frames[[1, 2, 3, 5, 6, 7]])
    assert entropy(torch.zeros(20)) == pytest.approx(np.log(20))
    p = np.array([0.7, 0.2, 0.1])
    assert entropy(torch.tensor(p).log()) == pytest.approx(-(p * np.log(p)).sum())


def test_a_classifier_that_learned_nothing_is_at_chance(actions: Stream, tmp_path: Path) -> None:
    nothing = PROBE | {"learning_rate": 1e-12, "max_steps": 1}
    downstream = downstream_set(actions, "downstream")
    scores = [
        learned("classify", downstream, tmp_path, settings=nothing, seed=seed).metrics["accuracy"] for seed in range(3)
    ]
    assert fmean(scores) < 20, "5 % of 20 actions, over 3 x 20 clips"


@pytest.mark.slow
def test_shuffled_frames_cost_a_trained_encoder_accuracy(tmp_path: Path) -> None:
    """Looks alone tell the ten pairs of actions apart, the order of frames alone which of a pair it is."""
    clips = moving_actions.CLIPS | {"pretext": (1, 1, 1)}
    whole = moving_actions.build(world_seed=2, clips=clips, cache=tmp_path / "cache", progress=False)
    downstream = replace(downstream_set(whole, "downstream"), source="")
    opened = kinoray.open_method(learned("classify", downstream, tmp_path / "runs"))
    manifest = read_manifest(downstream.tasks[0].manifest)

    def accuracy(order: torch.Tensor) -> float:
        def logits(video: torch.Tensor) -> torch.Tensor:
            return opened.method.embed_video(video[:, order], 0)

        with torch.inference_mode():
            rows, scores = opened.reader.embed_clips("downstream", manifest, "test", logits)
        truth = np.array([opened.reader.classes[str(label)] for label in manifest.labels(rows)])
        return 100 * float(np.mean(scores.argmax(dim=1).numpy() == truth))

    generator = torch.Generator().manual_seed(0)
    shuffled = fmean(accuracy(torch.randperm(8, generator=generator)) for _ in range(5))
    in_order, backwards = accuracy(torch.arange(8)), accuracy(torch.arange(7, -1, -1))
    assert in_order == pytest.approx(opened.run.metrics["accuracy"], abs=0.5)
    assert in_order > 30 and in_order - shuffled > 5 and in_order - backwards > 5
