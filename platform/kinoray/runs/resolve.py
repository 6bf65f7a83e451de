"""From a command to a run: which method, stream, settings and folder. Nothing starts here."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kinoray.backbones import backbone_class, check_backbone, weights_digest
from kinoray.config import Recipe, build, digest_of, names_of, plain, split_overrides
from kinoray.data.manifest import SCHEMA, SPLITS, Manifest, read_manifest, write_table
from kinoray.data.plan import steps_for
from kinoray.data.presets import preset_of
from kinoray.errors import UsageError
from kinoray.method import BaseMethod
from kinoray.runs.method_source import MethodSource, find_method, with_learner
from kinoray.streams import Stream, load_stream
from kinoray.training.stages import Stage

PROTOCOLS = ("cvlm", "ctvr")
"""What `tester` can test."""


@dataclass(frozen=True)
class Resolved:
    """One run before it starts."""

    folder: Path
    method: MethodSource
    stream: Stream
    backbone: str
    seed: int
    settings: dict[str, Any]
    """The method's full configuration."""
    recipe: Recipe
    overrides: dict[str, Any]
    """Settings that differ from what the method and the stream would use by themselves."""
    joint: bool
    zero_shot: bool
    as_released: bool = False
    """Whether the method's `RELEASED` settings stand where its paper's would."""

    @property
    def label(self) -> str:
        """Run folder and seed, the run's name."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What is learned and tested, in order. Joint training and zero-shot fill the last row only."""
        tasks = range(len(self.stream.tasks))
        if self.joint or self.zero_shot:
            return (Stage(0 if self.joint else None, tuple(tasks), len(tasks) - 1, one_for_all=True),)
        return tuple(Stage(t, tuple(range(t + 1)), t) for t in tasks)

    @property
    def steps(self) -> list[int]:
        """Optimizer steps of each training stage."""
        if self.zero_shot:
            return []
        counts = [len(read_manifest(t.manifest).samples("train")[0]) for t in self.stream.tasks]
        steps = [
            steps_for(self.recipe.epochs, n, self.recipe.batch_size) for n in ([sum(counts)] if self.joint else counts)
        ]
        return [min(s, self.recipe.max_steps) if self.recipe.max_steps else s for s in steps]


def resolve(
    method: Any,
    *,
    stream: str | Stream,
    backbone: str | None,
    seed: int,
    settings: dict[str, Any],
    joint: bool,
    zero_shot: bool,
    smoke: bool,
    runs: str | Path | None,
    as_released: bool = False,
) -> Resolved:
    """Check everything a user can get wrong, before anything costly starts. Raises: UsageError."""
    if joint and zero_shot:
        raise UsageError("`joint` trains on everything and `zero_shot` on nothing: give one of them.")
    if seed < 0:
        raise UsageError(f"`seed` must be 0 or more, but got {seed}.")
    found = load_stream(stream) if isinstance(stream, str) else stream
    source = with_learner(find_method(method), found.protocol)
    cls = source.load()
    parts = {f"method {source.name}": cls.Config, "the recipe": Recipe}
    shared = set(names_of(cls.Config)) & set(names_of(Recipe))
    if shared:
        raise UsageError(f"{source.name}: Config may not reuse names of the stream's recipe: {', '.join(shared)}.")
    if found.protocol not in PROTOCOLS:
        raise UsageError(
            f"{found.name} is tested by the protocol {found.protocol!r}, which no method here serves yet; streams of "
            f"{' and '.join(PROTOCOLS)} run."
        )
    towers = backbone or found.backbone
    check_backbone(towers)
    if not backbone_class(towers).tokenizes:
        raise UsageError(
            f"{found.name} is tested by text retrieval, but the backbone {towers} reads no text; `kinoray list "
            "backbones` names those that do."
        )
    _check_suits(cls, source.name, found, towers)
    for task in found.tasks:
        for split in SPLITS:
            if not len(read_manifest(task.manifest).clips(split)):
                raise UsageError(f"Task {task.name!r} of {found.name} has no {split} clips. Name some in its captions.")
    given = split_overrides(settings, parts)
    family = found.name.partition(":")[0]
    released = _released(cls, source.name, family) if as_released else {}
    usual = split_overrides(cls.RECIPES.get(family, {}) | released, parts)
    (method_part, recipe_part) = parts
    base = [
        build(cls.Config, usual[method_part], method_part),
        build(Recipe, plain(found.recipe) | usual[recipe_part], recipe_part),
    ]
    if smoke:
        given[recipe_part] = {"max_steps": 2, "validations": 1} | given[recipe_part]
    final = [
        build(cls.Config, usual[method_part] | given[method_part], method_part),
        build(Recipe, plain(base[1]) | given[recipe_part], recipe_part),
    ]
    preset_of(final[1])
    cls.needs(final[0])  # a rule and its learner may ask the plan for two things that exclude each other
    overrides = {
        name: value
        for old, new in zip(base, final, strict=True)
        for name, value in plain(new).items()
        if value != plain(old)[name]
    }
    resolved = Resolved(
        folder=Path(),
        method=source,
        stream=found,
        backbone=towers,
        seed=seed,
        settings=plain(final[0]),
        recipe=final[1],
        overrides=overrides,
        joint=joint,
        zero_shot=zero_shot,
        as_released=as_released,
    )
    root = Path(runs or os.environ.get("KINORAY_RUNS") or "runs").absolute()
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{source.name}-{found.name}").strip("-.")
    return replace(resolved, folder=root / f"{stem}-{digest_of(identity(resolved))[:8]}" / f"seed-{seed}")


