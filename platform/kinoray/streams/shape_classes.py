"""Stills of the small world in twenty classes: four shapes, each filled in five ways. Pure functions of seeds.

Nothing but shape and fill tells classes apart: colour, ground, size, place, rotation and light are drawn anew for
every picture. So pixels say little of the class, and its features are there to be found. Shapes and colours are the
small world's (`world`), of which nothing changes by this.
"""

# H, W pixels   S samples of a pixel's side

import numpy as np

from kinoray.streams import world

SHAPES = ("circle", "square", "star", "bar")
"""Those of the world that differ most when turned and small."""
FILLS = ("solid", "striped", "checkered", "dotted", "ringed")
CLASSES = tuple(f"{fill} {shape}" for shape in SHAPES for fill in FILLS)
GROUNDS = ("plain", "gradient", "speckle")
SIDE_PX, SAMPLES = 32, 3
"""Side of a picture, and how many samples of a side are averaged in each pixel."""
TURN = 0.5
"""Largest rotation to either side, radians."""
PERIOD = 0.5
"""Of a fill's marks, as a share of the shape's radius."""
CONTRAST = 70.0
"""Least distance of a shape's colour from its ground's, in levels of 0 to 255: none is hidden."""


def draw(label: str, rng: np.random.Generator) -> np.ndarray:
    """A picture of a class, uint8 (32, 32, 3)."""
    fill, shape = label.split()
    ground, paint = _colour(rng), _colour(rng)
    while np.linalg.norm(paint - ground) < CONTRAST:
        paint = _colour(rng)
    x, y = _grid()
    radius = rng.uniform(0.6, 0.9)
    centre_x, centre_y = rng.uniform(-0.25, 0.25, size=2)
    u, v = _turned((x - centre_x) / radius, (y - centre_y) / radius, rng.uniform(-TURN, TURN))
    inside = world.distance_to(shape, u, v) < 0
    second = 0.35 * paint if paint.mean() > 110 else 0.35 * paint + 0.65 * 255
    painted = np.where(_marked(fill, u / PERIOD, v / PERIOD)[..., None], second, paint)
    shade = _shade(str(rng.choice(GROUNDS)), x, rng)
    levels = np.where(inside[..., None], painted, ground * shade[..., None]) * rng.uniform(0.75, 1.1)
    pixels = levels.reshape(SIDE_PX, SAMPLES, SIDE_PX, SAMPLES, 3).mean(axis=(1, 3))
    return (pixels + rng.normal(scale=4.0, size=pixels.shape)).clip(0, 255).astype(np.uint8)


def _colour(rng: np.random.Generator) -> np.ndarray:
    """A colour near one of the world's, of shapes or of grounds, (3,) levels: no two pictures share one."""
    named = [*world.COLOURS_RGB.values(), *world.GROUNDS_RGB.values()]
    return np.asarray(named[rng.integers(len(named))], dtype=np.float64) + rng.normal(scale=12.0, size=3)


def _marked(fill: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Which places of a shape have the second colour; u and v count periods."""
    match fill:
        case "striped":
            return (u + v) % 1 < 0.5
        case "checkered":
            return (u % 1 < 0.5) ^ (v % 1 < 0.5)
        case "dotted":
            return np.hypot(u % 1 - 0.5, v % 1 - 0.5) < 0.3
        case "ringed":
            return np.hypot(u, v) % 1 < 0.5
    return np.zeros(u.shape, dtype=bool)


def _shade(ground: str, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How bright the ground is at each place, of the shape of x."""
    match ground:
        case "gradient":
            return 0.85 + 0.25 * x * rng.choice((-1, 1))
        case "speckle":
            return 1 + 0.12 * np.kron(rng.standard_normal((SIDE_PX, SIDE_PX)), np.ones((SAMPLES, SAMPLES)))
    return np.ones_like(x)


def _turned(x: np.ndarray, y: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates in axes that are turned by an angle in radians."""
    return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)


def _grid() -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of the samples, (S * 32, S * 32) each, from -1 to 1, y down."""
    side = SIDE_PX * SAMPLES
    rows, columns = np.mgrid[:side, :side]
    return (columns + 0.5) / (side / 2) - 1, (rows + 0.5) / (side / 2) - 1
