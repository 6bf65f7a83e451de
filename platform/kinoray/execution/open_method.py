"""A run's model, rebuilt from its folder outside a training session.

`kinoray export weights` writes its encoder as plain files that anybody can load, without kinoray:

    weights = safetensors.torch.load_file("weights/model.safetensors")

A ViT with BERT also comes back as a backbone (`--backbone vit-bert:FOLDER`, or `tiny:FOLDER`), as what
`benchmarks/pretrain.py` writes does. A plain CLIP has open_clip's own names, so
`open_clip.create_model(NAME).load_state_dict(weights)` takes it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from kinoray.backbones.backbone import TwoTower
from kinoray.backbones.clip import ClipTowers
from kinoray.backbones.towers import WEIGHTS_FILE, VitBertTowers, save_towers
from kinoray.data.guarded import apart
from kinoray.data.presets import test_sampling
from kinoray.decoding.clip import Clip
from kinoray.decoding.read_clip import read_clip
from kinoray.errors import ConfigMismatch, UsageError
from kinoray.evaluation.feature_files import Fact
from kinoray.execution.feature_store import one_seed
from kinoray.execution.rank_session import StageFacts, built
from kinoray.method import BaseMethod, Tokens
from kinoray.runs.reopen import label_of, recorded_request
from kinoray.runs.resolve import resolve
from kinoray.runs.result import Result
from kinoray.runs.run_spec import RunSpec, alone, describe_ranks
from kinoray.streams import Stream
from kinoray.system.folders import expanded
from kinoray.training.batches import Feed
from kinoray.training.checkpoint import load_weights, newest
from kinoray.training.loop import grow


@dataclass(frozen=True)
class OpenedMethod:
    """A method with the weights of a run's newest commit, in eval mode, and what reads its inputs."""

    run: Result
    method: BaseMethod
    spec: RunSpec
    feed: Feed
    stored: Mapping[str, Fact]
    """The feature files that the same commit names."""

    def seen_as(self, task: int) -> int:
        """The task index under which the method embeds a task of the stream: 0 for all in joint and zero-shot runs."""
        return self.spec.stages[-1].seen_as(task)

    def embed_texts(self, texts: Sequence[str], task: int = 0) -> Tensor:
        """Query features of some texts (Q, ...) for the gallery block of a task, on the CPU.

        Raises: UsageError where the backbone reads no text.
        """
        if not isinstance(self.feed.towers, TwoTower):
            raise UsageError(f"{label_of(self.run)} has the backbone {self.spec.run.backbone}, which reads no text.")
        ids, mask = self.feed.tokens(list(texts))
        with torch.inference_mode():
            return self.method.embed_text(Tokens(ids, mask), self.seen_as(task)).float().cpu()

    def __repr__(self) -> str:
        backbone, tasks = self.spec.run.backbone, ", ".join(self.spec.names[: len(self.run.matrix)])
        return f"OpenedMethod({label_of(self.run)}: {self.run.method} on {backbone}, after {tasks})"

    def embed_clip(self, clip: Clip | str | Path, task: int = 0) -> Tensor:
        """Features of a clip (1, ...), or of a video or picture file, as the gallery of a task stores them, on the CPU.

        Raises: VideoError.
        """
        with torch.inference_mode():
            return self.method.embed_video(self.view(self.frames_of(clip)), self.seen_as(task)).float().cpu()

    def frames_of(self, clip: Clip | str | Path) -> np.ndarray:
        """The frames of a clip, or of a video or picture file, that a test sees, uint8 (T, S, S, 3); read in another
        process, which a bad clip may end.

        Raises: VideoError.
        """
        if not isinstance(clip, Clip):
            path = expanded(clip).absolute()
            clip = Clip(path.name, str(path))
        recipe = self.feed.recipe
        sampling = test_sampling(recipe, recipe.test_frames)
        return apart(read_clip, clip, sampling, 0, self.feed.test_form)

    def attention_maps(self, frames: np.ndarray) -> dict[str, np.ndarray]:
        """Where the method looks in a clip given by `frames_of`: weights (T, rows, columns) by name of the attention.

        Raises: UsageError for a method that shows none.
        """
        with torch.inference_mode():
            maps = self.method.attention_maps(self.view(frames))
        if not maps:
            raise UsageError(f"{self.run.method} with these settings shows no attention over a clip's patches.")
        return {name: weights[0].float().cpu().numpy() for name, weights in maps.items()}

    def view(self, frames: np.ndarray) -> Tensor:
        """Frames uint8 (T, S, S, 3) as the method takes them, a batch of one."""
        return self.feed.test_view(frames[None])


