"""`moving-retention`: looks of `moving-cvlm`, all tested before, while and after they are learned.

In three looks a clip's shape is told by its name in that look's words; in a fourth, captions find their clips. In the
fifth they do so, too, but it is held out: tested all the time and never learned. Clips, recipe and backbone are those
of `moving-cvlm`: the backbone knows all looks and words in part before the first task.
`moving-retention:3` is of world 3. `moving-retention:agnostic` and `moving-retention:3,agnostic` do not say which task
a test is of.
"""

from typing import Any

from kinoray.data.manifest import read_manifest
from kinoray.streams import Stream, moving, world
from kinoray.streams.prompts import class_task, pair_task, with_protocol
from kinoray.streams.rendering import world_seed_of

NAMES = ("moving-retention",)

PROMPTS = {
    "paper": ("a {}", "there is a {}"),
    "neon": ("look , the {}", "neon {}"),
    "tape": ("someone films a {}", "old tape of {}"),
}
"""Of the looks whose shapes are told, in words that the backbone knows."""


def load(name: str, argument: str) -> Stream:
    """The stream; the argument is the world seed, 0 if empty, and `agnostic`. Raises: UsageError for another one."""
    rest, protocol = with_protocol(argument)
    return build(world_seed=world_seed_of(name, rest), protocol=protocol)


def build(*rendering: Any, protocol: str = "retention", **named: Any) -> Stream:
    """The stream; all other arguments, and errors, are as `moving.build` has them."""
    plain = moving.build(*rendering, **named)
    looks = {look.name: look for look in moving.LOOKS[plain.name]}
    tasks = []
    for task in plain.tasks:
        look, manifest = looks[task.name], read_manifest(task.manifest)
        column = look.column if "shape" in look.own_words else 0
        shapes = {shape: world.CONCEPT_WORDS[shape][column] for shape in world.SHAPES}
        prompts = PROMPTS.get(task.name)
        tasks.append(class_task(task.name, manifest, prompts, shapes) if prompts else pair_task(task.name, manifest))
    return Stream(NAMES[0], protocol, tuple(tasks[:-1]), plain.recipe, plain.backbone, held_out=(tasks[-1],))
