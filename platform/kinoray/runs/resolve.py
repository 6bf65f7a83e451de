"""From a command to a run: which method, stream, settings and folder. Nothing starts here.

Also what the method asks of the plan, which numbers of workers that divides over, and what it grows by in each task.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kinoray.backbones import (
    backbone_class,
    backbones_of,
    check_backbone,
    check_clips,
    check_weights,
    find_backbone,
    weights_digest,
    with_home,
)
from kinoray.backbones.backbone import BlockTowers
from kinoray.backbones.encoded import read_made
from kinoray.backbones.features import encoded_file
from kinoray.config import Recipe, build, differing, digest_of, names_of, plain, split_overrides
from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.data.memory import PROPORTION_ROWS
from kinoray.data.plan import rank_slice, steps_for
from kinoray.data.presets import preset_of
from kinoray.decoding.pictures import media_of
from kinoray.errors import UsageError
from kinoray.evaluation.protocol import BaseProtocol, load_protocol, protocol_names
from kinoray.method import BaseMethod, Needs, TaskFacts
from kinoray.runs.controls import NONE, Control, control_of
from kinoray.runs.method_source import MethodSource, find_method, with_learner
from kinoray.runs.request import RunRequest
from kinoray.source import OwnName, named
from kinoray.streams import Stream, family_of, load_stream
from kinoray.streams.encoded import check_made_by, with_features
from kinoray.streams.orders import count_orders, in_order, own_tasks
from kinoray.streams.rendering import checked_first, nothing_rendered
from kinoray.system.durable import read_json
from kinoray.system.folders import expanded, home_of, runs_root, seed_folder, seed_label
from kinoray.training.stages import Stage
from kinoray.training.verbs import checked_needs

VECTORS_RECIPE = {"augmentation": "none", "size_px": 32}
"""What vectors of frames need of a recipe: no augmentation. Their size says nothing, but is part of runs' names."""


EQUAL_FLOPS_FILE = "equal_flops.json"
"""In the folder of a run on a budget: what was counted, and the steps that follow."""


@dataclass(frozen=True)
class Budget:
    """The method whose floating-point operations a run takes (`--equal-flops METHOD`), by its own default settings.

    Stream, backbone, recipe and seed are the run's; `execution/equal_flops.py` counts before the first step.
    """

    method: MethodSource
    settings: dict[str, Any]
    reference: Stream | None
    """The reference set that it asks for."""


@dataclass(frozen=True)
class Counted:
    """What was counted for a run on a budget, task by task."""

    steps: list[int]
    step_flops: list[int]
    """Operations of a step of the run."""
    of_method: list[int]
    """Operations of a step of the other method."""


def read_counted(folder: Path) -> Counted | None:
    """What was counted for the run of a folder; None before it was. Raises: Damaged."""
    path = folder / EQUAL_FLOPS_FILE
    if not path.is_file():
        return None
    return Counted(**read_json(path, "Start over with --fresh.", dict.fromkeys(names_of(Counted))))


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
    control: Control = NONE
    """What of it is changed, for others to be held against."""
    as_released: bool = False
    """Whether the method's `RELEASED` settings stand where its paper's would."""
    reference: Stream | None = None
    """The reference set that the method asks for."""
    budget: Budget | None = None
    """The method whose floating-point operations it takes; None: its steps are the recipe's."""

    @property
    def label(self) -> str:
        """Run folder, order of tasks and seed, the run's name."""
        return seed_label(self.folder)

    @property
    def one_for_all(self) -> bool:
        """Whether all tasks are learned at once, or none: then their order means nothing."""
        return self.joint or self.zero_shot

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What is learned and tested, in order."""
        tasks, held_out = len(self.stream.tasks), len(self.stream.held_out)
        return load_protocol(self.stream.protocol).stages(tasks, self.joint, self.zero_shot, held_out)

    @property
    def looks_ahead(self) -> bool:
        """Whether tasks are tested that are not learned yet: then its ranks depend on all tasks of the stream."""
        return load_protocol(self.stream.protocol).looks_ahead

    @property
    def steps(self) -> list[int]:
        """Optimizer steps of each training stage; of a run on a budget the recipe's until they are counted."""
        counted = read_counted(self.folder) if self.budget else None
        return counted.steps if counted else self.usual_steps

    @property
    def beside(self) -> tuple[Stream, ...]:
        """What is read beside the stream: reference sets."""
        return tuple(filter(None, [self.reference, self.budget.reference if self.budget else None]))

    @property
    def usual_steps(self) -> list[int]:
        """Those of the recipe."""
        if self.zero_shot:
            return []
        counts = [len(read_manifest(t.manifest).samples("train")[0]) for t in self.stream.tasks]
        recipe, counts = self.recipe, [sum(counts)] if self.joint else counts
        return [steps_for(recipe.epochs, count, recipe.batch_size, recipe.max_steps) for count in counts]


