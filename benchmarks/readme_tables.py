"""The README's tables of methods and numbers, made from `benchmarks/results/` and the methods' own first lines.

    python benchmarks/readme_tables.py [--check]

Rewrites what stands between `<!-- made: NAME -->` and `<!-- made until here -->` in README.md; `--check` changes
nothing and ends with 1 where a table is not what the results say (a test does the same).
"""

import ast
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinoray.display.markup import markdown_table
from kinoray.display.text import show
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.entries import PUBLISHED, SHARED, TUNED, TableEntry

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TABLE = "bmu-table1"
BEGIN, END = "<!-- made: {} -->", "<!-- made until here -->"
HEADLINES = ("R@1", "FR", "HM")
EMBEDDED = {"ctvr": "moving-ctvr-10", "cssl": "shapes-5", "ucl": "digits-5"}
"""An embedded stream of each protocol but the default one's."""


def results_of(name: str, stream: str = "moving-cvlm-9") -> dict[str, Any]:
    """A kept reproduction; {} where there is none."""
    file = RESULTS / f"{name}-{stream}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def methods() -> str:
    """Every method: its paper and file by its first line, how it is run, what was measured on the embedded stream."""
    record, entry = results_of(TABLE), REPRODUCTIONS[TABLE]
    assert isinstance(entry, TableEntry)
    labels = {row.method: row.label for row in entry.rows if not (row.settings or row.is_bound)}
    measured = _means(record)
    lines = [["method", "paper", "file", "command", "HM on the embedded stream"]]
    for file in sorted((ROOT / "methods").glob("[a-z]*.py"), key=lambda path: (path.stem != "base_moco", path.stem)):
        text = file.read_text(encoding="utf-8")
        first = " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())
        title, paper = re.split(r"[:,(]", first)[0].strip(), re.search(r"\(([^()]*\d{4}[^()]*)\)", first)
        is_rule = "class Method(Rule)" in text
        label = labels.get(f"{file.stem}:base_moco" if is_rule else file.stem)
        value = measured.get((label, SHARED, "HM"))
        kind = f"[{file.stem}](methods/{file.name})" + (", a rule" if is_rule else "")
        command = f"`kinoray run {file.stem}{_stream_option(text)}`"
        lines.append([title, paper[1] if paper else "", kind, command, value or "not run"])
    return markdown_table(lines, left=4)


def _stream_option(text: str) -> str:
    """What the command of a method needs where the default stream is of a protocol that it does not suit."""
    suits = re.search(r"^    suits = \(\"([a-z-]+)\"(.*)\)$", text, re.MULTILINE)
    if suits is None or "cvlm" in suits[0]:
        return ""
    return f" --stream {EMBEDDED[suits[1]]}"


def table1() -> str:
    """Published and measured overall columns of the paper's main table, and what of its statements holds."""
    record = results_of(TABLE)
    if not record:
        return "Not measured yet."
    means = _means(record)
    columns = [SHARED, *([TUNED] if any(c == TUNED for _, c, _ in means) else [])]
    head = ["method", *(f"{metric} {PUBLISHED}" for metric in HEADLINES)]
    head += [f"{metric} {column}" if len(columns) > 1 else metric for column in columns for metric in HEADLINES]
    lines = [head]
    for label in dict.fromkeys(row["method"] for row in record["table"]):
        known = [means.get((label, column, metric), "–") for column in (PUBLISHED, *columns) for metric in HEADLINES]
        lines.append([label, *known])
    own = "" if len(columns) > 1 else " Settings of its own were searched for no method yet."
    return f"{markdown_table(lines)}\n\n{record['verdict']}{own} {_origin(record)}"


def first_run() -> str:
    """What the first command of the README prints at its end."""
    file = RESULTS / "first-run.txt"
    return f"```\n{file.read_text(encoding='utf-8').rstrip()}\n```" if file.is_file() else ""


def costs() -> str:
    """What every method costs beside its learner."""
    file = RESULTS / "method-costs.md"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else "Not measured yet."


TABLES = {"first-run": first_run, TABLE: table1, "methods": methods, "costs": costs}


def _means(record: Mapping[str, Any]) -> dict[tuple[str, str, str], str]:
    """(label, settings, column) -> mean as tables show it, overall ones with half of their interval."""
    cells = {}
    for row in record.get("table", ()):
        text = show(row["mean"], 2 if row["settings"] == PUBLISHED else 1)
        if row["high"] is not None:
            text += f" ±{row['high'] - row['mean']:.1f}"
        cells[row["method"], row["settings"], row["column"]] = text
    return cells


def _origin(record: Mapping[str, Any]) -> str:
    """Where the numbers come from."""
    seeds = record["seeds"]
    made = record["measured"]
    return (
        f"Stream {record['stream']}, seeds {seeds[0]} to {seeds[-1]}, mean ± half of the 95 % interval, commit "
        f"{made['commit']}, {made['date']}, {made['machine']}."
    )


def rewritten(text: str) -> str:
    """The README with every table made anew."""
    for name, table in TABLES.items():
        begin = BEGIN.format(name)
        if text.count(begin) != 1:
            raise SystemExit(f"README.md must have {begin} once.")
        before, rest = text.split(begin)
        _, end, after = rest.partition(END)
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text


def main() -> None:
    file = ROOT / "README.md"
    text = file.read_text(encoding="utf-8")
    new = rewritten(text)
    if "--check" not in sys.argv:
        file.write_text(new, encoding="utf-8")
    elif new != text:
        raise SystemExit("README.md is not what benchmarks/results/ says: run python benchmarks/readme_tables.py.")


if __name__ == "__main__":
    main()
