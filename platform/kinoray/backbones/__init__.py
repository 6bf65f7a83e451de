"""Backbones by name: what a method trains. `NAME` or `NAME:ARGUMENT`; what an argument means is the family's to say.

One file per family, found by the names that it states; `Family` is what such a file holds. It may have, too:

- `check(name, argument)`: refuses an argument that cannot be meant, cheaply, by a UsageError;
- `weights_folder(name, argument)`: the folder, or the files, that the weights lie in; None where they are drawn by the
  seed or come from the hub, as all are of a family without it;
- `origin(argument)`: the backbone whose class and size are the family's;
- `kind_of(argument)`: of a family that has two classes, which class, and whether it is small;
- `check_clips(argument, size_px, frames)`: refuses clips that it cannot take, by a UsageError.

A user's own file, `./my_backbone.py[:ARGUMENT]`, is such a file, of which it may leave out all but a class derived from
`Backbone`: named `BACKBONE` where there are several, and built without arguments where no `load` says how.
"""

import hashlib
import importlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

from kinoray.errors import UsageError, unknown
from kinoray.families import families, stated
from kinoray.source import OwnName, Source, class_of, named, whole
from kinoray.system.folders import expanded
from kinoray.system.text import PLAIN_NAME

if TYPE_CHECKING:
    from kinoray.backbones.backbone import Backbone


class Family(Protocol):
    """A family file: these constants and functions."""

    NAMES: tuple[str, ...]
    ABOUT: dict[str, str]
    """What `kinoray list backbones` says of each form of the names; a literal, as NAMES."""
    SMALL: bool
    """Whether one CPU core trains it: a sweep's trial then needs no worker of its own."""
    BACKBONE: "type[Backbone]"
    """The class that `load` returns."""

    def load(self, name: str, argument: str, size_px: int | None, seed: int) -> "Backbone":
        """The backbone in float32 on the CPU; torch's generator, seeded by `seed`, draws what no file holds."""


def find_backbone(given: Any) -> str:
    """The name of a backbone that is given by its name, as `./my_backbone.py[:ARGUMENT]`, or as a class.

    Raises: UsageError where a file is not there, does not run or defines none.
    """
    from kinoray.backbones.backbone import Backbone

    name = named(given, "backbone", Backbone)
    if isinstance(name, OwnName):
        _own_family(name.source)
        return name
    return with_home(name)


def with_home(name: str) -> str:
    """A backbone's name with the user's home in place of each `~` that begins a part."""
    return ":".join(str(expanded(part)) if part.startswith("~") else part for part in name.split(":"))


def names_all(name: str) -> bool:
    """Whether a backbone's name says all: no folder or file of somebody's own, and no run."""
    parts = name.split(":")
    return bool(PLAIN_NAME.fullmatch(name)) and parts[0] != "run" and not any(Path(part).exists() for part in parts[1:])


def public_name(name: str) -> str:
    """A backbone's name without places on this machine: `hf:own` for one in a folder."""
    return name if names_all(name) else f"{name.partition(':')[0]}:own"


def list_backbones() -> dict[str, str]:
    """Every form of a name -> one line about it."""
    return {form: about for of_family in stated(__path__, "ABOUT").values() for form, about in of_family.items()}


def check_backbone(name: str) -> str:
    """The kind of backbone that `name` asks for; loads no weights. Raises: UsageError for one that cannot be had."""
    family, kind, argument = _find(name)
    if check := vars(family).get("check"):
        check(kind, argument)
    return kind


def check_weights(name: str) -> None:
    """Refuse a backbone whose weights should lie in files that are not there. Raises: UsageError."""
    place = weights_folder(name)
    for path in [place] if isinstance(place, Path) else place or ():
        if not path.exists():
            raise UsageError(f"{name}: its weights were not found at {path}. Give the absolute path.")


def check_clips(name: str, size_px: int | None, frames: int) -> None:
    """Refuse clips of so many frames and pixels where the backbone cannot take them. Raises: UsageError."""
    family, _, argument = _find(name)
    if check := vars(family).get("check_clips"):
        check(argument, size_px, frames)


