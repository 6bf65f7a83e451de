"""The one door to torchvision, transformers' towers, timm and open_clip, each imported with its first use, and to the
weights that they load from the hub.

They take seconds, longer than torch itself, which a process that builds no towers need not spend: a driver, say.

The published torchvision wheel is a CUDA build. Beside a CPU-only torch its operators do not load, and its import stops
with "operator torchvision::nms does not exist"; the others import it in turn. Declaring the two missing
operators (their signatures only: calling one still fails) lets the pure-Python rest of torchvision work.
"""

import importlib
import logging
import socket
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pickle import UnpicklingError
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from kinoray.errors import UsageError
from kinoray.system.text import one_line

_MISSING_OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
# The declarations live as long as this object.
_declared = torch.library.Library("torchvision", "FRAGMENT")


def torchvision(part: str = "") -> ModuleType:
    """torchvision, or a part of it ("transforms.v2"), with its operators declared where they do not load."""
    library, _ = _import_torchvision()
    return importlib.import_module(f"torchvision.{part}") if part else library


@cache
def transformers() -> ModuleType:
    """transformers, with its two towers."""
    torchvision()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # about tqdm's bars, which nothing here shows
        library = importlib.import_module("transformers")
        for name in ("BertModel", "ViTModel"):
            getattr(library, name)  # which imports it
    library.utils.logging.disable_progress_bar()  # of loading, between the lines of a run
    return library


def timm() -> ModuleType:
    """timm, which imports torchvision."""
    torchvision()
    return importlib.import_module("timm")


def open_clip() -> ModuleType:
    """open_clip, which imports torchvision."""
    torchvision()
    return importlib.import_module("open_clip")


@cache
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


def torchvision_state() -> str:
    """One line for `kinoray doctor`: the version, and whether compiled operators are there."""
    library, declared = _import_torchvision()
    operators = "compiled operators missing (declared only; kinoray does not call them)"
    return f"torchvision {library.__version__}, {operators if declared else 'compiled operators loaded'}"


@contextmanager
def of_the_hub() -> Iterator[None]:
    """Within the block libraries load from the hub. Where its name is not known, only from the cache: their five
    attempts for each file took a minute, with two lines for each.
    """
    from huggingface_hub import constants

    usual, logged = constants.HF_HUB_OFFLINE, logging.root.manager.disable
    constants.HF_HUB_OFFLINE = usual or not _is_known(constants.ENDPOINT)
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = usual
        logging.disable(logged)


@contextmanager
def loading(what: str, otherwise: str) -> Iterator[None]:
    """Within the block libraries load what is named, as `of_the_hub` says. Their errors, of all kinds, become one line.

    otherwise: what to give instead, a sentence. Raises: UsageError.
    """
    try:
        with of_the_hub():
            yield
    except UsageError:
        raise
    except Exception as error:
        message = textwrap.shorten(one_line(error), 240, placeholder=" ...")
        if isinstance(error, UnpicklingError):
            message = "it holds pickled objects, which are never loaded: save its tensors alone, best as safetensors"
        raise UsageError(f"{what} cannot be loaded ({message}). {otherwise}") from None


def with_all_weights(model: Any, place: str, **options: Any) -> Any:
    """A model of transformers by its own loader, which would draw at random what the files lack.

    Raises: UsageError where they lack a weight.
    """
    made, found = model.from_pretrained(place, output_loading_info=True, **options)
    if missing := sorted(found["missing_keys"]):
        raise UsageError(
            f"{place}: {len(missing):,} of the model's weights are not in its files, such as {missing[0]}. Save the "
            "model itself (inside DDP by `model.module.save_pretrained`)."
        )
    return made


def _is_known(address: str) -> bool:
    """Whether the machine knows an address's host; through a proxy it need not."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(address).hostname, None)
    except OSError:
        return False
    return True
