"""A run's model, rebuilt from its folder outside a training session."""

import logging
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from kinoray.backbones.backbone import TwoTower
from kinoray.data.guarded import isolated
from kinoray.data.presets import test_sampling
from kinoray.decoding.clip import Clip
from kinoray.decoding.pictures import picture_frames
from kinoray.decoding.read_clip import array_frames, read_clip
from kinoray.errors import ConfigMismatch, UsageError, VideoError
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
from kinoray.training.batches import BatchReader
from kinoray.training.checkpoint import load_weights, newest
from kinoray.training.loop import grow

Frames = Clip | str | Path | Image.Image | np.ndarray
"""A clip of a manifest, the path of a video or picture, a picture of Pillow, or RGB of uint8: (H, W, 3) of a picture,
(T, H, W, 3) of a video, of which the run's rule takes frames as if there were one a second."""


class OpenedMethod(nn.Module):
    """A run's trained method as a module in eval mode, with all that its tests make of files, pictures and texts.

    It gives the features that the run's own tests compute; of most methods they are unit vectors. `encode_*` record no
    gradients; what is to be trained on is `method`, a `BaseMethod`, or its towers, `method.encoder()`.

    Args:
        run: The run's result.
        method: The method with its weights.
        spec: What the run's processes were started with.
        reader: What reads the run's clips and captions.
        learned: Names of the tasks that the weights were last tested on.
        stored: The feature files that the commit names.
    """

    method: BaseMethod

    def __init__(
        self,
        run: Result,
        method: BaseMethod,
        spec: RunSpec,
        reader: BatchReader,
        learned: tuple[str, ...],
        stored: Mapping[str, Fact],
    ) -> None:
        super().__init__()
        self.run, self.method, self.spec, self.reader = run, method, spec, reader
        self.learned, self.stored = learned, stored
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the weights are; `to` moves them."""
        return next(self.method.parameters()).device

    def seen_as(self, task: int) -> int:
        """The task index under which the method embeds a task of the stream: 0 for all in joint and zero-shot runs.

        Args:
            task: Index in the stream, from 0.
        """
        return self.spec.stages[-1].seen_as(task)

    def encode_text(self, texts: Sequence[str], task: int = 0) -> Tensor:
        """Query features of some texts, on the CPU.

        Args:
            texts: Q texts.
            task: Index of the task whose gallery block is searched.

        Returns:
            Features (Q, ...).

        Raises:
            UsageError: The backbone reads no text.
        """
        if not isinstance(self.reader.towers, TwoTower):
            raise UsageError(f"{label_of(self.run)} has the backbone {self.spec.run.backbone}, which reads no text.")
        ids, mask = self.reader.tokens([texts] if isinstance(texts, str) else list(texts))
        tokens = Tokens(ids.to(self.device), mask.to(self.device))
        with torch.inference_mode():
            return self.method.embed_text(tokens, self.seen_as(task)).float().cpu()

    def encode_video(self, video: Frames, task: int = 0) -> Tensor:
        """Features of a video or picture, as the gallery of a task stores them, on the CPU.

        Args:
            video: A clip, a file, a picture of Pillow, or RGB uint8 (T, H, W, 3) or (H, W, 3).
            task: Index of the task whose gallery it would be in.

        Returns:
            Features (1, ...).

        Raises:
            VideoError: The file cannot be used.
            UsageError: The array has another shape or type.
        """
        with torch.inference_mode():
            return self.method.embed_video(self.view(self.frames_of(video)), self.seen_as(task)).float().cpu()

    def encode_image(self, image: Frames, task: int = 0) -> Tensor:
        """The same of a picture, which is a video of one frame.

        Args:
            image: As `video` of `encode_video`.
            task: As of `encode_video`.
        """
        return self.encode_video(image, task)

    def __repr__(self) -> str:
        words = f"{label_of(self.run)}: {self.run.method} on {self.spec.run.backbone}, after {', '.join(self.learned)}"
        return f"OpenedMethod({textwrap.shorten(words, 250, placeholder=' ...')})"

    def frames_of(self, video: Frames) -> np.ndarray:
        """The frames that a test sees; files are read in another process, which a bad one may end.

        Args:
            video: As of `encode_video`.

        Returns:
            Frames uint8 (T, S, S, 3).

        Raises:
            VideoError: As `encode_video`.
            UsageError: As `encode_video`.
        """
        recipe, form = self.reader.recipe, self.reader.test_form
        sampling = test_sampling(recipe, recipe.test_frames)
        if isinstance(video, Image.Image):
            return picture_frames(video, form)
        if isinstance(video, np.ndarray):
            return array_frames(video, partial(sampling.frames, seed=0), form)
        if not isinstance(video, Clip):
            path = expanded(video).absolute()
            video = Clip(path.name, str(path))
        try:
            return isolated(read_clip, video, sampling, 0, form)
        except VideoError as error:
            raise type(error)(error.stage, f"{video.path}: {error}") from None

    def attention_maps(self, frames: np.ndarray) -> dict[str, np.ndarray]:
        """Where the method looks in a clip.

        Args:
            frames: Of `frames_of`, uint8 (T, S, S, 3).

        Returns:
            Weights (T, rows, columns) by name of the attention.

        Raises:
            UsageError: The method shows none.
        """
        with torch.inference_mode():
            maps = self.method.attention_maps(self.view(frames))
        if not maps:
            raise UsageError(
                f"{self.run.method} with these settings pays no attention over patches, so it has no maps."
            )
        return {name: weights[0].float().cpu().numpy() for name, weights in maps.items()}

    def view(self, frames: np.ndarray) -> Tensor:
        """Frames as the method takes them, a batch of one.

        Args:
            frames: Of `frames_of`, uint8 (T, S, S, 3).
        """
        return self.reader.test_view(frames[None]).to(self.device)


def open_method(run: str | Path | Result, *, stream: str | Stream | None = None, method: Any = None) -> OpenedMethod:
    """The model of a run as its newest commit has it, on a GPU where there is one.

    The method's recorded code is executed.

    Args:
        run: Folder, name or `Result`, of one seed.
        stream: Needed only where the run's folder does not hold it, as for `extend`.
        method: Needed only where the run's folder does not hold it, as for `extend`.

    Raises:
        UsageError: The run has several seeds, or has committed nothing yet.
        ConfigMismatch: The code of today no longer fits the weights.
    """
    result = one_seed(run)
    request = recorded_request(result, stream=stream, method=method)
    resolved = replace(resolve(request, result.seed), folder=result.folder)
    spec = describe_ranks(resolved, result.run["threads"], 0, gpu=torch.cuda.is_available())
    world = alone(spec)
    checkpoint = newest(result.folder / "checkpoints", say=logging.getLogger(__name__).warning)
    if checkpoint is None:
        raise UsageError(f"{label_of(result)} has committed nothing yet.")
    opened, reader = built(spec, world)
    facts = StageFacts(spec, reader, world)
    for stage in facts.stages_grown(checkpoint.position):
        grow(opened, stage, facts)
    try:
        load_weights(opened, checkpoint)
    except RuntimeError as error:
        why = str(error).split("\n")[1:2] or [str(error)]
        raise ConfigMismatch(
            f"{label_of(result)}: its weights do not fit the present code of {result.method}: {why[0].strip()[:200]}"
        ) from None
    done = spec.stages[: checkpoint.position.stage]
    learned = tuple(spec.names[task] for task in done[-1].tests) if done else ()
    return OpenedMethod(result, opened, spec, reader, learned, checkpoint.state["tested"]["features"])