def resolve(request: RunRequest, seed: int | None = None) -> Resolved:
    """Check everything a user can get wrong, before anything costly starts.

    seed: of which of the request's runs; by default its first. Raises: UsageError.
    """
    with checked_first(lambda: _resolve(request, seed)):
        return _resolve(request, seed)


def _resolve(request: RunRequest, seed: int | None) -> Resolved:
    method = find_method(request.method)  # before a stream is made: a wrong name costs nothing
    encoded_as = _features(request)
    with nothing_rendered() if encoded_as else nullcontext():
        stream = load_stream(request.stream) if isinstance(request.stream, str) else request.stream
        stream = tested(with_features(stream, encoded_as), method)
    if stream.protocol not in protocol_names() and not isinstance(stream.protocol, OwnName):
        raise UsageError(
            f"{stream.name} is tested by the protocol {stream.protocol!r}, which does not exist. Known: "
            f"{', '.join(protocol_names())}."
        )
    source = with_learner(method, stream.protocol)
    cls = source.load()
    backbone = encoded_as or find_backbone(request.backbone or stream.backbone)
    check_backbone(backbone)
    check_weights(backbone)
    if load_protocol(stream.protocol).reads_text and not backbone_class(backbone).tokenizes:
        raise UsageError(
            f"{stream.name} is tested by text retrieval, but the backbone {backbone} reads no text; `kinoray list "
            "backbones` names those that do."
        )
    _check_suits(cls, source.name, stream, backbone)
    _check_media(stream, backbone)
    _check_splits(stream)
    budget = _budget(request.equal_flops, stream, backbone) if request.equal_flops is not None else None
    config, recipe, overrides = _configured(request, cls, source.name, stream, backbone)
    _check_recipe(recipe, cls, source.name, backbone)
    control = _checked_control(request.control, stream, backbone, recipe)
    needs = cls.needs(config)  # a rule and its learner may ask the plan for two things that exclude each other
    reference = _reference(needs)
    if reference is not None:
        _check_media(replace(reference, name=f"the reference set of {source.name}, {reference.name},"), backbone)
    resolved = Resolved(
        folder=Path(),
        method=source,
        stream=stream,
        backbone=backbone,
        seed=request.seed if seed is None else seed,
        settings=plain(config),
        recipe=replace(recipe, learning_rate=recipe.learning_rate / control.rate),
        overrides=overrides,
        joint=request.joint or control.joint,
        zero_shot=request.zero_shot or control.zero_shot,
        control=control,
        as_released=request.as_released,
        reference=reference,
        budget=budget,
    )
    as_many = f"flops-of-{budget.method.name}" if budget else ""
    words = "-".join(filter(None, [source.name, control.name, as_many, stream.name]))
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", words).strip("-.")
    folder = runs_root(request.runs).absolute() / f"{stem}-{digest_of(named_by(resolved))[:8]}"
    return replace(resolved, folder=seed_folder(folder, resolved.seed, stream.order))


def _features(request: RunRequest) -> str:
    """The backbone that an encoded file is, "" where the request names none. Raises: UsageError."""
    if request.features is None:
        given = with_home(request.backbone) if isinstance(request.backbone, str) else ""
        return given if given and encoded_file(given) else ""
    file = expanded(request.features).absolute()
    read_made(file)
    if request.backbone is not None:
        check_made_by(str(request.backbone), file)
    return f"features:{file}"


def _check_recipe(recipe: Recipe, cls: type[BaseMethod], name: str, backbone: str) -> None:
    """Raises: UsageError for clips that the backbone cannot take, and blocks that cannot be computed again."""
    for frames in (recipe.frames, recipe.test_frames):
        check_clips(backbone, recipe.size_px, frames)
    if recipe.checkpoint_activations and issubclass(cls.backbones, BlockTowers):
        raise UsageError(
            f"{name} changes a tower's blocks for each batch, which checkpoint_activations cannot repeat. Leave that "
            "setting out."
        )


