"""Configuration as data: frozen pydantic dataclasses, checked on every construction, unknown keys refused."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import dataclass_transform

from kinoray.errors import UsageError, unknown

T = TypeVar("T")

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0.0)]
Capacity = Annotated[int, Field(ge=0)]
Order = Literal["", "shuffled", "first"]
"""Of a clip's frames: as they are; drawn by its place in the plan; or each the first, of every run of frames."""
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


def from_task(number: int) -> None:
    """Does nothing.

    Method files of earlier versions, copies in run folders among them, mark settings with it.

    Args:
        number: Not read.
    """


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass whose every construction checks types, ranges and names.

    Args:
        cls: A class with annotated fields.
    """
    return pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))(cls)  # type: ignore[return-value]


@config
class Recipe:
    """How a stream trains: shared by all methods, so that they can be compared.

    Optimizer and schedule begin anew with each task; a cosine falls with every step, not with every epoch.
    The defaults are those of the five-set CVLM setting (BMU-MoCo, Sec. 4.1) and ours where it is silent.
    """

    epochs: Positive = 10
    """Passes over a task's training samples; fractions allowed. Batches run over the ends of passes."""
    batch_size: Count = 48
    """Samples per optimizer step over all workers."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """sgd has a momentum of 0.9."""
    learning_rate: Positive = 5e-5
    """Rate of the first epoch of each task."""
    later_rate: float = Field(default=0.1, ge=0)
    """What the rate is multiplied by after the first epoch (5e-5, then 5e-6), or at each of the milestones."""
    schedule: Literal["first_epoch", "constant", "steps", "cosine"] = "first_epoch"
    """How the rate changes within a task: by epoch (`later_rate`, `milestones`), or every step as a cosine."""
    milestones: tuple[Count, ...] = ()
    """Epochs of schedule=steps, counted from 0 in each task, from which on the rate is lower; rising."""
    cosine_turns: Positive = 0.5
    """Turns of the cosine in a task: 0.5 falls to zero, 1.0 falls and rises again (FrameFusionMoE as released)."""
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of a task's steps in which the rate rises from 0 in a straight line."""
    warmup_tasks: int = Field(default=0, ge=0)
    """So many first tasks warm up; 0: all of them."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decays of Adam's and AdamW's two averages."""
    eps: Positive = 1e-8
    """What Adam and AdamW add to the root of the second average."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of all parameters, but where a method's group has its own."""
    clip_value: float = Field(default=0.0, ge=0)
    """Largest size of any gradient's element, before `clip_norm`; 0 turns it off."""
    clip_norm: float = Field(default=0.0, ge=0)
    """Largest global gradient norm; 0 turns clipping off."""
    keep_optimizer: bool = False
    """Whether the next task goes on with the optimizer's averages, of the last step also where validation chose the
    weights of an earlier one; parameters that are new to it start without."""
    frames: Count = 4
    """Frames per training clip. Ours; the paper is silent."""
    sampling: Literal["random", "uniform", "interval", "consecutive", "fps"] = "random"
    """Which frames of a training clip (`decoding/sampling.py`). Ours; the paper is silent."""
    test_frames: Count = 8
    """Frames per test clip. Ours."""
    test_sampling: Literal["uniform", "consecutive", "fps"] = "uniform"
    """Which frames of a validation or test clip; none is drawn."""
    test_clips: Count = 1
    """Evenly spaced runs among the `test_frames` of test_sampling=consecutive, a divisor (10 for VideoMoCo)."""
    sampling_fps: Positive = 1.0
    """Frames per second of sampling=fps."""
    size_px: Count = 384
    """Side of the square frames, in pixels."""
    stored_frames: Literal["raw", "jpeg"] = "raw"
    """How the frame cache keeps videos: as they are, or as JPEG, in a tenth of the bytes and so longer ones. Pixels
    then differ a little, also where nothing is kept, and so do results."""
    max_tokens: Count = 40
    """Longest caption in tokens. Ours."""
    augmentation: str = ""
    """A paper's augmentation by name (`data/presets.py`); empty: grey-scaling and jitter as the next four say."""
    grayscale: Share = 0.2
    """Probability that a clip loses its colour. Ours."""
    jitter: tuple[Share, Share, Share, Annotated[float, Field(ge=0, le=0.5)]] = (0.4, 0.4, 0.4, 0.1)
    """Strength of brightness, contrast, saturation and hue jitter. Ours."""
    jitter_probability: Share = 0.8
    """Probability that a clip's colours are jittered. Ours."""
    validations: int = Field(default=10, ge=0)
    """Times per task that the validation split chooses the best weights, evenly spread; the last step is one. 0: it
    chooses nothing, the last weights are kept."""
    knn_k: Count = 200
    """Neighbours that vote for a test picture's class in `ucl` and `cssl`. BMU-MoCo's supplement; InsDisc."""
    knn_temperature: float = Field(default=0.1, ge=0.01)
    """Divides their cosine similarities before the exponential. InsDisc."""
    knn_bank: Literal["task", "all"] = "task"
    """Among which training pictures `ucl` looks: those of the picture's own task, or of all tasks so far."""
    knn_space: Literal["features", "embedding"] = "features"
    """Whether they are neighbours in what a probe sees or in the space that the loss acts in (MoCo's notebook)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward and backward passes; auto is bfloat16 on a GPU. Weights and updates stay float32."""
    repeatable: bool = True
    """Whether a GPU uses only kernels that give the same bits again. Without, pictures train up to a third faster, and
    a resumed or repeated run is another draw: equal in its statistics, not in its bits."""
    checkpoint_activations: bool = False
    """Whether towers keep only what goes into their blocks and compute the rest again in the backward pass: a fraction
    of the memory for a quarter more work, and the same gradients."""
    max_steps: int = Field(default=0, ge=0)
    """Stop each task after so many steps; 0 means never."""
    planned_tasks: int = Field(default=0, ge=0)
    """Tasks that methods and ring memories make room for where the stream has fewer; see `kinoray extend`."""
    max_bad_fraction: Share = 0.05
    """Share of the stream's clips that may turn out unreadable before the run stops."""

    def __post_init__(self) -> None:
        if self.schedule == "steps" and (not self.milestones or list(self.milestones) != sorted(set(self.milestones))):
            raise ValueError(f"schedule=steps needs rising `milestones`, but got {self.milestones}.")
        if self.test_frames % self.test_clips:
            raise ValueError(
                f"`test_frames` must be a multiple of `test_clips`, but got {self.test_frames} and {self.test_clips}."
            )


