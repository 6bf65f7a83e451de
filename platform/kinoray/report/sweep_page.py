"""One self-contained HTML page about a sweep: no network, no script, every text from data escaped."""

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kinoray.sweeps.result import SweepResult
from kinoray.system.plots import svg
from kinoray.system.text import printable, show

MOST_ROWS = 500
"""Trials in the table; the study has them all."""


def write_sweep_report(folder: str | Path) -> Path:
    """Write report.html into a sweep's folder. Raises: UsageError if the folder is no sweep."""
    sweep = SweepResult(folder)
    environment = Environment(
        loader=PackageLoader("kinoray.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"show": show, "printable": printable, "cell": _cell}
    file = sweep.folder / "report.html"
    file.write_text(environment.get_template("sweep.html").render(**_content(sweep)), encoding="utf-8")
    return file


def _content(sweep: SweepResult) -> dict[str, Any]:
    best, frame = sweep.best, sweep.frame
    shown = frame.head(MOST_ROWS)
    return {
        "sweep": sweep,
        "states": {name: count for name, count in sweep.states.items() if count},
        "best": best,
        "tests": best.metrics if best else {},
        "headlines": sweep.protocol.headlines,
        "figures": [(title, Markup(svg(figure))) for title, figure in sweep.figures().items()],
        "columns": list(shown.columns),
        "rows": [[_cell(value) for value in row] for row in shown.itertuples(index=False)],
        "left_out": len(frame) - len(shown),
        "record": json.dumps(without_password(sweep.record), indent=1, ensure_ascii=False),
    }


def without_password(record: dict[str, Any]) -> dict[str, Any]:
    """A sweep's record as it may stand on a page that is passed on."""
    url = record.get("storage")
    return record | {"storage": url and re.sub(r"//([^/@:]*):[^/@]*@", r"//\1:***@", url)}


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else printable(value)
