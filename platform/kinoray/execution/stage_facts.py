"""A run before anything is learned: its method and its data, what the method grows by, and the seeds of its verbs."""

from collections.abc import Callable

import numpy as np

from kinoray.backbones import load_backbone
from kinoray.decoding.frame_cache import frame_cache
from kinoray.method import BaseMethod, TaskFacts
from kinoray.runs.run_spec import RunSpec, build_method
from kinoray.seeds import seed_of
from kinoray.training.batches import Feed
from kinoray.training.checkpoint import Position
from kinoray.training.distributed import World
from kinoray.training.stages import Stage


class StageFacts:
    """Seeds and facts of a run's stages; enough to let a method grow (`training.loop.grow`)."""

    def __init__(self, spec: RunSpec, feed: Feed, world: World) -> None:
        self.spec, self.feed, self.world = spec, feed, world

    def seed(self, stage: Stage, verb: str) -> int:
        """Seed of what a method draws between steps."""
        return seed_of(self.spec.run.seed, stage.train, stage.row, verb)

    def facts(self, stage: Stage) -> TaskFacts:
        """What the method grows by; zero-shot grows for the first task."""
        labels = self.feed.class_numbers(stage.grown)
        classes, earlier = np.unique(labels[labels >= 0]), map(self.feed.class_numbers, range(stage.grown))
        return TaskFacts(
            index=stage.grown,
            name=self.spec.train_names[stage.grown],
            num_tasks=self.spec.num_tasks,
            num_samples=len(labels),
            num_classes=len(classes),
            new_classes=len(set(classes.tolist()).difference(*earlier)),
            steps=self.feed.steps(stage.grown) if stage.train is not None else 0,
        )

    def stages_grown(self, position: Position) -> tuple[Stage, ...]:
        """The stages that a method has grown for at a position, the one that it is inside of included."""
        stages = self.spec.stages
        stage = stages[position.stage] if position.stage < len(stages) else None
        inside = stage is not None and stage.train is not None and position > Position(position.stage)
        return stages[: position.stage + inside]


def built(
    spec: RunSpec,
    world: World,
    report_bad: Callable[[list[dict[str, str]]], None] = lambda bad: None,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[BaseMethod, Feed]:
    """A run's method with its initial weights, on a rank's device, and the rank's reader of the run's stream."""
    run = spec.run
    towers = load_backbone(run.backbone, run.recipe.size_px, run.seed)
    method = build_method(spec, towers).to(world.device)
    feed = Feed(
        names=list(spec.train_names),
        manifests=[str(task.manifest) for task in spec.trained],
        recipe=run.recipe,
        needs=type(method).needs(method.config),
        seed=run.seed,
        num_tasks=spec.num_tasks,
        world=world,
        decode_slots=spec.decode_slots,
        towers=towers,
        report_bad=report_bad,
        note=note,
        cache=spec.cache or frame_cache(),
        reference=spec.reference,
    )
    return method, feed
