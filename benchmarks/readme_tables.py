"""Tables of methods and numbers in README.md and the site, made from `benchmarks/results/`, first lines and the engine.

    python benchmarks/readme_tables.py [--check]

Rewrites what stands between `<!-- made: NAME -->` and `<!-- made until here -->` in them; `--check` changes nothing and
ends with 1 where a table is not what the results say (a test does the same).
"""

import ast
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kinoray.config import Recipe
from kinoray.data.manifest import SPLITS, read_manifest, write_manifest
from kinoray.errors import UsageError
from kinoray.evaluation.protocol import load_protocol, protocol_names
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.entries import EQUAL, PUBLISHED, SHARED, TUNED, filled
from kinoray.papers.statements import COUNTED
from kinoray.report.describe import describe
from kinoray.report.statistics import YES
from kinoray.runs.method_source import method_names
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.streams import Stream, TaskData, family_of, load_stream
from kinoray.streams.rendering import nothing_rendered
from kinoray.system.text import markdown_table, show, words

Kind = tuple[str, ...]
Record = TypeVar("Record")
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TABLE = "bmu-table1"
BEGIN, END = "<!-- made: {} -->", "<!-- made until here -->"
COLUMNS = {SHARED: ("", SHARED), TUNED: (TUNED,)}
"""Tables with one column of measured numbers are at the settings that all rows share."""
HEADLINES = ("R@1", "FR", "HM")
RETENTION = "moving-retention"
SAME_GROUND = {"sprites-retention": "sprites-cvlm"} | {f"shapes-{n}": "shapes-5" for n in (1, 2, 10, "X")}
"""A stream with the tasks or pictures of another."""
EMBEDDED = {"ctvr": "moving-ctvr-10", "video-ssl": "moving-actions", "cssl": "shapes-5", "ucl": "digits-5"}
"""An embedded stream of each protocol but the default one's; of those that a method suits the first is shown."""
SUBJECTS = {"bmu_moco": "bmu", "frame_fusion_moe": "ctvr", "ccsl": "ccsl", "video_moco": "videomoco"}
"""The four papers' own methods, and how the names of their tables and figures begin."""
SINCE = ("orders", "retention")
"""What came after them, and of our own."""


def results_of(name: str, stream: str = "sprites-cvlm") -> dict[str, Any]:
    """A kept reproduction; {} where there is none."""
    file = RESULTS / f"{name}-{stream}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def stem_of(record: Mapping[str, Any]) -> str:
    """How the names of a kept reproduction's files begin."""
    return f"{record['name']}-{re.sub('[^A-Za-z0-9]+', '-', record['stream'])}"


def methods() -> str:
    """Every method: its paper and file by its first line, how it is run, and what was reproduced with it."""
    kept, lines = kept_entries(), [["method", "paper", "file", "command", "reproduced"]]
    for name in sorted(method_names(), key=lambda name: (name != "base_moco", name)):
        file = ROOT / "methods" / f"{name}.py"
        text, first = file.read_text(encoding="utf-8"), _first_line(name)
        paper = re.search(r"\(([^()]*\d{4}[^()]*)\)", first)
        kind = f"[{name}](methods/{file.name})" + (", a rule" if "class Method(Rule)" in text else "")
        command = f"`kinoray run {name}{_stream_option(text)}`"
        lines.append([_title(name), paper[1] if paper else "", kind, command, _reproduced(name, kept)])
    return markdown_table(lines, left=5)


def _first_line(method: str) -> str:
    """The first paragraph of a method's file."""
    tree = ast.parse((ROOT / "methods" / f"{method}.py").read_text(encoding="utf-8"))
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


def _title(method: str) -> str:
    """What a method is called."""
    return re.split(r"[:,(]", _first_line(method))[0].strip()


def kept_entries() -> dict[str, dict[str, Any]]:
    """The kept reproductions, in the catalogue's order."""
    records = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    by_name = {record["name"]: record for record in records if "statements" in record}
    return {name: by_name[name] for name in REPRODUCTIONS if name in by_name}


def _of_paper(prefix: str, kept: Mapping[str, Record]) -> dict[str, Record]:
    """The reproductions of one paper, by what their names begin with."""
    return {name: record for name, record in kept.items() if name.split("-")[0] == prefix}


