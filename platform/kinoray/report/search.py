"""`kinoray search`: text to video, or video to video, over a run's feature store.

    found = kinoray.search("runs/bmu_moco-...", "a red square slides")
    found.frame; found.write("hits.html")

The query is embedded by the run's newest model, once for each task where the method's embedding depends on it; the
videos are the features that were committed, never embedded again.
"""

import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image
from torch import Tensor

from kinoray.data.manifest import Manifest, read_manifest
from kinoray.decoding.clip import Clip
from kinoray.errors import UsageError, VideoError
from kinoray.evaluation.gallery import FeatureStore, Hits
from kinoray.execution.feature_store import live_or_committed
from kinoray.execution.open_method import OpenedMethod, open_method
from kinoray.method import BaseMethod
from kinoray.report.examples import data_uri, strip
from kinoray.runs.reopen import label_of
from kinoray.runs.result import Result
from kinoray.system.durable import whole_file
from kinoray.system.folders import expanded
from kinoray.system.text import one_line, printable

if TYPE_CHECKING:
    import pandas as pd

    from kinoray.execution.feature_store import LiveFeatureStore

FRAME_PX = 160
"""Longer side of a frame."""
SHOWN_CAPTIONS = 3


@dataclass(frozen=True)
class Hit:
    """A clip that was found."""

    score: float
    task: str
    id: str
    captions: tuple[str, ...]
    clip: Clip


