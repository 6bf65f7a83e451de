"""The best settings of each row of a table, found with an equal small budget: the table's second column.

Every row gets the same number of trials (`TableEntry.budget`: over the learning rate and its method's main knob, or
over the rate alone), of as many seeds each (`TableEntry.search_seeds`), chosen on the validation splits of a world of
its own; the table then runs on another world with other seeds. `kinoray reproduce NAME --tune` finds and keeps them
here, a file per table and family of streams.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data"


def file_of(name: str, stream: str) -> Path:
    """Where the settings of a table's rows stand, for a stream and its other worlds."""
    return FOLDER / f"{name}-{re.sub(r'[^A-Za-z0-9_-]+', '-', stream.partition(':')[0])}-tuned.json"


def tuned_settings(name: str, stream: str) -> dict[str, Any]:
    """What was kept: `stream`, `seed`, `seeds` and `objective` of the search, and `rows`, label -> settings, score and
    number of trials.

    {} where nothing was searched for the stream yet.
    """
    file = file_of(name, stream)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def settings_by_row(known: Mapping[str, Any]) -> dict[str, Any]:
    """Label -> settings, of what `tuned_settings` gave."""
    return {label: row["settings"] for label, row in known.get("rows", {}).items()}


def write_tuned(name: str, stream: str, facts: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> Path:
    """Keep what was found. rows: label -> settings, validation score, number of trials."""
    file = file_of(name, stream)
    file.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return file
