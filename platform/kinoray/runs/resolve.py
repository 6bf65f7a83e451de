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
from kinoray.runs.method_source import MethodSource, find_method
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
) -> Resolved:
    """Check everything a user can get wrong, before anything costly starts. Raises: UsageError."""
    if joint and zero_shot:
        raise UsageError("`joint` trains on everything and `zero_shot` on nothing: give one of them.")
    if seed < 0:
        raise UsageError(f"`seed` must be 0 or more, but got {seed}.")
    source = find_method(method)
    cls = source.load()
    parts = {f"method {source.name}": cls.Config, "the recipe": Recipe}
    shared = set(names_of(cls.Config)) & set(names_of(Recipe))
    if shared:
        raise UsageError(f"{source.name}: Config may not reuse names of the stream's recipe: {', '.join(shared)}.")
    found = load_stream(stream) if isinstance(stream, str) else stream
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
    for task in found.tasks:
        for split in SPLITS:
            if not len(read_manifest(task.manifest).clips(split)):
                raise UsageError(f"Task {task.name!r} of {found.name} has no {split} clips. Name some in its captions.")
    given = split_overrides(settings, parts)
    usual = split_overrides(cls.RECIPES.get(found.name.partition(":")[0], {}), parts)
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
    }


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