def identity(run: Resolved) -> dict[str, Any]:
    """What makes two runs the same but for the seed: the hash of the folder's name."""
    return {
        "method": run.method.name,
        "stream": run.stream.name,
        "backbone": [run.backbone, weights_digest(run.backbone)],
        "joint": run.joint,
        "zero_shot": run.zero_shot,
        "settings": run.settings,
        "recipe": plain(run.recipe),
        "data": [[task.name, read_manifest(task.manifest).digest] for task in run.stream.tasks],
        **({"as_released": True} if run.as_released else {}),
    }


def _check_suits(cls: type[BaseMethod], name: str, stream: Stream, backbone: str) -> None:
    """Refuse a method on a stream that is tested in another way, or a backbone of another kind, than it is for.

    Raises: UsageError.
    """
    if cls.suits and stream.protocol not in cls.suits:
        raise UsageError(
            f"{name} suits streams tested by {' or '.join(cls.suits)}, but {stream.name} is tested by "
            f"{stream.protocol}. Choose another method, or another stream."
        )
    if not issubclass(backbone_class(backbone), cls.backbones):
        raise UsageError(
            f"{name} builds on a {cls.backbones.__name__}, but the backbone {backbone} is a "
            f"{backbone_class(backbone).__name__}; `kinoray list backbones` names others."
        )


def _released(cls: type[BaseMethod], name: str, stream: str) -> dict[str, Any]:
    """The settings of a method's released code for a stream. Raises: UsageError where it states none."""
    found = cls.RELEASED.get("", {}) | cls.RELEASED.get(stream, {})
    if not found:
        known = ", ".join(cls.RELEASED)
        where = f"for {stream}, only for {known}" if known else "(`RELEASED` beside its `RECIPES`)"
        raise UsageError(f"{name} states no settings of released code {where}. Leave out `as_released`.")
    return found


def union_manifest(run: Resolved) -> Manifest:
    """All tasks' training and validation clips as one task: what joint training learns from."""
    manifests = [(task.name, read_manifest(task.manifest)) for task in run.stream.tasks]
    root = Path(os.path.commonpath([m.root.resolve() for _, m in manifests]))
    parts = []
    for name, manifest in manifests:
        kept = manifest.table.filter(pc.is_in(manifest.table["split"], pa.array(SPLITS[:2])))
        folder = os.path.join(os.path.relpath(manifest.root.resolve(), root), "").removeprefix("./")
        for column, prefix in (("id", f"{name}/"), ("uri", folder)):
            values = pc.binary_join_element_wise(prefix, kept[column], "")
            kept = kept.set_column(SCHEMA.names.index(column), column, values)
        parts.append(kept)
    return write_table(pa.concat_tables(parts), run.folder / "joint.parquet", root)
