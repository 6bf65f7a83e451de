"""Lists as MMAction2 and SlowFast read them: a line `path label` per video, in a file for each split."""

import json
import re
from pathlib import Path

from kinoray.errors import UsageError
from kinoray.streams.layouts import Listing, in_split, is_picture, is_video, listed_in, of_class, split_of
from kinoray.streams.layouts.tables import text_of

RANK = 7
LINE = re.compile(r"(.*\S)(?:\s*,\s*|\s+)(\d+)")
NUMBERED = re.compile(r"(\d+)[\s,:]+(.*\S)|(.*\S)[\s,:]+(\d+)")
CLASSES = re.compile(r"class|label|categor", re.IGNORECASE)


def read(folder: Path) -> Listing | None:
    """Labels are names where a file of classes is near. Raises: UsageError for two lists of one split."""
    lists = {file: lines for file in listed_in(folder, ".txt", ".csv", ".list") if (lines := _lines(file))}
    if not lists:
        return None
    splits = {file: split_of(str(file.relative_to(folder))) for file in lists}
    for split in {*splits.values()}:
        if len(files := [file.name for file, of in splits.items() if of == split]) > 1:
            raise UsageError(f"{folder} has {' and '.join(files)} for {split or 'all splits'}. Keep one list of each.")
    if None in splits.values() and len(splits) > 1:
        raise UsageError(
            f"{folder} has lists of no split: {', '.join(f.name for f in splits)}. Name them train, val and test."
        )
    numbers = {label for lines in lists.values() for _, label in lines}
    named, names = _classes(folder, {*lists}, numbers)
    rows = {
        str(file.relative_to(folder)): in_split(
            (of_class(path, names.get(label, str(label))) for path, label in lines), splits[file]
        )
        for file, lines in lists.items()
    }
    notes = () if named else ("labels are numbers, and captions with them: no file of class names is near",)
    layout = f"lists of paths and labels ({', '.join(rows)})" + (f" with {named.name}" if named else "")
    return Listing(layout, next(iter(lists)) if len(lists) == 1 else folder, rows, folder, notes)


def _lines(file: Path) -> list[tuple[str, int]]:
    """Path and label of each line; [] where one is of another form: any text may lie in a folder."""
    try:
        lines = [line.strip() for line in text_of(file).splitlines() if line.strip()]
    except UsageError:
        return []
    matches = [LINE.fullmatch(line) for line in lines]
    if not all(match and (is_video(match[1]) or is_picture(match[1])) for match in matches):
        return []
    return [(match[1], int(match[2])) for match in matches if match]


def _classes(folder: Path, lists: set[Path], numbers: set[int]) -> tuple[Path | None, dict[int, str]]:
    """The file of class names and the name of each label. Raises: UsageError where labels are not among its classes."""
    for file in listed_in(folder, ".txt", ".csv", ".json"):
        if file in lists or not CLASSES.search(file.name) or not (names := _names(file, numbers)):
            continue
        if missing := numbers - names.keys():
            raise UsageError(f"A list of clips has class {min(missing)}, for which {file} has no name. Add its line.")
        return file, names
    return None, {}


def _names(file: Path, numbers: set[int]) -> dict[int, str]:
    """Label -> class, of lines that are names in order or have the number beside, or of JSON in either form."""
    try:
        if file.suffix.lower() == ".json":
            said = json.loads(text_of(file))
            pairs = said.items() if isinstance(said, dict) else enumerate(said)
            return {int(n): str(c) for n, c in ((k, v) if str(k).isdecimal() else (v, k) for k, v in pairs)}
        lines = [line.strip() for line in text_of(file).splitlines() if line.strip()]
    except (UsageError, ValueError, TypeError):
        return {}
    found = [NUMBERED.fullmatch(line) for line in lines]
    if all(found):
        return {int(m[1] or m[4]): (m[2] or m[3]).strip("\"'") for m in found if m}
    from_one = min(numbers) > 0 and max(numbers) == len(lines)  # UCF101 and its kin count from 1
    return dict(enumerate(lines, start=int(from_one)))