def open_method(run: str | Path | Result, *, stream: str | Stream | None = None, method: Any = None) -> OpenedMethod:
    """The model of a run, by folder, by name or as a `Result`, as its newest commit has it.

    stream, method: needed only where the run's folder does not hold them, as for `extend`. The method's recorded code
    is executed. Uses a GPU where there is one.
    Raises: UsageError for a run of several seeds, or one that has committed nothing yet; ConfigMismatch where the code
    of today no longer fits the weights.
    """
    result = one_seed(run)
    request = recorded_request(result, stream=stream, method=method)
    resolved = replace(resolve(request, result.seed), folder=result.folder)
    spec = describe_ranks(resolved, result.run["threads"], 0, gpu=torch.cuda.is_available())
    world = alone(spec)
    checkpoint = newest(result.folder / "checkpoints", say=logging.getLogger(__name__).warning)
    if checkpoint is None:
        raise UsageError(f"{label_of(result)} has committed nothing yet.")
    opened, feed = built(spec, world)
    facts = StageFacts(spec, feed, world)
    for stage in facts.stages_grown(checkpoint.position):
        grow(opened, stage, facts)
    try:
        load_weights(opened, checkpoint)
    except RuntimeError as error:
        why = str(error).split("\n")[1:2] or [str(error)]
        raise ConfigMismatch(
            f"{label_of(result)}: the weights do not fit today's code of {result.method}: {why[0].strip()[:200]}"
        ) from None
    return OpenedMethod(result, opened.eval(), spec, feed, checkpoint.state["tested"]["features"])


ABOUT_FILE = "kinoray.json"


def export_weights(run: str | Path | Result, out: str | Path, *, method: Any = None) -> Path:
    """Write the encoder of a run's newest commit into the folder `out`, and return it.

    `model.safetensors` has the weights on the CPU, `kinoray.json` says what they are: method, settings, stream, seed,
    tasks learned, backbone, how pixels are normalised. method: as for `open_method`.
    Raises: UsageError as `open_method`, and for a folder that holds other files or cannot be written.
    """
    opened, folder = open_method(run, method=method), expanded(out)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / ABOUT_FILE).is_file():
        raise UsageError(f"{folder} holds other files: give a new folder with --out.")
    encoder = opened.method.encoder().cpu()
    about = {
        "method": opened.run.method,
        "settings": opened.run.config["method"],
        "stream": opened.run.stream,
        "seed": opened.run.seed,
        "tasks": list(opened.spec.names[: len(opened.run.matrix)]),
        "backbone": opened.spec.run.backbone,
        "dim": encoder.dim,
        "size_px": opened.feed.recipe.size_px,
        "frames": opened.feed.recipe.test_frames,
        "mean": encoder.mean,
        "std": encoder.std,
        "weights": type(encoder).__name__,
    }
    try:
        if isinstance(encoder, VitBertTowers):
            save_towers(encoder, folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            module = encoder.model if isinstance(encoder, ClipTowers) else encoder
            weights = {name: value.detach().contiguous().clone() for name, value in module.state_dict().items()}
            save_file(weights, folder / WEIGHTS_FILE)
            (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors writes for the owner only
        (folder / ABOUT_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise UsageError(f"Cannot write weights into {folder}: {error}. Give another folder with --out.") from None
    return folder
