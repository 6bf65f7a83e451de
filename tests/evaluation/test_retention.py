"""`retention`: Transfer, Average and Last by a plain script, classes and captions by plain loops, whole runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kinoray import metrics
from kinoray.data.manifest import read_manifest, write_manifest
from kinoray.errors import BadData, UsageError
from kinoray.evaluation.class_texts import class_texts
from kinoray.evaluation.protocol import load_protocol
from kinoray.method import Tokens
from kinoray.report.page import write_report
from kinoray.report.tables import compare
from kinoray.runs.reopen import recorded_stream
from kinoray.runs.result import Result
from kinoray.streams import Stream
from kinoray.streams.prompts import class_task, pair_task
from kinoray.testing.engine import fresh_session, run_spec, spec_of
from kinoray.testing.small_stream import tasks_of
from kinoray.training.stages import Stage

PROMPTS = ("a {}", "look , the {}")
ZERO_SHOT = [24.3, 88.4, 68.2, 44.6, 54.9, 71.0, 88.5, 59.4, 89.0, 64.7, 65.2]
"""Of the published table of MTIL, order I."""


@pytest.fixture(scope="module")
def stream(micro: Stream) -> Stream:
    """Two tasks of shapes by their names, which the two share in part, and one of captions between them."""
    manifests = {task.name: read_manifest(task.manifest) for task in tasks_of(micro, 3).tasks}
    paper, neon, tape = manifests.items()
    return replace(
        micro,
        name="kept",
        protocol="retention",
        tasks=(class_task(*paper, PROMPTS), pair_task(*neon), class_task(*tape, PROMPTS[:1], {"circle": "dot"})),
    )


def by_script(rows: list[list[float]]) -> tuple[float, float, float]:
    """The three numbers in plain loops, as the released notebook has them: a mean of means over columns."""
    count = len(rows)
    before = [sum(rows[i][t] for i in range(t)) / t for t in range(1, count)]
    columns = [sum(row[t] for row in rows) / count for t in range(count)]
    return sum(before) / len(before), sum(columns) / count, sum(rows[-1]) / count


def test_the_three_numbers_are_those_of_the_released_code() -> None:
    example = [[80.0, 50.0, 40.0], [70.0, 90.0, 45.0], [60.0, 85.0, 95.0]]
    zero, random = [list(row) for row in example], np.random.default_rng(0).uniform(0, 100, (6, 6)).tolist()
    zero[0][1] = 0.0
    for rows in (example, zero, random, [ZERO_SHOT] * 11):
        found = metrics.transfer(rows), metrics.average(rows), metrics.final_mean(rows)
        assert found == pytest.approx(by_script(rows))
    assert metrics.transfer(example) == 46.25 and metrics.average(example) == pytest.approx(68.3333, abs=1e-4)
    assert metrics.transfer(zero) == 21.25, "a cell of exactly 0 counts"
    assert [round(f([ZERO_SHOT] * 11) or 0, 2) for f in (metrics.transfer, metrics.average)] == [69.39, 65.29]


def test_upper_columns_count_nowhere_else_and_nothing_counts_in_part() -> None:
    full = np.random.default_rng(1).uniform(0, 100, (4, 4))
    lower = np.where(np.tril(np.ones((4, 4))), full, np.nan)
    protocol = load_protocol("retention")
    of_full, of_lower = (protocol.metrics_of({"top1": m, "top5": m}) for m in (full, lower))
    new = {"Transfer", "Average"}
    assert {name: value for name, value in of_full.items() if name not in new} == {
        name: value for name, value in of_lower.items() if name not in new
    }
    assert of_lower["Transfer"] is of_lower["Average"] is None
    after_two = protocol.metrics_of({"top1": full, "top5": full}, tasks=2)
    assert after_two["Transfer"] == pytest.approx(full[0, 1]) and after_two["Average"] == pytest.approx(
        full[:2, :2].mean()
    )


@pytest.mark.parametrize("knows_task", [True, False])
def test_classes_and_captions_are_ranked_as_plain_loops_rank_them(
    stream: Stream, tmp_path: Path, knows_task: bool
) -> None:
    protocol = "retention" if knows_task else "retention-agnostic"
    session = fresh_session(spec_of("base_moco", replace(stream, protocol=protocol), tmp_path))
    method, tester = session.method.eval(), session.tester

    def texts_of(texts: list[str]) -> Tensor:
        ids, mask = session.reader.towers.tokenize(texts, session.recipe.max_tokens)
        with torch.inference_mode():
            return method.embed_text(Tokens(torch.from_numpy(ids), torch.from_numpy(mask)), 0)

    def named(task: int, label: str) -> Tensor:
        word = {"circle": "dot"}.get(label, label) if task == 2 else label
        rows = [row for split in ("test", "validation") for row in manifests[task].clips(split)]
        prompts = PROMPTS if task == 0 and label in manifests[task].labels(rows) else PROMPTS[:1]
        features = texts_of([prompt.format(word) for prompt in prompts])
        features = torch.stack([f / f.norm() for f in features]).mean(dim=0)
        return features / features.norm()

    manifests = [read_manifest(task.manifest) for task in stream.tasks]
    clips = [tester.gallery(task, "test", 0).features for task in range(3)]
    classes = [(t, label) for t in (0, 2) for label in sorted(set(manifests[t].table["label"].to_pylist()))]
    of_class = {name: named(*name) for name in classes}
    expected: dict[int, list[int]] = {}
    for task in (0, 2):
        among = [name for name in classes if not knows_task or name[0] == task]
        for video, label in zip(clips[task], manifests[task].labels(manifests[task].clips("test")), strict=True):
            scores = {name: float(video @ of_class[name]) for name in among}
            rank = sum(score > scores[task, label] for score in scores.values())
            expected.setdefault(task, []).append(rank)
    rows, numbers = manifests[1].samples("test")
    for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
        scores = clips[1] @ texts_of([manifests[1].caption(row, number)])[0]
        own = manifests[1].clips("test").tolist().index(row)
        expected.setdefault(1, []).append(int((scores > scores[own]).sum()))

    found = load_protocol(protocol).test(tester, Stage(0, (0, 1, 2), 0), "test")[""]
    assert {task: ranks.middle.tolist() for task, ranks in found.items()} == expected
    sizes = {task: set(ranks.gallery.tolist()) for task, ranks in found.items()}
    own = {task: len({name for name in classes if name[0] == task}) for task in (0, 2)}
    assert sizes == {0: {own[0] if knows_task else len(classes)}, 1: {6}, 2: {own[2] if knows_task else len(classes)}}


@pytest.mark.parametrize("knows_task", [True, False])
@pytest.mark.parametrize("name", ["rail", "ranpac"])
def test_regressions_answer_for_the_classes_that_some_task_had_as_plain_loops_do(
    name: str, knows_task: bool, stream: Stream, tmp_path: Path
) -> None:
    protocol = "retention" if knows_task else "retention-agnostic"
    both = replace(stream, protocol=protocol, tasks=(stream.tasks[0], stream.tasks[2]))
    session = fresh_session(spec_of(name, both, tmp_path, settings={"lift": 3.0}))
    method, tester, towers = session.method, session.tester, session.method.encoder()
    manifests = [read_manifest(task.manifest) for task in both.tasks]
    means: dict[tuple[int, str], Tensor] = {}
    prompt: dict[tuple[int, str], str] = {}
    for task, manifest in enumerate(manifests):
        for label, prompts in class_texts(manifest).items():
            ids, mask = towers.tokenize(list(prompts), session.recipe.max_tokens)
            with torch.inference_mode():
                features = towers.embed_text(Tokens(torch.from_numpy(ids), torch.from_numpy(mask))).double()
            means[task, label] = sum(f / f.norm() for f in features)
            prompt[task, label] = prompts[0]
    number: dict[str, int] = {}

    def scores_of(x: Tensor, among: list[tuple[int, str]]) -> list[float]:
        random, W = (towers.random_DM, towers.W_MC) if name == "rail" else (method.random_LM, method.W_MC)
        regressed = (torch.relu(x @ random) @ W).tolist()
        known = [number.get(prompt[cls]) for cls in among]
        adapter = [0.0 if column is None else regressed[column] for column in known]
        if name == "ranpac":
            return adapter
        p = torch.stack([100 * x @ means[cls] / means[cls].norm() for cls in among]).softmax(dim=0)
        if known[int(p.argmax())] is None:
            return p.tolist()
        return [0.2 * float(zero) + 0.8 * one for zero, one in zip(p, adapter, strict=True)]

    for stage, learned in zip(session.spec.stages, manifests, strict=True):
        if stage.row:
            method.grow(session.task(stage))
        method.end_task(session.task(stage))
        rows = learned.clips("train")
        labels = zip(rows.tolist(), learned.labels(rows), strict=True)
        number |= {learned.caption(row, 0): session.reader.classes[str(label)] for row, label in labels}
        assert ("a dot" in number) == bool(stage.row), "a circle, in the second task"
        found = load_protocol(protocol).test(tester, Stage(stage.train, (0, 1), stage.row), "test")[""]
        for task, manifest in enumerate(manifests):
            among = [cls for cls in means if not knows_task or cls[0] == task]
            clips = tester.embed(task, "test", towers.embed_video if name == "rail" else towers.features, kind="plain")
            for x, label, middle in zip(clips.features, manifest.labels(clips.rows), found[task].middle, strict=True):
                scores = scores_of(x.double(), among)
                own = scores[among.index((task, str(label)))]
                close = sum(score == pytest.approx(own, rel=1e-5, abs=0) and score != own for score in scores)
                higher = sum(score > own and score != pytest.approx(own, rel=1e-5, abs=0) for score in scores)
                if not 0 < own < 1e-30:  # below, single precision knows no order
                    least = higher + (scores.count(own) - 1) / 2
                    assert least <= middle <= least + close, "single precision may tell close ones apart either way"


def test_sets_that_are_held_out_are_tested_like_tasks_and_counted_nowhere(
    stream: Stream, micro: Stream, tmp_path: Path
) -> None:
    more = read_manifest(tasks_of(micro, 4).tasks[3].manifest)
    with_more = replace(stream, held_out=(class_task("radar", more, PROMPTS),))
    plain, held, zero = (
        spec_of("base_moco", of, tmp_path, **options)
        for of, options in ((stream, {}), (with_more, {}), (with_more, {"zero_shot": True}))
    )
    for spec in (plain, held, zero):
        run_spec(spec)
    then, now, untrained = (Result(spec.folder) for spec in (plain, held, zero))
    whole = now.matrix_of("top1", whole=True)
    assert whole.columns.tolist() == [*now.tasks, "radar"] and not whole.isna().to_numpy().any()
    assert whole.iloc[:, :3].equals(then.matrix_of("top1", whole=True)) and now.metrics == then.metrics
    assert untrained.matrix_of("top1", whole=True).iloc[-1].tolist() == whole.iloc[0].tolist()
    assert now.validation_metrics == then.validation_metrics and now.folder.parent != then.folder.parent
    assert now.outcome["tested_ids"] != then.outcome["tested_ids"]
    assert recorded_stream(now).held_out == with_more.held_out and recorded_stream(then).held_out == ()
    with pytest.raises(UsageError, match="has other held-out sets"):
        recorded_stream(now, stream)
    with pytest.raises(UsageError, match="its protocol cvlm does not test any"):
        spec_of("base_moco", replace(with_more, protocol="cvlm"), tmp_path)
    with pytest.raises(UsageError, match="'paper' of kept needs a name of its own"):
        spec_of("base_moco", replace(stream, held_out=stream.tasks[:1]), tmp_path)


@pytest.mark.parametrize("protocol", ["retention", "retention-agnostic"])
def test_runs_bounds_controls_tables_and_pages(stream: Stream, tmp_path: Path, protocol: str) -> None:
    results = {}
    for kind, options in {
        "run": {},
        "zero": {"zero_shot": True},
        "joint": {"joint": True},
        "fresh": {"control": "random-encoder"},
    }.items():
        spec = spec_of("base_moco", replace(stream, protocol=protocol), tmp_path, **options)
        run_spec(spec)
        results[kind] = Result(spec.folder)
    full = results["run"].matrix_of("top1", whole=True).to_numpy()
    assert full.shape == (4, 3) and not np.isnan(full).any()
    assert (full[0] == results["zero"].matrix_of("top1").to_numpy()).all()
    found = [results["run"].metrics[name] for name in ("Transfer", "Average", "Last")]
    assert found == pytest.approx(by_script(full[1:].tolist()))
    assert [results["zero"].metrics[name] for name in ("Average", "Last")] == pytest.approx([full[0].mean()] * 2)
    assert results["joint"].metrics["Transfer"] is None and results["joint"].metrics["Last"] is not None
    assert results["run"].validation_metrics["Average"] is not None
    table = compare(list(results.values()))
    assert {"Transfer", "Average", "Last"} <= {column.name for column in table.overall} and "±" in str(table)
    assert "(before training)" in write_report(results["run"].folder).read_text(encoding="utf-8")


def test_a_class_whose_clips_differ_in_their_captions_is_refused_in_one_line(tmp_path: Path) -> None:
    rows = [
        {"id": f"clip{n}", "uri": f"{n}.mp4", "label": label, "captions": [text], "split": "test"}
        for n, (label, text) in enumerate([("cat", "a cat"), ("dog", "a dog"), ("cat", "a grey cat")])
    ]
    with pytest.raises(BadData, match=r"test clip 'clip2' .* has other captions than its class"):
        class_texts(write_manifest(rows, tmp_path / "m.parquet", tmp_path))
    rows[2] |= {"captions": ["a cat"], "label": None}
    with pytest.raises(BadData, match=r"'clip2' .* has no label"):
        class_texts(write_manifest(rows, tmp_path / "n.parquet", tmp_path))


def test_few_shots_are_the_same_twice_and_leave_the_other_splits(micro: Stream) -> None:
    manifest = read_manifest(micro.tasks[0].manifest)
    few = read_manifest(class_task("few", manifest, PROMPTS, shots=1).manifest)
    labels = few.labels(few.clips("train"))
    assert len(labels) == len(set(labels)) == len(set(manifest.labels(manifest.clips("train"))))
    assert [len(few.clips(split)) for split in ("validation", "test")] == [4, 6]
    assert few.caption(int(few.clips("test")[0]), 1).startswith("look , the ")
    assert class_task("few", manifest, PROMPTS, shots=1).manifest == few.path
