"""From plan to tensors: what a rank's loop and its evaluation read.

Clips come from `data.pipeline` (the frame cache, Ray Data, or processes of its own); here uint8 clips become batches on
the device: captions are looked up and tokenised, pixels augmented and normalised with seeds from the plan.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kinoray.backbones.backbone import Backbone, Tokens, TwoTower
from kinoray.backbones.norm import norm_groups
from kinoray.config import Order, Recipe
from kinoray.data.ahead import made_ahead
from kinoray.data.augment import augment_views, normalise, plain_view, replay_views
from kinoray.data.manifest import Manifest, read_manifest
from kinoray.data.memory import AS_WRITTEN, PLAIN
from kinoray.data.pipeline import ClipReader, DecodedClips, DecodedRows, TrainReader, decode_clips, decode_rows
from kinoray.data.plan import (
    StepFacts,
    TaskPlan,
    epoch_of,
    rank_slice,
    row_seed,
    sample_id,
    steps_for,
)
from kinoray.data.presets import find_preset, preset_of, test_form, test_sampling, train_form, train_sampling
from kinoray.data.process_rows import PROCESSES
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.frame_cache import Cache, frame_cache
from kinoray.method import Batch, Needs, Rows
from kinoray.on_device import clips_on_device, on_device, on_pinned
from kinoray.training.distributed import (
    World,
    eval_batch,
    gather,
    gather_objects,
    in_order,
    noise_of_both,
    noise_source,
    own_batches,
)
from kinoray.training.verbs import checked_features

CACHE_BYTES = 256 << 20
"""A test or validation split stays decoded in memory while all of them together fit."""
STEP_SLOT, NORMAL_SLOTS, UNIFORM_SLOTS = -1, (-2, -3), (-4, -5)
"""Whose seeds `row_seed` gives beside the rows': a step, and its noise for current and for replayed rows."""

Batches = Iterator[tuple[StepFacts, Batch]]

log = logging.getLogger(__name__)


def pinned(device: torch.device, rows: DecodedRows) -> DecodedRows:
    """With frames in memory from which the rank's GPU copies by itself."""
    with torch.cuda.device(device):  # a thread begins with the first GPU, and would take memory there
        return replace(rows, video=on_pinned(rows.video))


def own_processes() -> int:
    """That decode where Ray does not: as many as this rank computes with threads, its part of the machine."""
    return max(PROCESSES, torch.get_num_threads())


