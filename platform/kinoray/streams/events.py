"""Scenes in which something happens in time: twenty events in ten opposed pairs. Pure functions of seeds.

An event played backwards is its opposite, and none repeats itself; the two events of a pair happen to the same shapes,
colours and grounds. So what tells a pair's videos apart is the order of their frames. Shapes, colours, grounds and the
words and light of a look are the small world's (`world`), of which nothing changes by this.
"""

# T frames   H, W pixels

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kinoray.streams import world

PAIRS: tuple[tuple[str, str], ...] = (
    ("rises", "sinks"),
    ("advances", "retreats"),
    ("grows", "shrinks"),
    ("appears", "vanishes"),
    ("brightens", "darkens"),
    ("heats", "cools"),
    ("climbs", "tumbles"),
    ("opens", "closes"),
    ("multiplies", "unites"),
    ("loops", "unwinds"),
)
EVENTS: tuple[str, ...] = tuple(event for pair in PAIRS for event in pair)
"""Each is a category; an event and its opposite come one after the other, so to learn them is to learn an order."""
SENTENCES = (
    "a {colour} {shape} {event} on {ground}",
    "on {ground} the {colour} {shape} {event}",
    "we see how a {shape} in {colour} {event} over {ground}",
    "{ground} , and a {colour} {shape} which {event}",
)
THEN = " , then it {event}"
"""How a longer video goes on."""
WIDTH_PX = HEIGHT_PX = 64
RATE_FPS = 12
LOOKS = tuple(replace(look, exchanged=()) for look in world.LOOKS)
"""The small world's, of which none takes another one's words."""
POOLS = (2, 10, 6)
"""How many shapes, colours and grounds a world has: few enough that they alone tell no two videos of it apart."""
FILM = np.array([(0.9, 0.1, 0.0), (0.0, 0.9, 0.1), (0.1, 0.0, 0.9)], np.float32)
"""What a stream's camera makes of red, green and blue: it leaks a part of each into the next one. All of its tasks
share it and no pre-training has seen it, so what a task teaches of it serves the others."""
HOT, COLD = np.array((255.0, 90.0, 0.0), np.float32), np.array((0.0, 120.0, 255.0), np.float32)


@dataclass(frozen=True)
class EventScene:
    """What a clip shows: a shape on a ground, and the events one after the other."""

    shape: str
    colour: str
    ground: str
    events: tuple[str, ...]

    @property
    def shown(self) -> tuple[str, str, str]:
        """All but what happens."""
        return self.shape, self.colour, self.ground


