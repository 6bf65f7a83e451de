"""timm: any encoder of pictures that timm names, for pictures and, frame by frame, for clips.

A clip is the mean over its frames, not of unit norm. Weights are those that timm's own loader finds, in the hub's cache
or in a file, or random ones by the run's seed.
"""

# B batch   T frames   D embedding

from pathlib import Path
from typing import Any

from torch import Tensor

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.vision import loading, timm
from kinoray.errors import UsageError, unknown
from kinoray.system.folders import expanded

NAMES = ("timm",)
ABOUT = {
    "timm:NAME": "an encoder of pictures of timm with its published weights, such as timm:vit_small_patch16_224",
    "timm:NAME//FILE": "the same with weights from a .safetensors file",
    "timm:NAME/random": "the same with random weights by the run's seed",
}
SMALL = False
RANDOM = "random"


class TimmEncoder(Backbone):
    """An encoder of timm without its classifier, picture by picture."""

    def __init__(self, body: Any) -> None:
        """body: a model of timm made with `num_classes=0`."""
        super().__init__()
        self.body = body
        self.dim = body.num_features
        data = timm().data.resolve_model_data_config(body)
        self.mean, self.std = data["mean"], data["std"]

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, D), not of unit norm."""
        return self.body(frames_BTCHW.flatten(0, 1)).unflatten(0, frames_BTCHW.shape[:2]).mean(dim=1)


BACKBONE = TimmEncoder


def check(name: str, argument: str) -> None:
    """Refuse what timm does not name, and a file that is not safetensors. Raises: UsageError."""
    model, weights = _parts(argument)
    if not timm().is_model(model):
        raise unknown(
            "model of timm", model, timm().list_models(), "Use timm:NAME, timm:NAME//FILE or timm:NAME/random."
        )
    if weights not in ("", RANDOM) and not weights.endswith(".safetensors"):
        raise UsageError(f"timm:{argument}: the weights must be a .safetensors file, because loading one runs no code.")


def weights_folder(name: str, argument: str) -> Path | None:
    """The file that was named, if any."""
    _, weights = _parts(argument)
    return None if weights in ("", RANDOM) else Path(weights)


def load(name: str, argument: str, size_px: int | None, seed: int) -> TimmEncoder:
    """The encoder; one that takes a single size is made for `size_px`, as timm does.

    Raises: UsageError in one line where the weights cannot be had.
    """
    model, weights = _parts(argument)
    options: dict[str, Any] = {"pretrained": weights != RANDOM, "num_classes": 0}
    if weights not in ("", RANDOM):
        options["pretrained_cfg_overlay"] = {"file": weights}
    if size_px is not None and timm().get_pretrained_cfg(model).fixed_input_size:
        options["img_size"] = size_px
    otherwise = f"Give a file as timm:{model}//FILE, or put the weights into the hub's cache that HF_HOME names."
    with loading(f"timm:{argument}", otherwise):
        return TimmEncoder(timm().create_model(model, **options))


def _parts(argument: str) -> tuple[str, str]:
    """Model, and where its weights come from: "", timm's own, a file, or `RANDOM`."""
    model, _, weights = argument.partition("/")
    return model, str(expanded(weights)) if weights.startswith("~") else weights
