"""`kinoray data vectors`: what frozen towers see of a prepared set, made once, in place of decoding it in each run.

Clips pass through Ray Data, decode -> tower -> store: tasks decode, actors hold the tower, and this process writes what
comes, a file for each clip, whole or not at all, named by the clip's content. So a run that was stopped goes on where
it was. Each clip is a batch by itself on one thread: its vectors are the same bits however many work side by side, and
without Ray.

Where a set has reserved clips, two projections are trained on them for an aligned start. These towers have seen the
games, not the names: reserved clips are drawn by the same hands as those of the tasks, but what they show stands in no
task and in no gallery. So zero-shot is many times chance, and there is something to forget.
"""

# N clips   B pairs of a step   D, E widths of both towers

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from kinoray.backbones import check_backbone, load_backbone, stored, weights_digest
from kinoray.backbones.backbone import Tokens
from kinoray.backbones.lite0_minilm import DIM, NAME, SIZE_PX, WIDTH, Lite0MiniLM, towers_folder
from kinoray.data.augment import normalise
from kinoray.data.manifest import Manifest, read_manifest, write_manifest
from kinoray.datasets.packages import RESERVED_TASK
from kinoray.datasets.prepared import prepared
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.pictures import read_vectors
from kinoray.decoding.read_clip import read_frames
from kinoray.decoding.sampling import Sampling, Timeline
from kinoray.decoding.video import UnreadableStorage
from kinoray.equations import in_batch_nce
from kinoray.errors import RunFailed, UsageError, VideoError
from kinoray.system.durable import remove_drafts, whole_file
from kinoray.system.folders import writing
from kinoray.system.locks import hold
from kinoray.system.progress import counting_bar
from kinoray.system.signals import noted_signals
from kinoray.system.text import one_line

FRAMES = 8
SAMPLING = Sampling("uniform", FRAMES)
FORM = FrameForm(SIZE_PX, "centre", SIZE_PX)
"""The short side resized, the central square cut, as in tests of streams with a centre crop."""
FUSED = "fused"
"""Said in a folder's name: fused norms round otherwise."""
CLIPS = "clips"
BUSY = "These vectors are being made by {holder}. Wait for it."
MAX_TOKENS = 256
"""Of a caption, as sentence-transformers reads this tower."""
CAPTIONS_AT_ONCE = 64
BLOCK_CLIPS = 8
"""Decoded by one Ray task: 10 MB."""
CLIPS_OF_A_DECODER = 4
"""Towers that one decoding task feeds, which takes a quarter of a CPU for each."""
DECODER_CPUS = 0.25
STEPS, BATCH, RATE, TEMPERATURE, SEED = 400, 128, 1e-3, 0.05, 0
"""Of the training of both projections."""

Seen = Generator[dict[str, Any], None, None]
"""Of each clip its row in the manifest, its vectors, and what is wrong with it, if anything."""


@dataclass(frozen=True)
class Made:
    """What a call made of a set."""

    folder: str
    made: int
    """Clips whose vectors it made."""
    known: int
    """Those that were there."""
    captions: int
    aligned_on: int
    """Reserved clips that the projections were aligned on."""


def vectors_manifest(data_set: str, backbone: str = NAME) -> Manifest:
    """The clips of a prepared set as files of vectors, with the same ids, captions, labels, splits and tasks.

    Raises: UsageError with the command that makes them, where they are not there or the set was prepared anew.
    """
    return read_manifest(stored.vectors_folder(backbone, data_set, prepared(data_set).digest) / stored.MANIFEST)


