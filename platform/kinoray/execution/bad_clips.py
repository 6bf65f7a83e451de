"""Unreadable clips: noted once each, and too many of them stop the run."""

from collections.abc import Callable
from pathlib import Path

from kinoray.errors import BadData

Record = dict[str, str]


class BadClips:
    """Passes records of unreadable clips on, each once for this rank."""

    def __init__(self, run_folder: Path, clips: int, limit: float, report: Callable[[list[Record]], int]) -> None:
        """clips: of the whole stream; limit: the share of them that may be bad; report: how many all ranks met."""
        self.listed = run_folder / "bad_samples.jsonl"
        self.clips, self.limit, self.report_all = clips, limit, report
        self.known: set[tuple[str, str]] = set()

    def report(self, records: list[Record]) -> None:
        """Note records of unreadable clips. Raises: BadData where they are too many."""
        new = [record for record in records if (record["task"], record["id"]) not in self.known]
        if not new:
            return
        self.known |= {(record["task"], record["id"]) for record in new}
        count = self.report_all(new)
        if count > self.limit * self.clips:
            raise BadData(
                f"{count} of {self.clips} clips are unreadable (limit {self.limit:.0%}), the last {new[0]['uri']}: "
                f"{new[0]['message']}. All are listed in {self.listed}; repair or remove them, or allow more with "
                "--set max_bad_fraction=..."
            )