def _check_splits(stream: Stream) -> None:
    """Raises: UsageError for a task without clips of a split, and for held-out sets that cannot be tested."""
    for task in stream.tasks:
        for split in SPLITS:
            if not len(read_manifest(task.manifest).clips(split)):
                raise UsageError(f"Task {task.name!r} of {stream.name} has no {split} clips. Add some to its captions.")
    names = [data.name for data in (*stream.tasks, *stream.held_out)]
    if stream.held_out and not load_protocol(stream.protocol).looks_ahead:
        raise UsageError(f"{stream.name} has held-out sets, but its protocol {stream.protocol} does not test any.")
    for data in stream.held_out:
        if names.count(data.name) > 1 or not len(read_manifest(data.manifest).clips("test")):
            raise UsageError(f"The held-out set {data.name!r} of {stream.name} needs a name of its own and test clips.")


def _checked_control(name: str, stream: Stream, backbone: str, recipe: Recipe) -> Control:
    """The control of a run. Raises: UsageError for one that changes nothing there."""
    control = control_of(name)
    why = ""
    if backbone_class(backbone).reads_vectors and (control.is_fresh or control.order):
        why = "its towers are frozen, and what they made of each clip is given"
    elif control.order and max(recipe.frames, recipe.test_frames) == 1:
        why = "a clip is one frame"
    elif control.order and all(media_of(read_manifest(task.manifest).clip(0)) != "video" for task in stream.tasks):
        why = "its clips are pictures"
    if why:
        raise UsageError(f"`control` {name} has no meaning on {stream.name} with {backbone}: {why}. Choose another.")
    return control


def _budget(method: Any, stream: Stream, backbone: str) -> Budget:
    """The method whose operations a run takes, by its defaults on the stream.

    Raises: UsageError for an unknown one, one that does not suit the stream, and a class of a running program, without
    which the run could not be opened again.
    """
    source = with_learner(find_method(method), stream.protocol)
    if any(part.pickled is not None for part in source.files):
        raise UsageError(f"`equal_flops` {source.name} is a class: give a name, or the path of its file.")
    cls = source.load()
    _check_suits(cls, source.name, stream, backbone)
    parts = {f"method {source.name}": cls.Config, "the recipe": Recipe}
    own, _ = split_overrides(settings_for(cls.RECIPES, stream), parts).values()
    config: Any = build(cls.Config, own, f"method {source.name}")
    return Budget(source, plain(config), _reference(cls.needs(config)))


def _reference(needs: Needs) -> Stream | None:
    """The reference set that a method asks for."""
    return load_stream(needs.reference.source) if needs.reference is not None else None


def _configured(
    request: RunRequest, cls: type[BaseMethod], name: str, stream: Stream, backbone: str
) -> tuple[Any, Recipe, dict[str, Any]]:
    """Config of the method and recipe, as asked; and what of them differs from what both would be by themselves."""
    parts = {f"method {name}": cls.Config, "the recipe": Recipe}
    shared = set(names_of(cls.Config)) & set(names_of(Recipe))
    if shared:
        raise UsageError(f"{name}: a recipe has the settings {', '.join(shared)}, too. Rename them in Config.")
    given = split_overrides(request.settings, parts)
    released = _released(cls, name, stream) if request.as_released else {}
    plain_frames = VECTORS_RECIPE if backbone_class(backbone).reads_vectors else {}
    file = encoded_file(backbone)
    as_encoded = read_made(file).recipe if file else {}
    usual = split_overrides(settings_for(cls.RECIPES, stream) | released | plain_frames | as_encoded, parts)
    method_part, recipe_part = parts
    usual_config: Any = build(cls.Config, usual[method_part], method_part)
    usual_recipe = build(Recipe, plain(stream.recipe) | usual[recipe_part], recipe_part)
    if request.smoke:
        given[recipe_part] = {"max_steps": 2, "validations": 1} | given[recipe_part]
    config: Any = build(cls.Config, usual[method_part] | given[method_part], method_part)
    recipe = build(Recipe, plain(usual_recipe) | given[recipe_part], recipe_part)
    preset_of(recipe)
    if plain_frames and recipe.augmentation != plain_frames["augmentation"]:
        raise UsageError(f"augmentation={recipe.augmentation!r} would damage vectors of frames: leave it out.")
    for name, then in as_encoded.items():
        if (asked := getattr(recipe, name)) != then:
            raise UsageError(
                f"{file} was made with {name}={then}, but the run asks for {asked}. Leave {name} out, or encode again."
            )
    overrides = {
        key: value
        for old, new in ((usual_config, config), (usual_recipe, recipe))
        for key, value in plain(new).items()
        if value != plain(old)[key]
    }
    return config, recipe, overrides