def make_vectors(name: str, backbone: str = NAME, workers: int | None = None, progress: bool = True) -> Made:
    """Make the vectors of a prepared set's frames and captions, and align projections on its reserved clips.

    backbone: `lite0-minilm`, or with the folder of its towers. workers: towers at once on Ray (None: one for each of
    its CPUs), 0: this process alone.
    Raises: UsageError where the set is not prepared, the towers are not there, or another process makes the same;
    RunFailed for a clip that cannot be read; StorageFull. What was made is kept.
    """
    if workers is not None and workers < 0:
        raise UsageError(f"`workers` must be 0 or more, but got {workers}.")
    whole = prepared(name)
    towers, kind = bare_towers(backbone), check_backbone(backbone)
    rule = f"{weights_digest(backbone)} {SAMPLING.key()} {FORM} {towers.mean} {towers.std} {FUSED}"
    folder = stored.pointer(kind, name).parent / f"{kind}-{hashlib.sha256(rule.encode()).hexdigest()[:16]}"
    with writing(f"the vectors of {name} into {folder}"), hold(folder, BUSY), one_thread():
        (folder / CLIPS).mkdir(exist_ok=True)
        remove_drafts(folder)
        files = [_file_of(whole, row) for row in range(whole.table.num_rows)]
        there = {path.name for path in (folder / CLIPS).iterdir()}
        rows = {file: row for row, file in enumerate(files)}
        todo = {row: folder / CLIPS / file for file, row in rows.items() if file not in there}
        with counting_bar(f"Vectors of {name}", len(todo), progress, can_fail=False) as advance:
            _make(whole, backbone, towers, todo, workers, advance)
        captions = _captions(whole)
        made_by = stored.command(name)
        if not _has_captions(folder / stored.CAPTIONS, captions, made_by):
            stored.write_captions(folder / stored.CAPTIONS, captions, caption_vectors(towers, captions))
        manifest = _write_manifest(whole, files, folder)
        aligned_on = align(manifest, folder, made_by)
        stored.point_to(folder, kind, name, whole.digest)
    return Made(str(folder), len(todo), len(set(files)) - len(todo), len(captions), aligned_on)


def bare_towers(backbone: str) -> Lite0MiniLM:
    """Towers without projections, to be read and not trained. Raises: UsageError for a backbone of another kind."""
    towers = load_backbone(backbone, SIZE_PX)
    if not isinstance(towers, Lite0MiniLM):
        raise UsageError(
            f"Vectors of a set are made by --backbone {NAME} or {NAME}:/FOLDER; `kinoray data encode` takes {backbone}."
        )
    towers.vision_projection = towers.text_projection = nn.Identity()
    fuse_norms(towers.vision)
    # This order of a picture's numbers is the faster one on a CPU.
    return towers.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def fuse_norms(network: nn.Module) -> None:
    """Put each normalisation of timm's network into the convolution before it: a third of the time is theirs."""
    modules = list(network.eval().named_modules())
    convolutions = [(name, module) for name, module in modules if isinstance(module, nn.Conv2d)]
    norms = [(name, module) for name, module in modules if isinstance(module, nn.BatchNorm2d)]
    for (conv_name, conv), (norm_name, norm) in zip(convolutions, norms, strict=True):
        network.set_submodule(conv_name, fuse_conv_bn_eval(conv, norm))
        network.set_submodule(norm_name, norm.get_submodule("act"))


def _file_of(manifest: Manifest, row: int) -> str:
    """The name of a clip's file of vectors: by its content, as far as it was probed."""
    clip = manifest.clip(row)
    content = clip.probe.digest if clip.probe else manifest.uri(row)
    key = json.dumps([content, clip.start, clip.end, clip.item])
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"


def _make(
    whole: Manifest,
    backbone: str,
    towers: Lite0MiniLM,
    todo: Mapping[int, Path],
    workers: int | None,
    advance: Callable[[int, int], None],
) -> None:
    """Write the vectors of all clips that lack them, as they come. todo: the file of each, by its row."""
    here = workers == 0 or not todo
    made = _in_this_process(whole, towers, todo) if here else _on_ray(whole, backbone, list(todo), workers)
    with closing(made) as rows:
        for row in rows:
            if row["error"]:
                raise RunFailed(
                    f"Clip {whole.id(row['row'])!r} cannot be read ({row['error']}). The vectors made so far are kept. "
                    "Prepare the data set again, then run the same command."
                )
            with whole_file(todo[row["row"]]) as draft, draft.open("wb") as file:
                np.save(file, np.asarray(row["vectors"], dtype=np.float16), allow_pickle=False)
            advance(1, 0)


def _in_this_process(whole: Manifest, towers: Lite0MiniLM, todo: Iterable[int]) -> Seen:
    for row in todo:
        yield _seen(_decoded({"row": row}, str(whole.path)), towers)