@dataclass(frozen=True)
class Found:
    """The hits of one query, best first; shows itself in a notebook."""

    run: str
    """What the run is called."""
    query: str
    """The text, or the name of the file."""
    hits: tuple[Hit, ...]
    """Best first."""

    @property
    def frame(self) -> "pd.DataFrame":
        """One row per hit: score, task, id, caption (the first one), file, start, end in seconds."""
        import pandas as pd

        rows = [
            (h.score, h.task, h.id, h.captions[0] if h.captions else "", h.clip.path, h.clip.start, h.clip.end)
            for h in self.hits
        ]
        return pd.DataFrame(rows, columns=["score", "task", "id", "caption", "file", "start", "end"])

    def write(self, path: str | Path) -> Path:
        """Write a contact sheet of the hits as a self-contained page.

        Args:
            path: The file, which must end in .html.

        Returns:
            The file.

        Raises:
            UsageError: It has another ending, or cannot be written.
        """
        path = expanded(path)
        if path.suffix.lower() != ".html":
            raise UsageError(f"A contact sheet of hits is a page: give a name that ends in .html, not {path}.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as draft:
                draft.write_text(self.page(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"Cannot write {path}: {error.strerror or error}. Give another file with --out.") from None
        return path

    def page(self) -> str:
        """The hits as one HTML page without network or script; every text from data is escaped."""
        environment = Environment(
            loader=PackageLoader("kinoray.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        environment.filters["printable"] = printable
        pictures = [data_uri(_strip(hit)) for hit in self.hits]
        return environment.get_template("search.html").render(
            found=self, rows=list(zip(self.hits, pictures, strict=True)), shown=SHOWN_CAPTIONS
        )

    @property
    def _numbered(self) -> list[tuple[int, Hit]]:
        return list(enumerate(self.hits, 1))

    def __repr__(self) -> str:
        lines = [f"{self.run}: {self.query}", *(_words(number, hit) for number, hit in self._numbered)]
        return "\n".join(printable(line) for line in lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><img src='{data_uri(_strip(hit))}'></td><td>{html.escape(printable(_words(n, hit)))}</td></tr>"
            for n, hit in self._numbered
        )
        return f"<div><b>{html.escape(printable(self.query))}</b><table>{rows}</table></div>"


def search(
    run: str | Path | Result,
    text: str | None = None,
    *,
    like: str | Path | None = None,
    k: int = 5,
    split: str = "test",
    method: Any = None,
) -> Found:
    """The k clips of a run's feature store that are nearest to a text, or to a video file.

    Args:
        run: A folder, a name or a `Result`, of one seed; while it is in progress, its tasks learned so far.
        text: What to search for.
        like: A video or picture file instead of a text.
        k: How many clips, >= 1.
        split: Whose features are searched: "test", or another that the run has stored.
        method: As for `open_method`.

    Raises:
        UsageError: In one line, before anything is searched.
        CheckpointCorrupt: A feature file is missing or damaged.
    """
    if (text is None) == (like is None):
        raise UsageError("Give either a text or a video to search with, as in `kinoray search RUN 'a red car'`.")
    if k < 1:
        raise UsageError(f"`k` must be 1 or more, but got {k}.")
    like = None if like is None else expanded(like)
    if like is not None and not like.is_file():
        raise UsageError(f"There is no file {like} to search with.")
    opened = open_method(run, method=method)
    store = live_or_committed(opened.run, opened.stored)
    if text is not None:
        hits = _nearest(opened, store, lambda task: opened.encode_text([text], task), opened.method.per_block, k, split)
    else:
        hits = _nearest_to_clip(opened, store, Path(str(like)), k, split)
    rows = zip(hits.scores[0].tolist(), hits.tasks[0].tolist(), hits.ids[0], strict=True)
    query = text if text is not None else f"like {like}"
    return Found(label_of(opened.run), query, tuple(_hit(opened, *row) for row in rows))


def _nearest(
    opened: OpenedMethod,
    store: "FeatureStore | LiveFeatureStore",
    embed: Callable[[int], Tensor],
    per_block: bool,
    k: int,
    split: str,
) -> Hits:
    """The nearest clips of one query by the method's score. embed: task -> its features (1, ...)."""
    tasks = [facts.task for facts in store.blocks if facts.split == split]
    of_tasks = {task: embed(task) for task in tasks} if per_block else dict.fromkeys(tasks, embed(0))
    if type(opened.method).score is BaseMethod.score:
        return store.search(of_tasks, k, split)
    scores, places = [], []
    device = opened.reader.world.device
    for task in tasks:
        block = store.block(task, split)
        with torch.inference_mode():
            scores.append(opened.method.score(of_tasks[task].to(device), block.features.to(device)).float().cpu()[0])
        places += [(task, name) for name in block.ids.to_pylist()]
    of_all = torch.cat(scores).numpy()
    order = np.argsort(-of_all, kind="stable")[:k]
    chosen = [places[place] for place in order]
    return Hits(of_all[None, order], np.array([[task for task, _ in chosen]]), [[name for _, name in chosen]])


def _nearest_to_clip(
    opened: OpenedMethod, store: "FeatureStore | LiveFeatureStore", file: Path, k: int, split: str
) -> Hits:
    """The nearest clips of a video file. Raises: UsageError where videos have no one vector to compare by."""
    if any(len(facts.shape) != 2 for facts in store.blocks):
        raise UsageError(f"{opened.run.method} keeps several vectors per clip, so only a text can be searched with.")
    try:
        query = opened.encode_video(Clip(file.name, str(file.absolute())))
    except VideoError as error:
        raise UsageError(f"Cannot search with {file}: {one_line(error)}.") from None
    return store.search(query, k, split)


def _hit(opened: OpenedMethod, score: float, task: int, id: str) -> Hit:
    manifest: Manifest = read_manifest(opened.spec.tests[task])
    row = pc.index(manifest.table["id"], id).as_py()
    captions = tuple(manifest.table["captions"][row].as_py() or ())
    return Hit(score, opened.spec.names[task], id, captions, manifest.clip(row))


def _words(number: int, hit: Hit) -> str:
    caption = f": {hit.captions[0]}" if hit.captions else ""
    return f"{number}. {hit.score:.3f}  {hit.task}/{hit.id}{caption}"


def _strip(hit: Hit) -> Image.Image:
    return strip(hit.clip, FRAME_PX)