def each_run(request: RunRequest) -> list[Resolved]:
    """All runs of a request, checked as one, order by order of the tasks. Raises: UsageError."""
    first = resolve(request)
    streams = [first.stream]
    if request.orders is not None and not first.one_for_all:
        streams = [in_order(first.stream, number) for number in range(count_orders(first.stream, request.orders))]
    home = home_of(first.folder)
    return [
        replace(first, stream=stream, seed=seed, folder=seed_folder(home, seed, stream.order))
        for stream in streams
        for seed in request.all_seeds
    ]


def tested(stream: Stream, method: MethodSource) -> Stream:
    """The stream under the protocol that tests a method on it: a method, of a rule its learner, that does not suit the
    stream's own may bring one."""
    cls = method.files[-1].load()
    given = stream.protocol if stream.protocol in cls.suits else cls.tested_by or stream.protocol
    return replace(stream, protocol=named(given, "protocol", BaseProtocol))


def named_by(run: Resolved) -> dict[str, Any]:
    """What makes two runs the same but for the seed and the order of the tasks: the hash of the folder's name.

    Of settings only what differs from the defaults of the classes, so that a new field renames no run. A user's own
    method, backbone and protocol count with their code; of what comes with kinoray the name stands for all its
    versions.
    """
    return {
        "method": [run.method.name, *run.method.own_digests] if run.method.is_own else run.method.name,
        "stream": run.stream.name,
        "backbone": [run.backbone, weights_digest(run.backbone)],
        "joint": run.joint,
        "zero_shot": run.zero_shot,
        "settings": differing(run.settings, run.method.load().Config),
        "recipe": differing(plain(run.recipe), Recipe),
        "data": [[task.name, read_manifest(task.manifest).digest] for task in own_tasks(run.stream)],
        **{f"{kind}_source": name.source.digest for kind, name in own_parts(run).items()},
        **({"held_out": held_out_digests(run.stream)} if run.stream.held_out else {}),
        **({"control": run.control.name} if run.control.name else {}),
        **({"as_released": True} if run.as_released else {}),
        **({"equal_flops": [run.budget.method.name, *run.budget.method.own_digests]} if run.budget else {}),
        **({"reference": [read_manifest(t.manifest).digest for t in run.reference.tasks]} if run.reference else {}),
    }


def own_parts(run: Resolved) -> dict[str, OwnName]:
    """The user's own backbone and protocol of a run, where it has them."""
    parts = {"backbone": run.backbone, "protocol": run.stream.protocol}
    return {kind: name for kind, name in parts.items() if isinstance(name, OwnName)}


def held_out_digests(stream: Stream) -> dict[str, str]:
    """Digest of each held-out set, by name."""
    return {data.name: read_manifest(data.manifest).digest for data in stream.held_out}


def _check_suits(cls: type[BaseMethod], name: str, stream: Stream, backbone: str) -> None:
    """Refuse a method on a stream that is tested in another way, on data without the labels that it needs, or on a
    backbone of another kind than it is for.

    Raises: UsageError.
    """
    if cls.suits and not {stream.protocol, load_protocol(stream.protocol).like} & {*cls.suits}:
        raise UsageError(
            f"{name} needs a stream tested by {' or '.join(cls.suits)}, but {stream.name} is tested by "
            f"{stream.protocol}. Choose another method, or another stream."
        )
    for data in (*stream.tasks, *stream.held_out) if cls.needs_labels else ():
        manifest = read_manifest(data.manifest)
        if not any(manifest.labels(manifest.clips("train" if data in stream.tasks else "test"))):
            raise UsageError(f"{name} learns by labels, but {data.name!r} of {stream.name} has none. Add some.")
    kind = backbone_class(backbone)
    if kind.reads_vectors and (cls.acts_inside or not issubclass(kind, cls.backbones)):
        raise UsageError(
            f"{name} needs the layers of a {cls.backbones.__name__}, but {backbone} gives stored outputs alone. Run it "
            "on the clips, with a full backbone."
        )
    if not issubclass(kind, cls.backbones):
        raise UsageError(
            f"{name} builds on a {cls.backbones.__name__}, but the backbone {backbone} is a "
            f"{kind.__name__}. Take one of {', '.join(backbones_of(cls.backbones))} (`kinoray list backbones`)."
        )


