"""What `run` would do and what it would take, told before anything starts."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil
import torch
from torch import Tensor

from kinoray.backbones.backbone import Backbone, Tokens, TwoTower
from kinoray.config import plain
from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.errors import UsageError
from kinoray.runs.cautions import cautions, data_facts
from kinoray.runs.record import in_autocast
from kinoray.runs.request import RunRequest, request_of, shows_options
from kinoray.runs.resolve import Resolved, each_run, needs_of
from kinoray.runs.run_spec import grown
from kinoray.streams import TaskData
from kinoray.streams.orders import in_order
from kinoray.streams.rendering import nothing_rendered
from kinoray.system.folders import home_of
from kinoray.training.optim import names_and_params


@shows_options(RunRequest)
def dry_run(method: Any, **options: Any) -> dict[str, Any]:
    """What `run` would do; starts and renders nothing.

    Args:
        method: As of `run`.
        **options: Fields of `RunRequest`.

    Returns:
        Resolved settings, steps, folder, free disk and, as `memory_of` says it, memory.

    Raises:
        UsageError: As `run`, before anything starts.
    """
    return plan_of(request_of(RunRequest, method, options), with_memory=True)


def plan_of(request: RunRequest, with_memory: bool = False) -> dict[str, Any]:
    """What `dry_run` says of a request; the backbone is loaded for its memory alone. Raises: UsageError."""
    with nothing_rendered():
        runs = each_run(request)
        first = runs[0]
        disk = next(p for p in [first.folder, *first.folder.parents] if p.exists())
        return {
            "method": first.method.name,
            "stream": first.stream.name,
            "backbone": str(first.backbone),
            "seeds": request.all_seeds,
            "orders": {run.stream.order: [task.name for task in run.stream.tasks] for run in runs},
            "folder": str(home_of(first.folder)),
            "tasks": [task.name for task in first.stream.tasks],
            "clips": {task.name: _clips(task) for task in first.stream.tasks},
            "steps": first.steps,
            "num_workers": request.num_workers,
            "settings": first.settings,
            "recipe": plain(first.recipe),
            "overrides": first.overrides,
            "notes": list(cautions(data_facts(in_order(first.stream, 0)))),
            "free_disk_bytes": shutil.disk_usage(disk).free,
            **({"memory_gb": _memory(first, request.num_workers or 1)} if with_memory else {}),
        }


def _memory(run: Resolved, ranks: int) -> dict[str, Any]:
    """What a rank will hold, or why that cannot be told here."""
    try:
        return memory_of(run, ranks)
    except UsageError as error:
        return {"unknown": str(error)}


def _clips(task: TaskData) -> dict[str, int]:
    """How many clips of a task each split has."""
    return {split: len(read_manifest(task.manifest).clips(split)) for split in SPLITS}


def memory_of(run: Resolved, ranks: int) -> dict[str, Any]:
    """What a rank holds in its last task, in GB by part, and whether the GPU here, or else this machine, has as much.

    `activations`, what the backward pass needs, are those of one clip and its caption, which pass through the towers
    here, times the clips that a step learns from; none are counted where clips are stored vectors. What a loss keeps
    beside, and what kernels take while they work, comes on top. Where it does not fit, `checkpointed` is the sum with
    activation checkpointing, if towers have blocks for it.

    Args:
        run: As it will start.
        ranks: That share a step's clips.

    Raises:
        UsageError: The backbone's weights are not here.
    """
    gpu = torch.cuda.is_available()
    here = torch.cuda.mem_get_info()[1] if gpu else psutil.virtual_memory().total
    parts = _parts(run, ranks, gpu)
    needed = {**parts, "all": sum(parts.values()), "here": here}
    if needed["all"] > here and not run.recipe.checkpoint_activations:
        with suppress(UsageError):
            less = replace(run, recipe=replace(run.recipe, checkpoint_activations=True))
            needed["checkpointed"] = sum(_parts(less, ranks, gpu).values())
    return {name: float(f"{size / 1e9:.3g}") for name, size in needed.items()} | {"fits": needed["all"] <= here}


def _parts(run: Resolved, ranks: int, gpu: bool) -> dict[str, int]:
    """Bytes a rank. Raises: UsageError."""
    method = grown(replace(run, joint=False, zero_shot=False))
    weights = _bytes(method.state_dict().values())
    if run.zero_shot:
        return {"weights": weights}
    gradients = _bytes(names_and_params(method.param_groups()).values())
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": gradients * (1 if run.recipe.optimizer == "sgd" else 2),
        "activations": clips_of_a_step(run) * kept_of_a_clip(method.encoder(), run, gpu) // ranks,
    }


def clips_of_a_step(run: Resolved) -> int:
    """How many clips a step learns from on all ranks: each view of a row is one."""
    needs, rows = needs_of(run), run.recipe.batch_size
    return needs.views * (rows + (needs.replay.rows or rows if needs.replay else 0))


def kept_of_a_clip(backbone: Backbone, run: Resolved, gpu: bool) -> int:
    """Bytes that autograd keeps of one clip and its caption for the backward pass, weights aside."""
    if backbone.reads_vectors:
        return 0
    recipe = run.recipe
    weights = {value.untyped_storage().data_ptr() for value in backbone.state_dict().values()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no other takes its place
        return value

    clip = torch.zeros(1, recipe.frames, 3, recipe.size_px, recipe.size_px)
    backbone.eval()  # norms over a batch want more than one clip, and keep as much either way
    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        passed = [backbone.embed_video(clip)]
        if isinstance(backbone, TwoTower):
            ids, mask = backbone.tokenize(["clip " * recipe.max_tokens], recipe.max_tokens)
            passed.append(backbone.embed_text(Tokens(torch.from_numpy(ids), torch.from_numpy(mask))))
    size = sum(storage.nbytes() for storage in kept.values())
    return size // 2 if in_autocast(run, gpu) else size


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in {t.data_ptr(): t for t in tensors}.values())
