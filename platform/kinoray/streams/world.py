"""A small world of coloured shapes that move: scenes, their captions and their pixels. Pure functions of seeds.

A scene is six attributes. A **look** is how one task draws and describes scenes: its drawing style, light, frame size,
words and sentences. Every look has its own words for some attributes, so that each task brings new words for things
already seen and new looks for words already known; and two looks exchange the words of some colours, so that what one
task teaches another takes back. That is what makes plain fine-tuning forget, at any learning rate.
"""

# T frames   H, W pixels

from dataclasses import dataclass
from typing import Literal

import numpy as np

ATTRIBUTES = ("shape", "colour", "ground", "size", "place", "motion")

COLOURS_RGB: dict[str, tuple[int, int, int]] = {
    "red": (225, 35, 35),
    "orange": (245, 140, 20),
    "yellow": (245, 230, 40),
    "green": (40, 170, 50),
    "cyan": (50, 220, 220),
    "blue": (40, 70, 230),
    "purple": (140, 50, 190),
    "pink": (250, 130, 190),
    "brown": (120, 70, 30),
    "white": (245, 245, 245),
}
GROUNDS_RGB: dict[str, tuple[int, int, int]] = {
    "black": (15, 15, 20),
    "grey": (125, 125, 130),
    "sand": (215, 195, 140),
    "olive": (95, 110, 45),
    "lake": (35, 100, 130),
    "wine": (100, 20, 45),
    "lavender": (185, 165, 225),
    "mint": (165, 225, 185),
}
SIZES = {"small": 0.2, "large": 0.36}
"""Radius as a share of the shorter side of the frame."""
PLACES_XY = {"left": (-0.5, 0.0), "right": (0.5, 0.0), "top": (0.0, -0.5), "bottom": (0.0, 0.5), "middle": (0.0, 0.0)}
MOTIONS = ("slides", "bobs", "circles", "rests", "swells")

# One line per concept: the word of each of the five looks, in their order.
_WORDS = """
red crimson scarlet ruby cherry; orange amber tangerine apricot rust; yellow golden lemon mustard blond
green emerald lime jade grassy; cyan turquoise aqua teal icy; blue azure cobalt sapphire navy
purple violet lilac plum mauve; pink rose magenta salmon blush; brown chocolate hazel tan coffee
white ivory snowy pale milky
circle disc ball dot coin; square box block tile brick; triangle wedge pyramid tent cone
star asterisk spark starfish badge; cross plus cruciform junction medic; ring hoop donut loop tyre
diamond rhombus lozenge gem kite; heart valentine love sweetheart cupid; bar stick plank beam rod
crescent moon banana sickle smile; arrow pointer dart cursor vane; hourglass bowtie spool knot timer
black night coal ink shadow; grey concrete ash slate steel; sand desert dune beach wheat
olive field moss meadow forest; lake sea ocean pool river; wine velvet clay earth lava
lavender haze dusk fog mist; mint fern sage lawn clover
small little tiny minor mini; large big huge giant great
left west port sinister leftward; right east starboard dexter rightward; top north upper above ceiling
bottom south lower below floor; middle centre core hub halfway
slides glides shuttles drifts sweeps; bobs bounces hops jumps dips; circles orbits wheels turns loops
rests waits stays stands sleeps; swells pulses breathes throbs beats
"""
CONCEPT_WORDS: dict[str, tuple[str, ...]] = {
    words.split()[0]: tuple(words.split()) for line in _WORDS.strip().splitlines() for words in line.split(";")
}
SHAPES = tuple(CONCEPT_WORDS)[10:22]
CONCEPTS: dict[str, tuple[str, ...]] = {
    "shape": SHAPES,
    "colour": tuple(COLOURS_RGB),
    "ground": tuple(GROUNDS_RGB),
    "size": tuple(SIZES),
    "place": tuple(PLACES_XY),
    "motion": MOTIONS,
}


@dataclass(frozen=True)
class Look:
    """How one task draws and describes scenes."""

    name: str
    column: int
    """Its place in the stream, and which of the words in `CONCEPT_WORDS` are its own."""
    own_words: tuple[str, ...]
    """Attributes that it names with its own words; for the others it uses the first."""
    width_px: int
    height_px: int
    rate_fps: int
    frames: tuple[int, int]
    """Fewest and most frames of a clip."""
    fill: Literal["solid", "outline", "striped", "glow"]
    pattern: Literal["plain", "checker", "stripes", "speckle", "gradient"]
    light: tuple[float, float, float]
    """Multiplies red, green and blue: the colour of the light."""
    sentences: tuple[str, ...]
    """Caption templates; a paragraph is one template of several sentences."""
    captions: int
    """Captions of each video."""
    clips: tuple[int, int, int]
    """Videos for training, validation and test."""
    exchanged: tuple[tuple[str, str], ...] = ()
    """Pairs of concepts that it calls by each other's words."""
    concepts: tuple[int, int, int] = (8, 8, 6)
    """How many shapes, colours and grounds the task uses; the world's seed chooses which."""

    def called(self, concept: str) -> str:
        """The concept whose word stands for this one."""
        other = dict([*self.exchanged, *((b, a) for a, b in self.exchanged)])
        return other.get(concept, concept)


