"""Tables in a terminal: arrows, a legend, and columns that are left out rather than numbers that are torn."""

import re
from pathlib import Path

import pytest
from rich.console import Console
from support.run_folders import make_run

from kinoray.cli import printing
from kinoray.evaluation.protocol import load_protocol
from kinoray.report.columns import Column, head, legend
from kinoray.report.tables import Comparison, compare

NUMBER = re.compile(r"-?\d+\.\d( ±\d+\.\d)?|–")


def two_methods(root: Path) -> Comparison:
    for seed in range(3):
        make_run(root, "base_moco", seed)
        make_run(root, "frame_fusion_moe", seed, gain=4.0, overrides={"variant": "local"})
    return compare(sorted(root.iterdir()))


def printed(comparison: Comparison, width: int) -> list[str]:
    """The lines of the table as a terminal of so many cells shows them."""
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(comparison.table(width))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_a_table_fits_its_terminal_and_tears_no_number(tmp_path: Path, width: int) -> None:
    comparison = two_methods(tmp_path)
    lines, shown = printed(comparison, width), comparison.shown(width)
    assert len(lines) == 2 + len(comparison.rows) and all(len(line) <= width for line in lines)
    cells = [dict(zip(comparison.columns, row, strict=True)) for row in comparison.cells()]
    for line, row, of_row in zip(lines[2:], comparison.rows, cells, strict=True):
        numbers = [match.group() for match in NUMBER.finditer(line.removeprefix(row.label))]
        assert numbers == [of_row[column][0] for column in shown]


def test_wider_terminals_show_more_and_the_overall_columns_stay(tmp_path: Path) -> None:
    comparison = two_methods(tmp_path)
    counts = [len(comparison.shown(width)) for width in (80, 100, 120, 160)]
    assert counts == sorted(counts) and counts[0] < counts[-1] == len(comparison.columns)
    assert set(comparison.overall) <= set(comparison.shown(80))
    assert comparison.shown(None) == comparison.columns


def test_single_tasks_go_before_overall_columns_and_one_always_stays(tmp_path: Path) -> None:
    comparison = two_methods(tmp_path)
    assert comparison.shown(1) == comparison.overall[:1]


@pytest.mark.parametrize(
    ("protocol", "name", "shown"),
    [("cvlm", "R@1", "R@1↑"), ("cvlm", "FR", "FR↓"), ("cvlm", "HM", "HM↑"), ("ctvr", "MedR", "MedR↓"),
     ("ctvr", "BWF_own", "BWF_own↓"), ("ucl", "accuracy", "accuracy↑"), ("ucl", "BWF", "BWF↓")],
)  # fmt: skip
def test_a_head_points_to_the_better_end(protocol: str, name: str, shown: str) -> None:
    assert head(Column("Overall", name, f"{name}"), load_protocol(protocol).metrics) == shown


def test_the_legend_explains_what_is_shown_and_nothing_else() -> None:
    def of(*names: str) -> str:
        return legend([Column("Overall", name, f"{name}") for name in names])

    assert of("R@1", "MedR") == ""
    assert of("R@1", "FR", "HM").startswith("FR: ") and "HM: " in of("R@1", "FR", "HM") and "BWF" not in of("FR")
    assert of("BWF_own").startswith("BWF: ")


def test_what_is_left_out_is_told_with_the_way_to_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = two_methods(tmp_path)
    for file in tmp_path.rglob("bad_samples.jsonl"):  # clips that were left out are told in the same words
        file.unlink()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    printing.print_comparison(comparison)
    out = capsys.readouterr().out
    left = len(comparison.columns) - len(comparison.shown(80))
    assert f"{left} of {len(comparison.columns)} columns left out to fit 80 characters" in out
    assert "--wide" in out and "FR: points lost" in out
    printing.print_comparison(comparison, wide=True)
    assert "left out" not in capsys.readouterr().out
