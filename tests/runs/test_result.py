"""Run folders: what is written is read back, at any moment of a run's life."""

import json
import pkgutil
import types
from pathlib import Path

import numpy as np
import pytest
from support.run_folders import TASKS, make_run, square

import kinoray
from kinoray.errors import UsageError
from kinoray.report.columns import downstream_scores
from kinoray.runs.finding import find_runs, load
from kinoray.runs.result import Result, Results
from kinoray.runs.write_result import write_matrix
from kinoray.system.durable import write_json
from kinoray.system.folders import runs_root
from kinoray.system.text import printable


def test_the_matrix_comes_back_as_it_was_written(tmp_path: Path) -> None:
    matrix = load(make_run(tmp_path, seed=3)).matrix
    assert list(matrix.index) == list(matrix.columns) == TASKS
    assert np.array_equal(matrix.to_numpy(), np.array(square(0.0, 3), dtype=float), equal_nan=True)


@pytest.mark.parametrize(("backbone", "now"), [("tiny", "moving-conflict"), ("tiny-web", "moving-cvlm")])
def test_an_older_run_has_its_stream_by_the_name_that_it_has_now(tmp_path: Path, backbone: str, now: str) -> None:
    source = {"made_from": "moving-cvlm:3", "backbone": backbone, "recipe": {}}
    result = Result(make_run(tmp_path, stream="moving-cvlm:3", facts={"stream_source": source}))
    assert (result.stream, result.run["stream_source"]["made_from"]) == (f"{now}:3", f"{now}:3")


def test_the_frame_has_one_row_per_measured_cell(tmp_path: Path) -> None:
    result = Result(make_run(tmp_path))
    assert list(result.frame) == ["method", "stream", "seed", "after_task", "task", "metric", "value"]
    assert len(result.frame) == 3 * 15  # three recalls, the lower triangle of five tasks
    row = result.frame.query("metric == 'R@5' and after_task == 'zoom' and task == 'plain'")
    assert row["value"].item() == result.matrix_of("R@5").loc["zoom", "plain"]


def test_headline_metrics_follow_from_the_matrix(tmp_path: Path) -> None:
    result = Result(make_run(tmp_path))
    matrix = result.matrix.to_numpy()
    assert result.metrics["R@1"] == pytest.approx(matrix[-1].mean())
    assert result.metrics["FR"] == pytest.approx(sum(matrix[t, t] - matrix[-1, t] for t in range(5)))


def test_a_running_run_shows_what_it_has(tmp_path: Path) -> None:
    result = Result(make_run(tmp_path, state="running"))
    assert (result.state, result.metrics, result.cost) == ("running", {}, {})
    assert result.matrix.notna().to_numpy().sum() == 1
    assert "running" in repr(result) and "running" in result._repr_html_()


def test_a_run_that_has_only_begun_can_be_opened(tmp_path: Path) -> None:
    folder = make_run(tmp_path, state="running")
    for name in ("matrix.parquet", "ranks.parquet", "metrics.jsonl", "bad_samples.jsonl"):
        (folder / name).unlink()
    result = load(folder)
    assert result.matrix.isna().to_numpy().all()
    assert result.losses.empty and result.ranks.empty and result.bad_samples.empty and result.frame.empty


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    result = Result(make_run(tmp_path, state="failed", error="RunFailed: step 3: division by zero"))
    assert "division by zero" in repr(result) and "division by zero" in result._repr_html_()


def test_what_a_notebook_prints_of_a_run_is_short_whatever_there_is_to_say(tmp_path: Path) -> None:
    result = Result(make_run(tmp_path, state="failed", error=f"RunFailed: {'why ' * 200}"))
    result.run["config"]["overrides"] = {f"setting_{number}": number for number in range(50)}
    assert len(repr(result)) < 300 and repr(result).endswith(f"\n{result.folder}")
    assert all(said in repr(result) for said in (result.method, "R@1", "RunFailed: why"))


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    before = len(Result(folder).losses)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"task": 0, "st')
    assert len(Result(folder).losses) == before


def test_a_run_folder_opens_as_its_seeds(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, seed=seed) for seed in (10, 2)]
    results = load(folders[0].parent)
    assert isinstance(results, Results) and [result.seed for result in results] == [2, 10]
    assert set(results.frame["seed"]) == {2, 10}
    assert [result.folder for result in find_runs(tmp_path)] == [folders[1], folders[0]]


def test_a_damaged_run_is_left_out_and_told_and_stops_no_other(tmp_path: Path, caplog, kino) -> None:
    whole = make_run(tmp_path)
    for number, text in enumerate(("{", "{}")):
        make_run(tmp_path / "made").parent.rename(tmp_path / f"damaged-{number}")
        (tmp_path / f"damaged-{number}" / "seed-0" / "run.json").write_text(text)
    assert [result.folder for result in find_runs(tmp_path)] == [whole]
    assert "is damaged (JSONDecodeError: " in caplog.text and "lacks 'method'" in caplog.text
    assert len(downstream_scores([Result(whole)])) == 0
    code, out, err = kino("list", "runs", "seed=0", "--runs", tmp_path)
    assert code == 0 and whole.parent.name in out, err


def test_what_fresh_set_aside_is_no_seed(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.rename(folder.with_name("seed-0.old-1"))
    folder = make_run(tmp_path / "again")
    folder.rename(next(tmp_path.glob("*cvlm*")) / "seed-0")
    assert len(find_runs(tmp_path)) == 1


def test_a_run_folder_with_one_seed_opens_as_that_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    opened = load(folder.parent)
    assert isinstance(opened, Result) and opened.folder == folder


def test_what_is_no_run_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a run: it has no run\.json") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    (folder / "result.json").write_text("{")
    with pytest.raises(UsageError, match=r"result\.json"):
        _ = Result(folder).state


def test_the_label_names_what_differs_from_the_defaults(tmp_path: Path) -> None:
    result = Result(make_run(tmp_path, "bmu_moco", overrides={"variant": "local"}, joint=True))
    assert result.label == "bmu_moco (variant=local) (joint)"


def test_text_from_data_reaches_neither_terminal_nor_page_as_a_command(tmp_path: Path) -> None:
    result = Result(make_run(tmp_path, tasks=["<script>x</script>", "\x1b]0;title\x07", "a", "b", "c"]))
    assert "<script>" not in result._repr_html_() and "\x1b" not in result._repr_html_()
    assert printable("caption \x1b]0;x\n") == r"caption \x1b]0;x\n"


def test_a_broken_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}


def test_none_and_nan_are_no_cells(tmp_path: Path) -> None:
    folder = make_run(tmp_path, tasks=["a", "b"])
    write_matrix(folder, ["a", "b"], {"R@1": [[1.0, None], [float("nan"), 2.0]]})
    assert len(Result(folder).frame) == 2


def test_a_result_draws_itself(tmp_path: Path) -> None:
    figure = Result(make_run(tmp_path)).plot()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_runs_folder_is_option_then_variable_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINORAY_RUNS", raising=False)
    assert runs_root() == Path("runs")
    monkeypatch.setenv("KINORAY_RUNS", "elsewhere")
    assert runs_root() == Path("elsewhere")
    assert runs_root("here") == Path("here")


def test_no_module_takes_the_name_of_a_public_function() -> None:
    # Importing kinoray.load, say, would put the module where the function was.
    modules = {module.name for module in pkgutil.iter_modules(kinoray.__path__)}
    assert not modules & set(kinoray.__all__)
    assert not isinstance(kinoray.compare, types.ModuleType)