def _reproduced(method: str, kept: Mapping[str, dict[str, Any]]) -> str:
    """Of a paper's own method, how many of the paper's statements hold, each counted once in a column; of another, the
    first table that has it."""
    if method in SUBJECTS:
        records = _of_paper(SUBJECTS[method], kept).values()
        counts = {column: _answers(records, columns) for column, columns in COLUMNS.items()}
        if not counts[SHARED]:
            return "not measured"
        held = counts[SHARED][YES]
        word = "yes" if held == counts[SHARED].total() else "partly" if held else "none seen"
        parts = [f"of {count.total()} statements {_told(count)}" for count in counts.values() if count]
        return f"{word}: {'; each row at its own best settings, '.join(parts)}"
    has = [name for name in kept if method in _methods_of(REPRODUCTIONS[name])]
    tables = [name for name in has if "-table" in name] or has
    return f"measured in `{tables[0]}`" if tables else "not measured"


def _answers(records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Counter[str]:
    """How often each answer is given in some columns of measured numbers; a sentence counts once, in the first of the
    tables that have it."""
    found: dict[str, str] = {}
    for record in records:
        for statement in record["statements"]:
            if statement["column"] in columns:
                found.setdefault(statement["words"], statement["answer"])
    return Counter(found.values())


def _told(count: Mapping[str, int]) -> str:
    """Counts of answers in words."""
    return ", ".join(f"{number} {COUNTED[answer][number > 1]}" for answer in COUNTED if (number := count[answer]))


def _methods_of(entry: Any) -> set[str]:
    """Methods, rules and learners that an entry runs; an X in a row's is each of the columns' in turn."""
    columns = list((getattr(entry, "across", None) or {"": ""}).values())
    rows = [filled(row.method, column) for row in getattr(entry, "rows", ()) for column in columns]
    names = rows + list(getattr(entry, "sweeps", ()))
    return {part for name in names for part in name.split(":")}


def _stream_option(text: str) -> str:
    """What the command of a method needs where the default stream's protocol or towers do not suit it."""
    if 'tested_by = "' in text:
        return ""
    suits = re.search(r"^    suits = (\(.*\))$", text, re.MULTILINE)
    protocols = ast.literal_eval(suits[1]) if suits else ("cvlm",)
    if "cvlm" in protocols and "backbones = ClipTowers" not in text:
        return ""
    return f" --stream {next(stream for protocol, stream in EMBEDDED.items() if protocol in protocols)}"


def table1() -> str:
    """Published and measured overall columns of the paper's main table, and what of its statements holds."""
    record = results_of(TABLE)
    if not record:
        return "Not measured yet."
    means = _means(record)
    others = [column for column in (TUNED, EQUAL) if any(c == column for _, c, _ in means)]
    shown = [(column, metric) for column in (PUBLISHED, SHARED) for metric in HEADLINES]
    shown += [(column, HEADLINES[-1]) for column in others]
    lines = [["method", *(f"{metric} {column}" for column, metric in shown)]]
    for label in dict.fromkeys(row["method"] for row in record["table"]):
        lines.append([label, *(means.get((label, column, metric), "–") for column, metric in shown)])
    own = "" if TUNED in others else " Settings of its own were searched for no method yet."
    return f"{markdown_table(lines)}\n\n{record['verdict']}{own} {_origin(record)}"


def first_run() -> str:
    """What the first command of the README prints at its end."""
    file = RESULTS / "first-run.txt"
    return f"```\n{file.read_text(encoding='utf-8').rstrip()}\n```" if file.is_file() else ""


def costs() -> str:
    """What every method costs beside its learner."""
    file = RESULTS / "method-costs.md"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else "Not measured yet."


def claims() -> str:
    """Every statement of the papers: what was measured of it, on which stream, and whether that one can judge."""
    kept, blocks = kept_entries(), []
    for prefix in (*SUBJECTS.values(), *SINCE):
        records, entries = _of_paper(prefix, kept), _of_paper(prefix, REPRODUCTIONS)
        blocks.append(f"## {next(iter(entries.values())).place.rpartition(', ')[0]}")
        if absent := {name: entry.stream for name, entry in entries.items() if name not in records}:
            told = [f"`{name}` on `{stream}` ({ground(stream)})" for name, stream in absent.items()]
            blocks.append(f"Not measured: {', '.join(told)}.")
        for name, record in records.items():
            stream = record["stream"]
            picture = f"../benchmarks/results/{stem_of(record)}.png"
            head = ["statement", "verdict", "decided by", "effect", "the paper's", "would be seen"]
            lines = [head, *map(_of_statement, record["statements"])]
            where = f"[{name}]({picture}), on `{stream}` ({ground(stream)}). {record['verdict']}{_proof(record)}"
            blocks.append(f"### {record['title']}\n\n{where}\n\n{markdown_table(lines, left=3)}")
    return "\n\n".join(blocks)


def _proof(record: Mapping[str, Any]) -> str:
    """The command that checks a kept result, where it has a bundle (`proofs.py`)."""
    bundle = f"benchmarks/proofs/{stem_of(record)}.zip"
    if not (ROOT / bundle).is_file():
        return ""
    return f" [Check it](verifying.md#proofs-that-are-kept): `kinoray verify {bundle}`."


def _of_statement(made: Mapping[str, Any]) -> list[str]:
    """Words, verdict, the pair that decides, effect with its interval, the paper's effect, and the smallest that four
    of five would show."""
    column = f" ({made['column']})" if made["column"] else ""
    effect = "–" if made["mean"] is None else f"{made['mean']:+z.1f}"
    effect += "" if made["low"] is None else f" [{made['low']:z.1f}, {made['high']:z.1f}]"
    numbers = ["–" if made[name] is None else f"{made[name]:.1f}" for name in ("claimed", "visible")]
    return [made["words"] + column, made["answer"], made["against"] or "–", effect, *numbers]


def ground(stream: str) -> str:
    """Whether a stream can judge, by its kept table of conditions (`conditions.py`)."""
    family = family_of(stream)
    file = RESULTS / f"conditions-{SAME_GROUND.get(family, family)}.md"
    if not file.is_file():
        return "no conditions shown"
    return "no ground: it missed a condition" if "**no**" in file.read_text(encoding="utf-8") else "conditions met"


def settings() -> str:
    """Each method's settings with their defaults and ranges, and where they differ by stream."""
    blocks = []
    for name in method_names():
        facts = describe(name)
        lines = [["setting", "default", "range", ""]]
        lines += [[f"`{s['name']}`", f"`{s['default']}`", s["range"] or "", s["about"]] for s in facts["settings"]]
        parts = [f"## {name}", facts["about"], *([markdown_table(lines, left=4)] if len(lines) > 1 else [])]
        for told_of, by_stream in (("Set by stream", "recipes"), ("With `--as-released`", "as_released")):
            told = [f"`{stream or 'any'}` {words(of)}" for stream, of in facts[by_stream].items() if of]
            parts += [f"{told_of}: {'; '.join(told)}."] if told else []
        blocks.append("\n\n".join(parts))
    return "\n\n".join(blocks)


@cache
def which_runs() -> str:
    """Every method on a stream of every protocol: measured, runs, or refused, as `resolve` answers."""
    blocks, asked, measured = list[str](), set[str](), _measured()
    with nothing_rendered(), tempfile.TemporaryDirectory() as folder:
        for title, streams in asked_streams(Path(folder)).items():
            asked |= {stream.protocol for stream in streams}
            blocks.append(f"## {title}\n\n{_answers_on(streams, measured)}")
    alike = {name: load_protocol(name).like for name in protocol_names() if name not in asked}
    return "\n\n".join([*blocks, *(f"`{name}` takes what `{like}` takes." for name, like in alike.items() if like)])


def asked_streams(folder: Path) -> dict[str, list[Stream]]:
    """One stream for each protocol and kind of towers, of those that need no data; three stand in for sets that do."""
    rows = [{"id": x, "uri": f"{x}.npy", "captions": ["a clip"], "label": "a clip", "split": x} for x in SPLITS]
    vectors = TaskData("vectors", write_manifest(rows, folder / "manifest.parquet", folder).path)
    frozen = Stream("frozen towers", "cvlm", (vectors,), Recipe(), "features:tiny-clip")
    names = ("moving-conflict", "moving-ctvr-20", RETENTION, "digits-5", "shapes-5", "moving-actions")
    conflict, ctvr, retention, *others = map(load_stream, names)
    told = tuple(task for task in retention.tasks if read_manifest(task.manifest).rows_by("label"))
    classes = replace(retention, name="classes alone", protocol="retention-agnostic", tasks=told, held_out=())
    pretext = replace(others[-1], name="one pretext", protocol="video-ssl")
    return {"With captions": [conflict, frozen, ctvr, retention, classes], "Without captions": [*others, pretext]}


def _answers_on(streams: Sequence[Stream], measured: Mapping[tuple[str, Kind], str]) -> str:
    """The table of some streams, without the methods that none takes, then those, and why."""
    notes, costs, lines, never = dict[str, str](), _cpu_ms(), list[list[str]](), list[str]()
    for method in method_names():
        cells = [_answer(method, stream, measured, notes) for stream in streams]
        if all(cell.startswith("no") for cell in cells):
            never.append(f"`{method}` ({', '.join(dict.fromkeys(cell[4:-1] for cell in cells))})")
        else:
            lines.append([f"`{method}`", *cells, costs.get(_title(method), "–")])
    head = ["method", *(f"{stream.protocol}: `{stream.name}`" for stream in streams), "CPU-ms"]
    why = "\n".join(f"{number}. {line}" for number, line in enumerate(notes.values(), 1))
    return f"{markdown_table([head, *lines], left=len(head) - 1)}\n\nRefused by all: {', '.join(never)}.\n\n{why}"


def _answer(method: str, stream: Stream, measured: Mapping[tuple[str, Kind], str], notes: dict[str, str]) -> str:
    """A cell: where it was measured, how it runs, or the number of the line that refuses it, or of one like it."""
    try:
        run = resolve(RunRequest(method, stream=stream))
    except UsageError as error:
        names = "|".join(map(re.escape, (method, stream.name, f"by {stream.protocol}.")))
        like = re.sub(rf"(?<![\w-])({names})(?![\w-])", "", f"{error}")
        notes.setdefault(like, f"{error}")
        return f"no ({[*notes].index(like) + 1})"
    if run.stream.protocol != stream.protocol:
        return f"as {run.stream.protocol}"
    table = measured.get((method, _kind(stream.name)))
    return f"[measured](../benchmarks/results/{table}.png)" if table else "runs"


def _measured() -> dict[tuple[str, Kind], str]:
    """Method and kind of stream -> the file of the first kept table, or else figure, that has both."""
    found: dict[tuple[str, Kind], str] = {}
    for name, record in sorted(kept_entries().items(), key=lambda item: "-table" not in item[0]):
        kind = _kind(record["stream"])
        if "retention" in kind:  # one column, whatever the towers
            kind = _kind(RETENTION)
        elif ":frozen" in record.get("backbone", ""):
            kind = ("frozen towers",)
        for method in _methods_of(REPRODUCTIONS[name]):
            found.setdefault((method, kind), stem_of(record))
    return found


def _kind(stream: str) -> Kind:
    """The words of a stream's name, without its numbers of tasks and of its world."""
    return tuple(word for word in re.split("[-:,]", stream) if not word.isdecimal() and word != "X")


def _cpu_ms() -> dict[str, str]:
    """Title of a method -> what a step takes on one thread, in milliseconds, where that was measured."""
    costs = json.loads((RESULTS / "method-costs.json").read_text(encoding="utf-8"))
    (learner,) = (row["step_ms"] for row in costs.values() if "step_ms" in row)
    return {title: f"{row.get('step_time_ratio', 1) * learner:.0f}" for title, row in costs.items()}


def statement() -> str:
    """The line of a page about the first statement of the main table."""
    page = (RESULTS / f"{stem_of(results_of(TABLE))}.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("- "))
    return f"> {line[2:]}"


TABLES: dict[str, Callable[[], str]] = {
    "first-run": first_run,
    TABLE: table1,
    "methods": methods,
    "costs": costs,
    "claims": claims,
    "statement": statement,
    "settings": settings,
    "which-runs": which_runs,
}
PAGES = {
    "README.md": ("first-run", TABLE, "methods", "costs"),
    "docs/reading-tables.md": ("statement",),
    "docs/results.md": ("claims",),
    "docs/settings.md": ("settings",),
    "docs/which-runs.md": ("which-runs",),
}
"""Page -> the tables in it."""


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
    seeds, worlds, made = record["seeds"], record.get("worlds", ()), record["measured"]
    where = f"{record['stream']} ({ground(record['stream'])})"
    where += f", splits or worlds {', '.join(worlds)}" if worlds else ""
    of = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return (
        f"Stream {where}, {of}, mean ± half of the 95 % interval over {'these' if worlds else 'seeds'}, "
        f"commit {made['commit']}, {made['date']}, {made['machine']}."
    )


def rewritten(page: str, text: str) -> str:
    """A page with every table made anew."""
    for name in PAGES[page]:
        begin = BEGIN.format(name)
        if text.count(begin) != 1:
            raise SystemExit(f"{page} must have {begin} once.")
        before, rest = text.split(begin)
        _, end, after = rest.partition(END)
        text = f"{before}{begin}\n{TABLES[name]()}\n{end}{after}"
    return text


def main() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        new = rewritten(page, text)
        if "--check" not in sys.argv:
            (ROOT / page).write_text(new, encoding="utf-8")
        elif new != text:
            raise SystemExit(f"{page} is not what benchmarks/results/ says: run python benchmarks/readme_tables.py.")


if __name__ == "__main__":
    main()