def names_of(cls: type) -> list[str]:
    """Names of a dataclass's fields.

    Args:
        cls: The dataclass.
    """
    return [f.name for f in fields(cls)]


def defaults_of(cls: type) -> dict[str, Any]:
    """The defaults of a config's fields as plain JSON values; a field without one is left out.

    Args:
        cls: A class made by `config`.
    """
    infos = cls.__pydantic_fields__.items()  # type: ignore[attr-defined]
    values = {n: i.get_default(call_default_factory=True) for n, i in infos if not i.is_required()}
    return json.loads(json.dumps(values))


def differing(values: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The plain values that differ from the defaults of their config.

    What is named by these alone keeps its name when the config gets a new field.

    Args:
        values: Setting -> plain value.
        cls: A class made by `config`.
    """
    usual = defaults_of(cls)
    return {name: value for name, value in values.items() if name not in usual or value != usual[name]}


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Construct a config from plain values; every complaint of the check in one line.

    Args:
        cls: A class made by `config`.
        values: Setting -> plain value.
        where: Whose settings they are, for the message.

    Raises:
        UsageError: Names each wrong key, its value and the condition it breaks.
    """
    for name in values:
        if name not in names_of(cls):
            raise unknown(f"setting of {where}", name, names_of(cls))
    try:
        return cls(**values)
    except ValidationError as error:
        message = "; ".join(_complaint(e["loc"], e["input"], e["msg"]) for e in error.errors())
        raise UsageError(f"Wrong setting of {where}: {message}.") from None


def _complaint(place: tuple[int | str, ...], value: Any, message: str) -> str:
    """What is wrong with one setting, or, without a place, with several together."""
    if not place:
        return message.removeprefix("Value error, ").rstrip(".")
    return f"{'.'.join(map(str, place))}={value!r}: {message}"


def split_overrides(overrides: Mapping[str, Any], parts: Mapping[str, type]) -> dict[str, dict[str, Any]]:
    """Sort flat `name: value` overrides into the configs that own the names.

    Args:
        overrides: Setting -> value.
        parts: Label ("method bmu_moco") -> dataclass; no two have a name in common.

    Returns:
        Label -> its settings.

    Raises:
        UsageError: No part has a key, with the nearest name.
    """
    by_part: dict[str, dict[str, Any]] = {label: {} for label in parts}
    for name, value in overrides.items():
        owner = next((label for label, cls in parts.items() if name in names_of(cls)), None)
        if owner is None:
            known = [n for cls in parts.values() for n in names_of(cls)]
            raise unknown("setting", name, known, f"Searched: {' and '.join(parts)}.")
        by_part[owner][name] = value
    return by_part


def plain(value: Any) -> dict[str, Any]:
    """A config as nested plain JSON values.

    Args:
        value: An instance of a dataclass.
    """
    return json.loads(json.dumps(asdict(value)))


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value with sorted keys, in hexadecimal.

    Args:
        value: Made of plain JSON values, none nan.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()
