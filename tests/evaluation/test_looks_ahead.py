"""A protocol that tests every task from before the first training on: what it adds to a run, and what it leaves."""

import json
from pathlib import Path

import numpy as np
import pytest

import kinoray
from kinoray.errors import UsageError
from kinoray.evaluation.protocol import load_protocol
from kinoray.execution.beginnings import in_turn
from kinoray.execution.extend import extend
from kinoray.proof import bundle as making
from kinoray.proof import verify as checking
from kinoray.report.resampling import draws_of
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import each_run
from kinoray.runs.result import BEFORE_TRAINING, Result
from kinoray.streams import Stream
from kinoray.testing.engine import run_spec, spec_of, stopped
from kinoray.training.stages import BEFORE, Stage

CVLM = load_protocol("cvlm")


@pytest.fixture(scope="module")
def usual(micro: Stream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Runs whose protocol does not look ahead."""
    folder, made = tmp_path_factory.mktemp("usual"), {}
    for kind in ("", "zero_shot"):
        spec = spec_of("base_moco", micro, folder, **({kind: True} if kind else {}))
        run_spec(spec)
        made[kind] = Result(spec.folder)
    return made


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(CVLM), "looks_ahead", True)


@pytest.mark.usefixtures("ahead")
def test_all_tasks_are_tested_before_and_after_every_training() -> None:
    assert CVLM.stages(2) == (Stage(0, (0, 1), 0, before=(0, 1)), Stage(1, (0, 1), 1))
    assert [stage.rows for stage in CVLM.stages(2)] == [(0, BEFORE), (1,)]
    assert CVLM.stages(2)[0].untrained == Stage(None, (0, 1), BEFORE)
    assert [CVLM.stages(3)[1].seen_as(task) for task in range(3)] == [0, 1, 1]
    (zero_shot,), (joint,) = CVLM.stages(3, zero_shot=True), CVLM.stages(3, joint=True)
    assert (sorted(zero_shot.rows), joint.rows) == ([BEFORE, 0, 1, 2], (2,))


@pytest.mark.usefixtures("ahead")
def test_a_run_gains_a_row_and_columns_and_keeps_the_rest(
    usual: dict[str, Result], micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of("base_moco", micro, tmp_path)
    run_spec(spec)
    result, then = Result(spec.folder), usual[""]
    whole = result.matrix_of("R@1", whole=True)
    assert list(whole.index) == [BEFORE_TRAINING, *result.tasks] and not whole.isna().to_numpy().any()
    assert (whole.iloc[0].to_numpy() == usual["zero_shot"].matrix.iloc[-1].to_numpy()).all()
    assert (np.tril(whole.iloc[1:]) == np.tril(then.matrix.fillna(0))).all()
    new = dict.fromkeys(("Transfer", "Average", "Last"))
    assert result.metrics | new == then.metrics | new and result.matrix.shape == then.matrix.shape
    assert BEFORE_TRAINING in set(result.frame["after_task"]) and BEFORE_TRAINING in result._repr_html_()
    assert then.matrix_of("R@1", whole=True).equals(then.matrix)

    drawn, plain = (
        draws_of(run, lambda matrices, queries, final: CVLM.metrics_of(matrices, queries)) for run in (result, then)
    )
    assert drawn and all((drawn[name] == plain[name]).all() for name in plain)
    for module in (making, checking):
        monkeypatch.setattr(module, "chosen_task", lambda seal, stages: 1)
    verdict = checking.verify(kinoray.bundle(spec.folder, tmp_path / "run.zip", quiet=True), stream=micro)
    assert verdict.words == "repeated", verdict
    with pytest.raises(UsageError, match="a new one would lack these tests"):
        extend(result, micro.tasks[0], stream=micro)


@pytest.mark.usefixtures("ahead")
def test_a_stop_before_the_first_step_is_resumed(micro: Stream, tmp_path: Path) -> None:
    whole, broken = (spec_of("base_moco", micro, tmp_path / name) for name in ("whole", "broken"))
    run_spec(whole)
    for looks in (0, 1, 2, 5, 1):
        stopped(broken, looks)
    run_spec(broken)
    ended = [json.loads((Path(spec.folder) / "result.json").read_text()) for spec in (whole, broken)]
    assert ended[0]["chain"] == ended[1]["chain"] and ended[0]["state_digest"] == ended[1]["state_digest"]


@pytest.mark.usefixtures("ahead")
def test_zero_shot_is_the_same_in_all_rows_and_joint_training_has_the_last(micro: Stream, tmp_path: Path) -> None:
    zero_shot, joint = (
        spec_of("base_moco", micro, tmp_path, zero_shot=True),
        spec_of("base_moco", micro, tmp_path, joint=True),
    )
    for spec in (zero_shot, joint):
        run_spec(spec)
    rows = Result(zero_shot.folder).matrix_of("R@1", whole=True).to_numpy()
    assert len(rows) == 3 and (rows == rows[0]).all()
    assert Result(joint.folder).matrix_of("R@1", whole=True).isna().to_numpy().tolist() == [[True] * 2, [False] * 2]


@pytest.mark.usefixtures("ahead")
def test_orders_that_begin_alike_were_tested_on_other_tasks_and_share_nothing(micro: Stream, tmp_path: Path) -> None:
    runs = each_run(RunRequest("base_moco", stream=micro, runs=tmp_path, orders=2))
    groups, heirs = in_turn(runs)
    assert len(groups) == len(runs) == 2 and not any(heirs.values())