def load_backbone(name: str, size_px: int | None = None, seed: int = 0) -> "Backbone":
    """The backbone called `name`, in float32 on the CPU; the global random state is left as it was.

    size_px: what frames will be resized to; None means native. seed: the run's; draws the weights that no file holds.
    Raises: UsageError for an unknown name, missing weights, or a size that does not suit.
    """
    import torch

    from kinoray.backbones.backbone import Backbone

    check_backbone(name)
    family, kind, argument = _find(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = family.load(kind, argument, size_px, seed)
    if not isinstance(backbone, Backbone):
        raise UsageError(f"{name}: its `load` returned a {type(backbone).__name__}, not a Backbone.")
    if size_px is not None and size_px % backbone.multiple_px:
        raise UsageError(f"`size_px` must be a multiple of {backbone.multiple_px} px for {name}, but got {size_px}.")
    return backbone


def weights_folder(name: str) -> Path | Sequence[Path] | None:
    """The folder, or the files, that a backbone's weights lie in; None where they are drawn by the seed or come from
    the hub."""
    family, kind, argument = _find(name)
    folder_of = vars(family).get("weights_folder")
    return folder_of(kind, argument) if folder_of else None


def weight_files(place: Path | Sequence[Path] | None) -> list[Path]:
    """The files of weights in what `weights_folder` gives, in order."""
    if not isinstance(place, Path):
        return list(place or ())
    return [place] if place.is_file() else sorted(place.rglob("*.safetensors"))


def weights_digest(name: str) -> str:
    """SHA-256 of a backbone's weights where they lie in a folder or file, else empty."""
    files = weight_files(weights_folder(name))
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return digest.hexdigest() if files else ""


def backbone_class(name: str) -> "type[Backbone]":
    """The class of a backbone, without its weights."""
    return _kind(name)[0]


def backbones_of(kind: type) -> list[str]:
    """Names, without arguments, of the backbones of a kind."""
    return [name for name in sorted(families(__path__)) if issubclass(backbone_class(name), kind)]


def small_backbone(kind: type) -> str:
    """The first backbone by name that one CPU core trains and that is of a kind. Raises: UsageError where none is."""
    for name in backbones_of(kind):
        if is_small(name):
            return name
    raise UsageError(f"There is no small backbone of the kind {kind.__name__}.")


def is_small(name: str) -> bool:
    """Whether one CPU core trains it."""
    return _kind(name)[1]


def _kind(name: str) -> "tuple[type[Backbone], bool]":
    """Class of a backbone, and whether it is small: its family's, or those of the backbone that it was made of."""
    family, _, argument = _find(name)
    if argument and (origin := vars(family).get("origin")):
        return _kind(origin(argument))
    kind_of = vars(family).get("kind_of")
    return kind_of(argument) if kind_of else (family.BACKBONE, family.SMALL)


def _find(name: str) -> tuple[Family, str, str]:
    """Family, kind and argument. Raises: UsageError for an unknown name, with the nearest ones."""
    if isinstance(name, OwnName):
        kind, _, argument = name.partition(":")
        return _own_family(name.source), kind, argument
    kind, _, argument = with_home(name).partition(":")
    known = families(__path__)
    if kind not in known and os.path.isdir(name):
        raise UsageError(f"{name} is a folder: say which library wrote it, hf:{name} or open_clip:{name}.")
    if kind not in known:
        raise unknown("backbone", kind, known, "All forms of the names: `kinoray list backbones`.")
    return cast(Family, importlib.import_module(f"kinoray.backbones.{known[kind]}")), kind, argument


@cache
def _own_family(source: Source) -> Family:
    """The family of a user's file or class: what it does not say itself is as usual."""
    from kinoray.backbones.backbone import Backbone

    found, stated_by_file = class_of(source, "BACKBONE", Backbone)
    cls: type[Backbone] = whole(found, source.name)

    def check(name: str, argument: str) -> None:
        if argument:
            raise UsageError(f"{name}:{argument}: it takes no options, because it defines no `load`.")

    def load(name: str, argument: str, size_px: int | None, seed: int) -> "Backbone":
        return cls()

    usual = {"SMALL": False} | ({} if "load" in stated_by_file else {"check": check, "load": load})
    return cast(Family, SimpleNamespace(**usual | stated_by_file | {"BACKBONE": cls}))
