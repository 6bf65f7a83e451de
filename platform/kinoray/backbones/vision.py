"""The one door to torchvision, transformers' towers and open_clip.

The published torchvision wheel is a CUDA build. Beside a CPU-only torch its operators do not load, and its import stops
with "operator torchvision::nms does not exist"; transformers and open_clip import it in turn. Declaring the two missing
operators (their signatures only: calling one still fails) lets the pure-Python rest of torchvision work.
"""

import importlib
import sys
import warnings
from types import ModuleType

import torch

_MISSING_OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
# The declarations live as long as this object.
_declared = torch.library.Library("torchvision", "FRAGMENT")


def _import_torchvision() -> tuple[ModuleType, bool]:
    """Import torchvision; returns it and whether its operators had to be declared first."""
    try:
        return importlib.import_module("torchvision"), False
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left half made
    for name, signature in _MISSING_OPERATORS.items():
        _declared.define(name + signature)
    return importlib.import_module("torchvision"), True


torchvision, _operators_declared = _import_torchvision()

import torchvision.transforms.v2.functional as torchvision_functional  # noqa: E402  (only works after the line above)

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="IProgress not found")  # about tqdm's bars, which nothing here shows
    from transformers import BertConfig, BertModel, ViTConfig, ViTModel


def open_clip() -> ModuleType:
    """The library, imported with its first use: it takes seconds that most runs need not spend."""
    return importlib.import_module("open_clip")


def torchvision_state() -> str:
    """One line for `kinoray doctor`: the version, and whether compiled operators are there."""
    operators = "compiled operators missing (declared only; kinoray does not call them)"
    return f"torchvision {torchvision.__version__}, {operators if _operators_declared else 'compiled operators loaded'}"


__all__ = [
    "BertConfig",
    "BertModel",
    "ViTConfig",
    "ViTModel",
    "open_clip",
    "torchvision",
    "torchvision_functional",
    "torchvision_state",
]