def _check_media(stream: Stream, backbone: str) -> None:
    """Refuse videos for a backbone that takes vectors of frames, and the other way round. Raises: UsageError."""
    wanted = backbone_class(backbone).reads_vectors
    for task in (*stream.tasks, *stream.held_out):
        manifest = read_manifest(task.manifest)
        if wanted and manifest.num_vectors < manifest.table.num_rows:
            raise UsageError(
                f"{backbone} takes vectors of frames (.npy), but task {task.name!r} of {stream.name} has videos or "
                "pictures. Name a backbone with a video tower."
            )
        if not wanted and manifest.num_vectors:
            raise UsageError(
                f"Task {task.name!r} of {stream.name} has vectors of frames (.npy), which {backbone} cannot see. Use "
                "--backbone features:BACKBONE, such as features:clip."
            )


def settings_for(by_stream: Mapping[str, dict[str, Any]], stream: Stream) -> dict[str, Any]:
    """What `RECIPES` or `RELEASED` say for a stream, the later ones winning: of every stream (""), of the protocol that
    its own is like and of its own ("protocol:NAME"), of names like its own ("shapes-*"), and of its own name.

    Names are without an argument or a downstream set.
    """
    name = family_of(stream.name)
    alike = [key for key in by_stream if "*" in key and fnmatchcase(name, key)]
    protocols = load_protocol(stream.protocol).like, stream.protocol
    keys = ["", *(f"protocol:{protocol}" for protocol in protocols), *alike, name]
    return {setting: value for key in keys for setting, value in by_stream.get(key, {}).items()}


def _released(cls: type[BaseMethod], name: str, stream: Stream) -> dict[str, Any]:
    """The settings of a method's released code for a stream. Raises: UsageError where it states none."""
    settings = settings_for(cls.RELEASED, stream)
    if not settings:
        known = ", ".join(cls.RELEASED)
        where = f"for {stream.name}, only for {known}" if known else "(`RELEASED` beside its `RECIPES`)"
        raise UsageError(f"{name} lists no settings of the authors' code {where}. Leave out `as_released`.")
    return settings


def needs_of(run: Resolved | Budget) -> Needs:
    """What the method asks of the plan."""
    cls = run.method.load()
    return checked_needs(cls.needs(cls.Config(**run.settings)))


def counts_tasks(run: Resolved) -> bool:
    """Whether the number of tasks can reach the state: the method states it, or its ring memory shares slots by it."""
    replay = needs_of(run).replay
    return run.method.load().uses_num_tasks or (replay is not None and replay.policy == "ring")


def check_division(run: Resolved, workers: int) -> None:
    """Refuse a run whose rows of a step, current or replayed, do not divide over its workers.

    Raises: UsageError with the nearest counts that do.
    """
    rank_slice(run.recipe.batch_size, 0, workers)
    for needs in (needs_of(run), *([needs_of(run.budget)] if run.budget else [])):
        if needs.reference is not None:
            rank_slice(needs.reference.rows or run.recipe.batch_size, 0, workers, "reference rows")
        replay = needs.replay
        if replay and replay.rows is not None:  # None: as many as the current rows
            rank_slice(replay.rows or PROPORTION_ROWS, 0, workers, "replayed rows")  # rows=0: a multiple of it


def default_workers(runs: Sequence[Resolved], gpus: int) -> int:
    """Workers where the user names no number: as many as there are GPUs, or the next fewer that the rows of a step
    divide over; without GPUs one."""
    for workers in range(gpus, 1, -1):
        try:
            for run in runs:
                check_division(run, workers)
        except UsageError:
            continue
        return workers
    return 1


def facts_of(run: Resolved) -> list[TaskFacts]:
    """What the method grows by in each task of the stream, as far as it is known before the run."""
    tasks = run.stream.tasks
    facts, known = [], set[str | None]()
    for index, (task, steps) in enumerate(zip(tasks, run.steps, strict=True)):
        manifest = read_manifest(task.manifest)
        labels = manifest.labels(manifest.samples("train")[0])
        classes = set(labels) - {None}
        facts.append(
            TaskFacts(
                index=index,
                name=task.name,
                num_tasks=max(len(tasks), run.recipe.planned_tasks),
                num_samples=len(labels),
                num_classes=len(classes),
                steps=steps,
                new_classes=len(classes - known),
            )
        )
        known |= classes
    return facts
