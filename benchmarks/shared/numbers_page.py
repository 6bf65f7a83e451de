"""The end of a benchmark that measures one thing: its numbers as a table, kept where that is asked for, and as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path


def show_numbers(title: str, numbers: Mapping[str, float], file: Path | None, as_json: bool) -> None:
    """Print a table, title first; write it to a file where one is given; print the numbers as one object last."""
    rows = [f"| {label} | {value:,.4g} |" for label, value in numbers.items()]
    page = "\n".join([f"| {title} | |", "| --- | ---: |", *rows, ""])
    print(page)
    if file is not None:
        file.write_text(page, encoding="utf-8")
    if as_json:
        print(json.dumps({label: round(value, 3) for label, value in numbers.items()}))
