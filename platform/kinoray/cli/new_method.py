"""`kinoray new method`: files that run as they are, to be filled in."""

import re
from pathlib import Path

from kinoray.errors import UsageError

METHOD = '''"""NAME: in one line, what it does (authors, year, arXiv number), Eqs. 1-2.

Differs: where the paper and its released code disagree, and which one this file follows.
"""

# B rows on this rank   G rows over all ranks   D embedding

from typing import ClassVar

from torch import Tensor

from kinoray.backbones.towers import TwoTower
from kinoray.config import Positive, config
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput, trainable


@config
class Config:
    """Hyper-parameters; the defaults are the paper's."""

    temperature: Positive = 0.07
    """Divides cosine similarities. Sec. 4.1."""


def in_batch_nce(query_BD: Tensor, key_BD: Tensor, keys_GD: Tensor, temperature: float) -> Tensor:
    """Contrast each query with the keys of the whole batch; its own key is among them.

        loss = sum_i  -log  exp(q_i.k_i/T) / sum_j exp(q_i.k_j/T)

    Shapes:  query_BD, key_BD (B, D); keys_GD (G, D); returns a scalar, summed over rows.
    """
    logits = query_BD @ keys_GD.T / temperature
    return (logits.logsumexp(dim=1) - (query_BD * key_BD).sum(dim=1) / temperature).sum()


class Method(BaseMethod):
    """Which equation is used when. More verbs: needs, grow, begin_task, after_step, end_task, embed_*, score.

    What must outlive a stop stands in parameters and buffers (`self.register_buffer`), never in plain attributes.
    """

    Config = Config
    RECIPES: ClassVar = {}
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.towers = backbone

    def param_groups(self) -> dict[str, ParamGroup]:
        """What trains now."""
        return {"towers": trainable(self.towers, "towers")}

    def loss(self, batch: Batch) -> StepOutput:
        """A sum over this rank's rows, divided by the rows of all ranks."""
        video, text = self.towers.embed_video(batch.video), self.towers.embed_text(batch.text)
        temperature = self.config.temperature
        video_to_text = in_batch_nce(video, text, batch.gather(text), temperature) / batch.global_size
        text_to_video = in_batch_nce(text, video, batch.gather(video), temperature) / batch.global_size
        return StepOutput(
            objectives=video_to_text + text_to_video,
            log={"loss/video_to_text": video_to_text.detach(), "loss/text_to_video": text_to_video.detach()},
        )

    def encoder(self) -> TwoTower:
        """The module that is probed and exported."""
        return self.towers
'''

SEARCH_SPACE = '''"""Search space of NAME: one line per knob, with its reason or source."""

SPACE = {
    "temperature": {"low": 0.02, "high": 0.2, "log": True},  # around the paper's 0.07
}
'''

TEST = '''"""NAME against plain loops. The conformance suite runs for it by itself."""

import math

import pytest
import torch

from kinoray.methods.NAME import in_batch_nce


def test_in_batch_nce_equals_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(3, 4, generator=generator) for _ in range(2))
    expected = 0.0
    for i in range(3):
        scores = [math.exp(float(queries[i] @ keys[j]) / 0.5) for j in range(3)]
        expected -= math.log(scores[i] / sum(scores))
    assert float(in_batch_nce(queries, keys, keys, 0.5)) == pytest.approx(expected, rel=1e-5)
'''


def write_method(name: str, folder: Path, single: bool) -> list[Path]:
    """Write the method's files below `folder` and return them; nothing that exists is overwritten.

    `single` writes NAME.py alone, for `kinoray run ./NAME.py`; otherwise `folder` is the repository's root.
    Raises: UsageError for a name that is no module name, an existing file, or a folder that is no repository.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"A method's name is lower case letters, digits and underscores, but got {name!r}.")
    if single:
        files = {folder / f"{name}.py": METHOD}
    else:
        files = {
            folder / "methods" / f"{name}.py": METHOD,
            folder / "search_spaces" / f"{name}.py": SEARCH_SPACE,
            folder / "tests" / "methods" / f"test_{name}.py": TEST,
        }
    for file in files:
        if file.exists():
            raise UsageError(f"{file} exists already; nothing was written. Choose another name or move it away.")
        if not file.parent.is_dir():
            raise UsageError(f"There is no folder {file.parent}. Stand in kinoray's repository, or add --single.")
    for file, text in files.items():
        file.write_text(text.replace("NAME", name), encoding="utf-8")
    return list(files)