def look_of(category: str) -> world.Look:
    """How a pair of events is lit and described: one of the small world's five looks."""
    return LOOKS[EVENTS.index(category) // 2 % len(LOOKS)]


def scenes_of(
    category: str, count: int, events: int, world_seed: int, sizes: tuple[int, int, int] = POOLS
) -> list[EventScene]:
    """`count` scenes whose first event is the category, no two alike in shape, colour and ground.

    events: how many follow each other; the later ones are drawn, none the opposite of the one before. sizes: of the
    world's pools of shapes, colours and grounds, as `POOLS`.
    """
    attributes = (world.SHAPES, tuple(world.COLOURS_RGB), tuple(world.GROUNDS_RGB))
    rng = world.generator(world_seed, 100)
    pools = [rng.permutation(concepts)[:n].tolist() for concepts, n in zip(attributes, sizes, strict=True)]
    rng = world.generator(world_seed, 101, EVENTS.index(category) // 2)
    chosen = rng.choice(int(np.prod(sizes)), size=count, replace=False)
    digits = np.stack(np.unravel_index(chosen, sizes), axis=1).tolist()
    scenes = []
    for row in digits:
        happening = [category]
        while len(happening) < events:
            following = [event for event in EVENTS if event not in (happening[-1], opposite(happening[-1]))]
            happening.append(str(rng.choice(following)))
        shape, colour, ground = (pool[i] for pool, i in zip(pools, row, strict=True))
        scenes.append(EventScene(shape, colour, ground, tuple(happening)))
    return scenes


def pair_of(event: str) -> tuple[str, str]:
    """The event and its opposite, as they stand in `PAIRS`."""
    return next(pair for pair in PAIRS if event in pair)


def opposite(event: str) -> str:
    """The event that it is when played backwards."""
    return EVENTS[EVENTS.index(event) ^ 1]


def captions_of(scene: EventScene, count: int, rng: np.random.Generator, look: world.Look | None = None) -> list[str]:
    """Captions of a scene, each from another sentence, with the words of its look, or of the one given."""
    look = look or look_of(scene.events[0])
    words = {"event": scene.events[0]}
    for attribute in ("shape", "colour", "ground"):
        column = look.column if attribute in look.own_words else 0
        words[attribute] = world.CONCEPT_WORDS[look.called(getattr(scene, attribute))][column]
    later = "".join(THEN.format(event=event) for event in scene.events[1:])
    return [SENTENCES[i].format(**words) + later for i in rng.permutation(len(SENTENCES))[:count]]


def draw(scene: EventScene, num_frames: int, rng: np.random.Generator) -> np.ndarray:
    """The clip as uint8 (T, H, W, 3)."""
    start, noise = rng.uniform(-0.1, 0.1, size=2), rng.uniform(0.92, 1.08, size=2)
    parts = np.array_split(np.arange(num_frames), len(scene.events))
    frames = [
        _draw_event(scene, event, np.linspace(0, 1, len(part), dtype=np.float32), start, noise)
        for event, part in zip(scene.events, parts, strict=True)
    ]
    light = np.asarray(look_of(scene.events[0]).light, dtype=np.float32)[:, None, None]
    return np.clip(np.concatenate(frames) * light, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)


def filmed(frames_THW3: np.ndarray) -> np.ndarray:
    """The clip, uint8, as a stream's camera sees it (`FILM`)."""
    return (frames_THW3.astype(np.float32) @ FILM).round().astype(np.uint8)


def _draw_event(scene: EventScene, event: str, time_T: np.ndarray, start: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The frames (T, 3, H, W) of one event; time goes from 0 to 1, backwards for the second of a pair."""
    forward, backward = pair_of(event)
    t = (1 - time_T if event == backward else time_T)[:, None, None]
    x, y = _grid()
    rest = 0 * t
    centre_x, centre_y, radius, cover_share, light = start[0] + rest, start[1] + rest, 0.42 + rest, 1 + rest, 1 + rest
    paint = np.asarray(world.COLOURS_RGB[scene.colour], dtype=np.float32) * noise[0]
    paints = np.broadcast_to(paint[None, :, None, None], (len(time_T), 3, 1, 1))
    copies: Sequence[np.ndarray] = (rest,)
    match forward:
        case "rises":
            centre_y = 0.55 - 1.1 * t
        case "advances":
            centre_x = -0.55 + 1.1 * t
        case "climbs":
            centre_x, centre_y = -0.5 + t, 0.5 - t
        case "loops":  # half a circle over the top
            centre_x, centre_y = -0.5 * np.cos(np.pi * t), 0.2 - 0.55 * np.sin(np.pi * t)
        case "grows":
            radius = 0.16 + 0.5 * t
        case "appears":
            cover_share = t
        case "brightens":
            light = 0.25 + 0.9 * t
        case "heats":
            share = t[:, None]
            paints = 0.4 * paints + 0.6 * ((1 - share) * COLD[:, None, None] + share * HOT[:, None, None])
        case "multiplies":  # one becomes two
            copies, radius = (-0.45 * t, 0.45 * t), 0.36 + rest
    cover = np.zeros((len(time_T), HEIGHT_PX, WIDTH_PX), dtype=np.float32)
    for offset in copies:
        u, v = (x - centre_x - offset) / (radius * noise[1]), (y - centre_y) / (radius * noise[1])
        distance = world.distance_to(scene.shape, u, v)
        if forward == "opens":  # from full to a rim
            distance = np.maximum(distance, -(distance + 0.12 + 0.8 * (1 - t)))
        cover = np.maximum(cover, np.clip(0.5 - distance * radius * noise[1] * HEIGHT_PX / 2, 0, 1))
    cover = (cover * cover_share)[:, None]
    ground = np.asarray(world.GROUNDS_RGB[scene.ground], dtype=np.float32)[None, :, None, None]
    return (ground * (1 - cover) + paints * cover) * light[:, None]


def _grid() -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of the pixels, (1, H, W) each, from -1 to 1."""
    rows, columns = np.mgrid[:HEIGHT_PX, :WIDTH_PX].astype(np.float32)
    return (columns[None] + 0.5) / (WIDTH_PX / 2) - 1, (rows[None] + 0.5) / (HEIGHT_PX / 2) - 1


def vocabulary_words() -> list[str]:
    """Every word that sentences and events bring, in a fixed order."""
    sentences = [word for text in (*SENTENCES, THEN) for word in text.split() if not word.startswith("{")]
    return list(dict.fromkeys([*sentences, *EVENTS]))
