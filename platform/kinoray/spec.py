"""What a rank is told: a run as plain data, and the method that it describes."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kinoray.backbones.backbone import Backbone
from kinoray.config import digest_of
from kinoray.data.cache import Cache
from kinoray.data.manifest import read_manifest
from kinoray.method import BaseMethod
from kinoray.method_source import MethodSource
from kinoray.stages import Stage


@dataclass(frozen=True)
class RunSpec:
    """All that a rank needs to know; travels to the workers as plain data."""

    folder: str
    method: MethodSource
    settings: dict[str, Any]
    recipe: dict[str, Any]
    protocol: str
    names: tuple[str, ...]
    tests: tuple[str, ...]
    """Names and manifests of the tasks, as tested."""
    train_names: tuple[str, ...]
    trained: tuple[str, ...]
    """Names and manifests of what is trained: the tasks, or their union."""
    stages: tuple[Stage, ...]
    backbone: str
    seed: int
    threads: int
    autocast: bool
    decode_slots: float
    cache: Cache | None = None
    """The frame cache that the user named; None: the usual one of the machine where the rank runs."""

    @property
    def num_tasks(self) -> int:
        """Tasks that methods and memories make room for."""
        return max(len(self.names), self.recipe["planned_tasks"])

    @property
    def num_clips(self) -> int:
        """Clips of the whole stream, all splits."""
        return sum(read_manifest(path).table.num_rows for path in self.tests)


def build_method(spec: RunSpec, backbone: Backbone) -> BaseMethod:
    """The method with its initial weights: a function of the spec and the backbone's weights alone."""
    cls = spec.method.load()
    seed = int(digest_of(["build", spec.seed])[:15], 16)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    return cls(cls.Config(**spec.settings), backbone, spec.num_tasks)
