"""Over which rows each method's batch normalisation takes its statistics, on a backbone that has groups."""

import pytest
import torch

from kinoray.backbones import load_backbone
from kinoray.backbones.norm import norm_groups
from kinoray.runs.method_source import find_method


@pytest.mark.parametrize(
    ("name", "groups"), [("moco", 4), ("simclr", 1), ("insdisc", 1), ("simsiam", 1), ("classify", 1)]
)
def test_contrast_with_a_queue_keeps_its_groups_and_the_others_normalise_over_all_rows(name: str, groups: int) -> None:
    cls = find_method(name).load()
    method = cls(cls.Config(), load_backbone("tiny-cnn:4"), 1)
    assert norm_groups(method.encoder()) == groups


def test_simclr_embeds_as_over_one_group() -> None:
    """Views of a group of its own would tell each other by its statistics."""
    cls, pictures = find_method("simclr").load(), torch.randn(8, 1, 3, 16, 16)
    embedded = []
    for backbone in ("tiny-cnn:4", "tiny-cnn"):
        torch.manual_seed(0)
        embedded.append(cls(cls.Config(), load_backbone(backbone), 1).train().encoder().embed_video(pictures))
    torch.testing.assert_close(*embedded)