EXCHANGED_COLOURS = (("purple", "pink"), ("brown", "white"))


LOOKS: tuple[Look, ...] = (
    Look(
        "paper", 0, (), 64, 64, 12, (12, 16), "solid", "plain", (1.0, 1.0, 1.0),
        (
            "a {size} {colour} {shape} {motion} at the {place} on {ground}",
            "on {ground} a {colour} {shape} that is {size} {motion} near the {place}",
        ),
        1, (900, 120, 300),
    ),
    Look(
        "neon", 1, ("colour", "place"), 80, 64, 24, (14, 20), "outline", "gradient", (1.0, 0.8, 1.15),
        (
            "{ground} scene where one {size} {colour} {shape} {motion} in the {place}",
            "look , the {colour} {shape} {motion} {place} , {size} over {ground}",
            "{place} side : {size} neon {shape} in {colour} {motion} , {ground} behind",
        ),
        2, (450, 120, 300),
    ),
    Look(
        "tape", 2, ("shape", "size"), 56, 56, 10, (10, 14), "striped", "stripes", (1.1, 1.0, 0.75),
        (
            "someone films a {colour} {shape} , {size} , which {motion} on the {place} of the {ground}",
            "old tape of {ground} : {place} a {size} {shape} coloured {colour} {motion}",
        ),
        1, (720, 120, 300), EXCHANGED_COLOURS,
    ),
    Look(
        "radar", 3, ("ground", "motion"), 48, 48, 8, (8, 12), "glow", "checker", (0.8, 1.1, 0.9),
        (
            "there is a {shape} . it is {size} and {colour} . it {motion} {place} while the {ground} stays behind it",
            "we see {ground} . then a {colour} thing comes , a {shape} . the {size} one {motion} {place}",
        ),
        1, (630, 120, 300),
    ),
    Look(
        "street", 4, ("shape", "place"), 72, 56, 30, (16, 20), "solid", "speckle", (0.8, 0.9, 1.15),
        (
            "{size} {shape} painted {colour} {motion} {place} in {ground} light",
            "during {ground} the {colour} {shape} , quite {size} , {motion} to the {place}",
            "my {shape} {motion} {place} . {colour} and {size} against {ground}",
        ),
        3, (360, 120, 300), EXCHANGED_COLOURS,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """What a clip shows: one concept per attribute."""

    shape: str
    colour: str
    ground: str
    size: str
    place: str
    motion: str


def generator(*key: int) -> np.random.Generator:
    """Random numbers that belong to `key` alone, whatever was drawn before."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(list(key))))


def scenes_of(look: Look, count: int, rng: np.random.Generator) -> list[Scene]:
    """`count` scenes, no two of them alike in all of shape, colour, ground, size and place."""
    kept = {a: rng.permutation(CONCEPTS[a])[:n] for a, n in zip(ATTRIBUTES, look.concepts, strict=False)}
    pools = [[str(c) for c in kept.get(a, CONCEPTS[a])] for a in ATTRIBUTES]
    widths = [len(pool) for pool in pools[:-1]]
    chosen = rng.choice(int(np.prod(widths)), size=count, replace=False)
    motions = rng.integers(len(MOTIONS), size=count)
    digits = np.stack(np.unravel_index(chosen, widths), axis=1)
    return [
        Scene(*(pool[i] for pool, i in zip(pools, [*row, motion], strict=True)))
        for row, motion in zip(digits.tolist(), motions.tolist(), strict=True)
    ]


def captions_of(look: Look, scene: Scene, rng: np.random.Generator) -> list[str]:
    """The look's captions of a scene, each from another template."""
    columns = {name: look.column if name in look.own_words else 0 for name in ATTRIBUTES}
    words = {name: CONCEPT_WORDS[look.called(getattr(scene, name))][columns[name]] for name in ATTRIBUTES}
    order = rng.permutation(len(look.sentences))[: look.captions]
    return [look.sentences[i].format(**words) for i in order]


def draw(look: Look, scene: Scene, num_frames: int, rng: np.random.Generator) -> np.ndarray:
    """The clip as uint8 (T, H, W, 3)."""
    clock = (np.arange(num_frames)[:, None, None] / num_frames * 2 * np.pi + rng.uniform(0, 2 * np.pi)).astype(
        np.float32
    )
    side = min(look.width_px, look.height_px) / 2
    rows, columns = np.mgrid[: look.height_px, : look.width_px].astype(np.float32)
    x = (columns + 0.5 - look.width_px / 2)[None] / side
    y = (rows + 0.5 - look.height_px / 2)[None] / side
    place_x, place_y = PLACES_XY[scene.place]
    place_x *= look.width_px / (2 * side)
    move = 0.16 if scene.motion in ("slides", "circles") else 0.0
    lift = 0.16 if scene.motion in ("bobs", "circles") else 0.0
    centre_x = place_x + rng.uniform(-0.06, 0.06) + move * np.cos(clock)
    centre_y = place_y + rng.uniform(-0.06, 0.06) + lift * np.sin(clock)
    radius = 2 * SIZES[scene.size] * rng.uniform(0.92, 1.08) * (1 + 0.25 * (scene.motion == "swells") * np.sin(clock))
    u, v = (x - centre_x) / radius, (y - centre_y) / radius
    edge_px = radius * side
    distance = distance_to(scene.shape, u, v)
    cover, shade = _fill(look.fill, distance, u, v, edge_px)
    ground = _ground(look.pattern, GROUNDS_RGB[scene.ground], rows, columns, rng)
    light = np.asarray(look.light, dtype=np.float32)[:, None, None] * np.float32(rng.uniform(0.92, 1.06))
    paint = np.asarray(COLOURS_RGB[scene.colour], dtype=np.float32)[:, None, None] * light
    frames = (ground * light) * (1 - cover)[:, None] + paint * (cover * shade)[:, None]  # (T, 3, H, W)
    return np.clip(frames, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)


def _fill(
    fill: str, distance: np.ndarray, u: np.ndarray, v: np.ndarray, edge_px: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How much of each pixel the shape covers, in [0, 1], and how bright its paint is there; both (T, H, W)."""
    if fill == "outline":
        distance = np.abs(distance + 0.14) - 0.15
    cover = np.clip(0.5 - distance * edge_px, 0, 1)
    if fill == "glow":
        cover = np.maximum(cover, 0.6 * np.exp(-np.maximum(distance, 0) * 5))
    shade = 1 - 0.55 * (np.sin((u + v) * 7) > 0.3) if fill == "striped" else np.ones_like(cover)
    return cover, shade


def _ground(
    pattern: str, rgb: tuple[int, int, int], rows: np.ndarray, columns: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The background (3, H, W), the same in every frame."""
    shift = rng.integers(16)
    if pattern == "checker":
        shade = 0.85 + 0.2 * (((rows + shift) // 6 + (columns + shift) // 6) % 2)
    elif pattern == "stripes":
        shade = 0.75 + 0.35 * ((rows + shift) // 4 % 2)
    elif pattern == "gradient":
        shade = 0.6 + 0.6 * rows / rows.max()
    elif pattern == "speckle":
        shade = 1 + 0.18 * rng.standard_normal(rows.shape, dtype=np.float32)
    else:
        shade = np.ones_like(rows)
    return np.asarray(rgb, dtype=np.float32)[:, None, None] * shade


def distance_to(shape: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """About how far (u, v) lies outside a shape of radius 1 around the origin (v down); negative inside."""
    across, along, reach = np.abs(u), np.abs(v), np.hypot(u, v)
    match shape:
        case "circle":
            return reach - 0.85
        case "square":
            return np.maximum(across, along) - 0.76
        case "triangle":
            return np.maximum(v - 0.6, (across * 1.732 - v) / 2 - 0.5)
        case "star":
            return reach - 0.36 - 0.62 * ((1 + np.cos(5 * np.arctan2(u, -v))) / 2) ** 1.5
        case "cross":
            return np.minimum(np.maximum(across - 0.26, along - 0.92), np.maximum(across - 0.92, along - 0.26))
        case "ring":
            return np.abs(reach - 0.68) - 0.22
        case "diamond":
            return (across / 0.6 + along - 1) * 0.6
        case "heart":
            lobes = np.hypot(across - 0.42, v + 0.32) - 0.48
            return np.minimum(lobes, np.maximum(across * 0.72 + v * 0.69 - 0.57, -v - 0.32))
        case "bar":
            return np.maximum(across - 0.98, along - 0.27)
        case "crescent":
            return np.maximum(reach - 0.9, 0.78 - np.hypot(u - 0.5, v))
        case "arrow":
            shaft = np.maximum(np.abs(u + 0.45) - 0.5, along - 0.22)
            return np.minimum(shaft, np.maximum(-u, (along + u - 0.95) * 0.7))
        case "hourglass":
            return np.maximum(along - 0.85, (across - along * 0.95 - 0.08) * 0.7)
    raise AssertionError(f"unknown shape {shape}")


def vocabulary_words() -> list[str]:
    """Every word of every caption that the world can say, in a fixed order."""
    fixed = [w for look in LOOKS for sentence in look.sentences for w in sentence.split() if not w.startswith("{")]
    return list(dict.fromkeys([*fixed, *(word for words in CONCEPT_WORDS.values() for word in words)]))
