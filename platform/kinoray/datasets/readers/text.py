"""What the readers of videos with captions share: from annotations to rows, spans, and the joining of paragraphs."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kinoray.datasets.readers import Annotations, DataSet, attach_videos, stem_of

PAST_END_S = 1e-3
"""An end this far behind the video's is rounding, not an oddity."""
LEAST_SPAN_S = 1.0
"""What a span without length is widened to. Ours."""


def finish(
    data_set: DataSet,
    layout: str,
    rows: list[dict[str, Any]],
    root: Path,
    oddities: Counter[str],
    other_names: Callable[[str], Iterable[str]] = lambda video: (),
) -> Annotations:
    """Find the rows' videos by stem, tidy their captions and count what was odd.

    other_names: stems that the file of a video may go by as well.
    """
    unique: dict[str, dict[str, Any]] = {}
    for row in rows:
        if unique.setdefault(row["id"], row) is not row:
            oddities["clips were listed twice: the first counts"] += 1
        row["captions"] = tidy(row["captions"], oddities)
    clips = list(unique.values())
    extra = attach_videos(clips, root, lambda row: (stem_of(row["video"]), *other_names(row["video"])))
    for split in ("train", "validation", "test"):
        silent = sum(row["split"] == split and not row["captions"] for row in clips)
        if silent:
            oddities[f"{split} clips have no caption in the files that are there"] = silent
    return Annotations(data_set, layout, clips, [f"{count} {text}" for text, count in oddities.items()], extra)


def tidy(captions: Iterable[str], oddities: Counter[str]) -> list[str]:
    """Captions without blanks around them; empty ones are left out."""
    made = []
    for caption in captions:
        text = caption.strip()
        if text != caption:
            oddities["captions had blanks around them: stripped"] += 1
        if text:
            made.append(text)
        else:
            oddities["captions were empty: left out"] += 1
    return made


def paragraph(sentences: Iterable[str]) -> list[str]:
    """All sentences of a video as one caption, joined by single blanks, in the order of the file."""
    text = " ".join(sentence.strip() for sentence in sentences if sentence.strip())
    return [text] if text else []


def span(times: Any, duration_s: float, oddities: Counter[str]) -> dict[str, float]:
    """A sentence's start and end in seconds: in order, inside the video, not empty.

    Start and end in the wrong order are exchanged; an end past the video's is the video's; a span without length is
    widened to `LEAST_SPAN_S` around it.
    """
    start, end = (max(float(time), 0.0) for time in times)
    if start > end:
        oddities["spans had start > end: exchanged"] += 1
        start, end = end, start
    if end > duration_s + PAST_END_S:
        oddities["spans ran past the end of the video: cut there"] += 1
    start, end = min(start, duration_s), min(end, duration_s)
    if start == end:
        oddities[f"spans had no length: widened to {LEAST_SPAN_S:g} s around them"] += 1
        start = max(0.0, min(start - LEAST_SPAN_S / 2, duration_s - LEAST_SPAN_S))
        end = start + LEAST_SPAN_S
    return {"start": start, "end": end}