def _on_ray(whole: Manifest, backbone: str, todo: Sequence[int], workers: int | None) -> Seen:
    """In the order in which they are ready."""
    import ray
    import ray.data
    from ray.data import DataContext
    from ray.exceptions import RayError
    from ray.util.annotations import RayDeprecationWarning

    from kinoray.system.ray_session import num_cpus, ray_session

    with noted_signals() as noted, ray_session("data vectors"):
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # it warns that its bars are switched off
        context = DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        at_once = min(workers or max(1, int(num_cpus())), len(todo))
        decoders = -(-at_once // CLIPS_OF_A_DECODER)
        # Both kinds together take as many CPUs as there are towers, so that neither waits for the other's.
        tower_cpus = (at_once - decoders * DECODER_CPUS) / at_once
        # Ray 2.60 has no other way to say that an actor is not restarted, and says that this one will go.
        with DataContext.current(context), warnings.catch_warnings(action="ignore", category=RayDeprecationWarning):
            clips = ray.data.from_items(
                [{"row": row} for row in todo], override_num_blocks=-(-len(todo) // BLOCK_CLIPS)
            )
            decoded = clips.map(
                partial(_decoded, manifest=str(whole.path)),
                num_cpus=DECODER_CPUS,
                compute=ray.data.TaskPoolStrategy(size=decoders),
            )
            seen = decoded.map(
                Tower,  # type: ignore[arg-type]  # a class will do, too
                fn_constructor_args=(f"{NAME}:{towers_folder(backbone.partition(':')[2])}",),  # whatever it has set
                num_cpus=tower_cpus,
                max_restarts=0,  # else it prints that restarts may fail; what was made is kept
                compute=ray.data.ActorPoolStrategy(size=at_once),
            )
            try:
                for row in seen.iter_rows():
                    yield row
                    if noted:
                        return
            except RayError as error:
                raise RunFailed(
                    f"Ray could not make the vectors ({one_line(error)[-300:]}). What was made is kept; run the same "
                    "command again, or with --workers 0."
                ) from None


class Tower:
    """What an actor holds."""

    def __init__(self, backbone: str) -> None:
        torch.set_num_threads(1)
        self.towers = bare_towers(backbone)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A decoded clip -> its vectors."""
        return _seen(row, self.towers)


def _decoded(row: dict[str, Any], manifest: str) -> dict[str, Any]:
    """A clip's frames uint8 (T, H, W, 3), each once: a short clip has fewer than are asked for. Or what is wrong."""
    number = int(row["row"])
    try:
        frames, error = read_frames(read_manifest(manifest).clip(number), _frames, FORM), ""
    except (VideoError, UnreadableStorage) as wrong:
        frames, error = np.zeros((1, 1, 1, 3), np.uint8), str(wrong) or type(wrong).__name__
    return {"row": number, "frames": frames, "error": error}


def _frames(timeline: Timeline) -> np.ndarray:
    return np.unique(SAMPLING.frames(timeline, 0))


def _seen(row: dict[str, Any], towers: Lite0MiniLM) -> dict[str, Any]:
    """A decoded clip -> its vectors, float16 (T, D)."""
    vectors = np.zeros((1, 1), np.float16) if row["error"] else frame_vectors(towers, row["frames"])
    return {"row": row["row"], "vectors": vectors, "error": row["error"]}


@torch.inference_mode()
def frame_vectors(towers: Lite0MiniLM, frames: np.ndarray) -> np.ndarray:
    """Frames uint8 (T, H, W, 3) -> float16 (T, D)."""
    video = torch.from_numpy(np.array(frames)).permute(0, 3, 1, 2)[None]
    return towers.embed_frames(normalise(video, towers.mean, towers.std))[0].half().numpy()


@torch.inference_mode()
def caption_vectors(towers: Lite0MiniLM, captions: Sequence[str]) -> Tensor:
    """A vector of each caption, float16 (N, E). Captions of one length pass the tower together, without padding."""
    ids, mask = towers.tokenize(list(captions), MAX_TOKENS)
    lengths = mask.sum(axis=1)
    rows: list[Tensor] = [torch.empty(0)] * len(captions)
    for length in np.unique(lengths).tolist():
        alike = np.flatnonzero(lengths == length)
        for part in np.split(alike, range(CAPTIONS_AT_ONCE, len(alike), CAPTIONS_AT_ONCE)):
            tokens = Tokens(torch.from_numpy(ids[part, :length]), torch.from_numpy(mask[part, :length]))
            for row, vector in zip(part.tolist(), towers.project_text(tokens).half(), strict=True):
                rows[row] = vector
    return torch.stack(rows)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread within the block: sums do not depend on the machine's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _captions(manifest: Manifest) -> list[str]:
    """All that are said of clips, each once, in order; and the empty one, of clips of which nothing is said."""
    said: Iterable[list[str]] = manifest.table["captions"].to_pylist()
    return sorted({"", *(caption for captions in said for caption in captions)})


def _has_captions(path: Path, captions: Sequence[str], made_by: str) -> bool:
    try:
        return stored.read_captions(path, made_by)[0] == captions
    except UsageError:
        return False


def _write_manifest(whole: Manifest, files: Sequence[str], folder: Path) -> Manifest:
    """The prepared set's rows with files of vectors in place of videos; the folder's name is in their uris, so that
    the manifest's digest says which towers made them."""
    kept = whole.table.select(["id", "captions", "label", "split", "task"]).to_pylist()
    rows = [row | {"uri": f"{folder.name}/{CLIPS}/{file}"} for row, file in zip(kept, files, strict=True)]
    return write_manifest(rows, folder / stored.MANIFEST, folder.parent)


def align(manifest: Manifest, folder: Path, made_by: str) -> int:
    """Train both projections on the reserved clips and write them; where there are none, remove those of before.

    The loss is CLIP's, in both directions, over different captions with a clip of each; the same bits on one thread.

    folder: where the captions' vectors lie, and the projections will. made_by: the command that makes them.
    Returns: clips that were learned from; 0 where fewer than two captions are reserved.
    """
    clips_of = _reserved(manifest)
    path = folder / stored.ALIGNED
    if len(clips_of) < 2:
        path.unlink(missing_ok=True)
        return 0
    rows = sorted({row for clips in clips_of.values() for row in clips})
    place = {row: number for number, row in enumerate(rows)}
    # A projection of the mean over frames is the mean of their projections.
    means = [read_vectors(manifest.clip(row)).mean(axis=0, dtype=np.float32) for row in rows]
    video_ND = torch.from_numpy(np.stack(means))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        towers = stored.load_stored(folder, WIDTH, DIM, made_by)
    ids, _ = towers.tokenize(list(clips_of), 1)
    clips = [np.array([place[row] for row in of_one]) for of_one in clips_of.values()]
    optimizer = torch.optim.Adam(towers.parameters(), lr=RATE)
    draws = np.random.default_rng(SEED)
    for _ in range(STEPS):
        chosen = draws.permutation(len(clips))[:BATCH]
        drawn = torch.from_numpy(np.array([draws.choice(clips[number]) for number in chosen]))
        loss = _contrast(towers, video_ND[drawn], torch.from_numpy(ids[chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    stored.save_projections(towers, path)
    return len(rows)


def _reserved(manifest: Manifest) -> dict[str, list[int]]:
    """Caption -> the reserved clips that it is said of."""
    clips_of: dict[str, list[int]] = {}
    captions = manifest.table["captions"]
    for row in manifest.rows_by("task").get(RESERVED_TASK, np.empty(0, np.int64)).tolist():
        for caption in captions[row].as_py():
            clips_of.setdefault(caption, []).append(row)
    return clips_of


def _contrast(towers: stored.StoredTowers, video_BD: Tensor, ids_B1: Tensor) -> Tensor:
    """Each caption among all clips, and each clip among all captions."""
    z_video = towers.embed_video(video_BD[:, None])
    z_text = towers.embed_text(Tokens(ids_B1, torch.ones_like(ids_B1, dtype=torch.bool)))
    both = in_batch_nce(z_text, z_video, z_video, TEMPERATURE) + in_batch_nce(z_video, z_text, z_text, TEMPERATURE)
    return both / (2 * len(ids_B1))