@dataclass
class BatchReader:
    """One rank's reader of the stream."""

    names: list[str]
    manifests: list[str]
    """Training manifests, one per trained task."""
    recipe: Recipe
    needs: Needs
    seed: int
    num_tasks: int
    world: World
    decode_slots: float
    """This rank's share of the CPUs for Ray Data's decode tasks; 0 decodes in processes of the run's own."""
    towers: Backbone
    report_bad: Callable[[list[dict[str, str]]], None]
    note: Callable[[str], None] = log.warning
    """Tells the user one line, at most once: that the frame cache is out of order."""
    cache: Cache = field(default_factory=frame_cache)
    reference: str = ""
    """The manifest of the reference set, where `Needs.reference` asks for one."""
    order: Order = ""
    """Of the stream's frames, in training and tests; the reference set's stay as they are."""
    planned: tuple[int, ...] = ()
    """Optimizer steps of each task, of a run on a budget; (): those of the recipe."""

    def __post_init__(self) -> None:
        self.preset = preset_of(self.recipe)
        self.replay_views = self.needs.replay.views if self.needs.replay else ()
        replayed = [find_preset(name) for name in self.replay_views if name not in (PLAIN, AS_WRITTEN)]
        size_px, codec = self.recipe.size_px, self.recipe.stored_frames
        self.train_form = train_form(self.preset, size_px, replayed, codec)
        self.test_form = test_form(self.preset, size_px, codec)
        self.cached_splits: dict[tuple[str, str, int, FrameForm], list[DecodedClips]] = {}
        self.cached_bytes = 0
        self.classes_of: dict[int, np.ndarray] = {}
        self.wait_s: dict[str, float] = {}
        """Seconds that training waited for decoded rows, by task."""
        self.prepare_s = 0.0
        """Seconds spent on making batches of them: tokens, augmentation."""
        self.cached = self.decoded = 0
        """Clips that came from the frame cache, and clips that were decoded; of this rank and process."""
        self.noted = False
        # Task by task, so that a later task's labels leave the numbers of the earlier ones alone.
        manifests = [read_manifest(path) for path in self.manifests]
        labels = [manifest.labels(manifest.clips("train")) for manifest in manifests]
        of_tasks = [sorted({label for label in of_task if label is not None}) for of_task in labels]
        distinct = dict.fromkeys(label for of_task in of_tasks for label in of_task)
        self.classes = {label: number for number, label in enumerate(distinct)}

    def steps(self, task: int) -> int:
        """Optimizer steps of a task."""
        return self.planned[task] if self.planned else self.usual_steps(task)

    def usual_steps(self, task: int) -> int:
        """Those of the recipe."""
        samples = len(read_manifest(self.manifests[task]).samples("train")[0])
        return steps_for(self.recipe.epochs, samples, self.recipe.batch_size, self.recipe.max_steps)

    def plan(self, task: int, selections: list[list[int]]) -> TaskPlan:
        """The task's plan: which samples, replayed ones included, every step sees."""
        tasks, replay = range(task + 1), self.needs.replay
        balanced = bool(self.classes) and replay is not None and replay.policy == "class_balanced"
        return TaskPlan(
            seed=self.seed,
            task=task,
            num_tasks=self.num_tasks,
            samples=tuple(len(read_manifest(self.manifests[t]).samples("train")[0]) for t in tasks),
            batch_size=self.recipe.batch_size,
            steps=tuple(self.steps(t) for t in tasks),
            replay=replay,
            selections=tuple(tuple(s) for s in selections[:task]),
            labels=tuple(self.class_numbers(t) for t in tasks) if balanced else None,  # they travel to every decoder
            row_multiple=norm_groups(self.towers),
        )

    @contextmanager
    def batches(self, plan: TaskPlan, start: int) -> Iterator[Batches]:
        """The batches of a task's remaining steps; `extra_rows` adds what else a step needs."""
        reader = TrainReader(
            plan=plan,
            manifests=tuple(self.manifests[: plan.task + 1]),
            names=tuple(self.names[: plan.task + 1]),
            sampling=train_sampling(self.recipe),
            form=self.train_form,
            rank=self.world.rank,
            world=self.world.size,
            start_step=start,
            cache=self.cache,
            order=self.order,
        )
        rows = decode_rows(reader, self.decode_slots, own_processes())
        if self.world.device.type == "cuda":
            rows = made_ahead(rows, partial(pinned, self.world.device))
        with closing(rows):
            yield self._timed(rows, plan)

    def _timed(self, decoded: Iterator[DecodedRows], plan: TaskPlan) -> Batches:
        """Batches, with the time spent on waiting for data and on preparing it."""
        name = self.names[plan.task]
        while True:
            started = time.monotonic()
            rows = next(decoded, None)
            arrived = time.monotonic()
            self.wait_s[name] = self.wait_s.get(name, 0.0) + arrived - started
            if rows is None:
                return
            self._count(rows, len(rows.sample))
            self.report_bad(rows.bad)
            batch = self._batch(plan, rows)
            self.prepare_s += time.monotonic() - arrived
            yield batch.step, batch

    def _count(self, decoded: DecodedRows | DecodedClips, clips: int) -> None:
        """Count where clips came from, and say once if the cache is out of order."""
        self.cached += decoded.cached
        self.decoded += clips - decoded.cached
        if decoded.trouble and not self.noted:
            self.noted = True
            self.note(decoded.trouble)

    def _facts(self, plan: TaskPlan, step: int) -> StepFacts:
        steps = plan.steps[plan.task]
        last = step + 1 == steps or epoch_of(plan, step + 1) > epoch_of(plan, step)
        epoch = epoch_of(plan, step * self.usual_steps(plan.task) // steps)
        return StepFacts(step, epoch, last, row_seed(plan, step, STEP_SLOT))

    def _batch(self, plan: TaskPlan, rows: DecodedRows) -> Batch:
        """One step's rows on the device."""
        count, world = rows.num_current, self.world
        sizes = plan.batch_size, (len(rows.sample) - count) * world.size
        own, again = (rank_slice(size, world.rank, world.size) for size in sizes)

        def noise(purposes: tuple[int, int], draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
            places = zip(purposes, sizes, (own, again), strict=True)
            seeded = [(row_seed(plan, rows.step, purpose), size, part) for purpose, size, part in places]
            return noise_of_both(*(noise_source(*source, world.device, draw) for source in seeded))

        replay = self._rows(rows, slice(count, None), replayed=True) if sizes[1] else None
        return Batch(
            **vars(self._rows(rows, slice(0, count))),
            replay=replay,
            global_size=sizes[0],
            replay_size=sizes[1],
            order=torch.arange(own.start, own.stop, device=world.device),
            gather=partial(gather, world=world),
            normal=noise(NORMAL_SLOTS, torch.randn),
            uniform=noise(UNIFORM_SLOTS, torch.rand),
            step=self._facts(plan, rows.step),
        )

    def _rows(self, rows: DecodedRows, part: slice, replayed: bool = False) -> Rows:
        """Some of a step's rows."""
        tasks, samples = rows.task[part], rows.sample[part]
        captions, labels = [""] * len(tasks), np.full(len(tasks), -1)
        for task in np.unique(tasks).tolist():
            manifest = read_manifest(self.manifests[task])
            clip_rows, numbers = manifest.samples("train")
            for place in np.flatnonzero(tasks == task).tolist():
                sample = samples[place]
                captions[place] = manifest.caption(int(clip_rows[sample]), int(numbers[sample]))
                labels[place] = self.class_numbers(task)[sample] if self.classes else -1
        video, seeds, sizes = rows.video[part], rows.seeds[part], rows.sizes[part]
        if replayed and self.replay_views:
            views = self.views_again(video, seeds, rows.written[part], sizes)
        else:
            views = self.views(video, seeds, self.needs.views, sizes)
        plain = self.needs.plain == "all" or (self.needs.plain == "replay" and replayed)
        return Rows(
            views=views,
            plain=self.views(video, seeds, 0, sizes)[0] if plain else None,
            text=self.tokens(captions),
            ids=on_device(sample_id(tasks, samples), self.world.device),
            labels=on_device(labels, self.world.device),
            slots=on_device(rows.memory_slots[part], self.world.device),
        )

    def test_view(self, video: np.ndarray | Tensor) -> Tensor:
        """uint8 clips (B, T, size, size, 3) in `test_form` as a test sees them, (B, T, 3, size, size) float; vectors of
        frames (B, T, D) as they are."""
        clips = clips_on_device(video, self.world.device)
        if clips.is_floating_point():
            return clips
        return normalise(clips, *self.pixels)

    @property
    def pixels(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Mean and standard deviation by which a test's pixels are normalised."""
        return self.preset.mean or self.towers.mean, self.preset.std or self.towers.std

    def views(self, video: np.ndarray | Tensor, seeds: np.ndarray, count: int, sizes: np.ndarray) -> tuple[Tensor, ...]:
        """`count` augmented views of uint8 clips in `train_form`, as float; 0 gives one plain view.

        Args:
            video: (B, T, H, W, 3); vectors of frames (B, T, D) are all views of themselves.
            seeds: What the clips' views are drawn from, (B,).
            count: How many views.
            sizes: Height and width of each clip's own frames, (B, 2).

        Returns:
            Each view (B, T, 3, size, size).
        """
        clips = clips_on_device(video, self.world.device)
        if clips.is_floating_point():
            return (clips,) * max(1, count)
        side, mean, std = self.recipe.size_px, self.towers.mean, self.towers.std
        if count == 0:
            return (plain_view(clips, self.preset, side, mean, std, sizes),)
        return augment_views(clips, seeds, self.preset, count, side, mean, std, sizes)

    def views_again(
        self, video: np.ndarray | Tensor, seeds: np.ndarray, written: np.ndarray, sizes: np.ndarray
    ) -> tuple[Tensor, ...]:
        """As `views`, one for each entry of `Replay.views`."""
        clips = clips_on_device(video, self.world.device)
        if clips.is_floating_point():
            return (clips,) * len(self.replay_views)
        side, mean, std = self.recipe.size_px, self.towers.mean, self.towers.std
        return replay_views(clips, seeds, written, self.replay_views, self.preset, side, mean, std, sizes)

    def tokens(self, captions: list[str]) -> Tokens:
        """Captions as tokens on the device; None where the backbone reads none, which `Rows.text` says."""
        if not isinstance(self.towers, TwoTower):
            return None  # type: ignore[return-value]
        ids, mask = self.towers.tokenize(captions, self.recipe.max_tokens)
        return Tokens(on_device(ids, self.world.device), on_device(mask, self.world.device))

    def clips(
        self,
        name: str,
        manifest: Manifest,
        split: str,
        frames: int,
        only: np.ndarray | None = None,
        form: FrameForm | None = None,
    ) -> Iterator[tuple[int, DecodedClips]]:
        """This rank's batches of a split, or of some rows of it: number of the first row, and those that can be read.

        form: `train_form` for views that are drawn; without one `test_form`.
        """
        form = form or self.test_form
        key = (str(manifest.path), split, frames, form)
        rows = manifest.clips(split) if only is None else only
        batch = eval_batch(frames, self.recipe.size_px)
        cuts = own_batches(len(rows), batch, self.world)
        if key in self.cached_splits:
            yield from zip([cut.start for cut in cuts], self.cached_splits[key], strict=True)
            return
        own = np.concatenate([rows[cut.start : cut.stop] for cut in cuts]) if cuts else rows[:0]
        reader = ClipReader(
            manifest=str(manifest.path),
            rows=tuple(own.tolist()),
            sampling=test_sampling(self.recipe, frames),
            form=form,
            batch=batch,
            cache=self.cache,
            world=self.world.size,
            order=self.order,
        )
        decoded = decode_clips(reader, self.decode_slots, own_processes())
        batches: list[DecodedClips] = []
        left_bytes = CACHE_BYTES - self.cached_bytes if split != "train" else -1
        with closing(decoded):
            for cut, clips in zip(cuts, decoded, strict=True):
                self._count(clips, len(clips.rows))
                self.report_bad([b | {"task": name} for b in clips.bad])
                yield cut.start, clips
                left_bytes -= clips.video.nbytes
                if left_bytes >= 0:  # a copy of its own, where it lies in a block that Ray Data waits to have back
                    batches.append(replace(clips, video=np.require(clips.video, requirements="O")))
                else:
                    batches.clear()
        if left_bytes >= 0:
            self.cached_splits[key] = batches
            self.cached_bytes += sum(clips.video.nbytes for clips in batches)

    def embed_clips(
        self, name: str, manifest: Manifest, split: str, embed: Callable[[Tensor], Tensor]
    ) -> tuple[np.ndarray, Tensor]:
        """(readable row numbers (V,), their features (V, ...) on the CPU), the same on all ranks."""
        own_rows, own_features = {}, {}
        for start, clips in self.clips(name, manifest, split, self.recipe.test_frames):
            if len(clips.rows):
                own_rows[start] = torch.from_numpy(clips.rows)
                view = self.test_view(clips.video)
                own_features[start] = checked_features(embed(view), len(view), "embed_video").float().cpu()
        if not any(gather_objects(bool(own_rows), self.world)):
            return np.empty(0, dtype=np.int64), torch.empty(0)
        return in_order(own_rows, self.world).numpy(), in_order(own_features, self.world)

    def class_numbers(self, task: int) -> np.ndarray:
        """Class number of every training sample of a task, -1 where it has no label."""
        if task in self.classes_of:
            return self.classes_of[task]
        manifest = read_manifest(self.manifests[task])
        labels = manifest.labels(manifest.samples("train")[0])
        self.classes_of[task] = np.array([self.classes.get(label or "", -1) for label in labels], dtype=np.int64)
        return self.classes_of[task]


StoredRows = Callable[[int], Tensor]
"""Step -> what `Needs.stored` asks for of earlier tasks, (R, ...)."""
NAME = "reference"


@contextmanager
def with_extra_rows(
    batches: AbstractContextManager[Batches], reader: BatchReader, plan: TaskPlan, start: int, stored: StoredRows | None
) -> Iterator[Batches]:
    """The batches of a task's remaining steps with what `Needs.stored` and `Needs.reference` ask for."""
    with batches as plain, _reference(reader, plan, start) as reference:
        yield _filled(plain, reader, stored, reference)


def _filled(
    batches: Batches, reader: BatchReader, stored: StoredRows | None, reference: Iterator[Rows] | None
) -> Batches:
    for facts, batch in batches:
        if stored is not None:
            batch.stored = on_device(stored(facts.step), reader.world.device)
        if reference is not None:
            batch.reference = next(reference)
        yield facts, batch


@contextmanager
def _reference(reader: BatchReader, plan: TaskPlan, start: int) -> Iterator[Iterator[Rows] | None]:
    """The reference rows of each remaining step: the set in an order of its own, on and on through all tasks.

    They are a plan of one task, so they are read as the run's own rows are, and are the same after a resume.
    """
    needed = reader.needs.reference
    if needed is None:
        yield None
        return
    before = sum(plan.steps[: plan.task])
    manifest = read_manifest(reader.reference)
    rows_of_set = TaskPlan(
        seed=reader.seed,
        task=0,
        num_tasks=1,
        samples=(len(manifest.samples("train")[0]),),
        batch_size=needed.rows or plan.batch_size,
        steps=(before + plan.steps[plan.task],),
    )
    of_set = TrainReader(
        plan=rows_of_set,
        manifests=(reader.reference,),
        names=(NAME,),
        sampling=test_sampling(reader.recipe, reader.recipe.frames),
        form=reader.test_form,
        rank=reader.world.rank,
        world=reader.world.size,
        start_step=before + start,
        cache=reader.cache,
    )
    decoded = decode_rows(of_set, reader.decode_slots, own_processes())
    with closing(decoded):
        yield (_rows(reader, rows) for rows in decoded)


def _rows(reader: BatchReader, decoded: DecodedRows) -> Rows:
    """Reference rows on the device: one view without augmentation; they belong to no task."""
    reader.report_bad(decoded.bad)
    manifest = read_manifest(reader.reference)
    clips, numbers = manifest.samples("train")
    captions = [manifest.caption(int(clips[s]), int(numbers[s])) for s in decoded.sample.tolist()]
    nowhere = torch.full((len(captions),), -1, device=reader.world.device)
    return Rows(
        views=(reader.test_view(decoded.video),),
        plain=None,
        text=reader.tokens(captions),
        ids=nowhere,
        labels=nowhere,
        slots=nowhere,
    )
