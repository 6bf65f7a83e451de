"""A program that plays Meta-World's scripted experts and draws what they do; `robots` starts it and asks it.

It runs by itself, in an environment that finds `metaworld` and OSMesa, and imports nothing of kinoray. A line of JSON
on its standard input asks for an episode (the arguments of `episode`); a line of JSON on its standard output answers
with the `shape` of the frames, whose bytes follow, or with what `failed`.

The motion of the object, from its first move until the expert has succeeded, is measured along its path: a window from
0.2 to 0.6 begins when a fifth of the path is done. Frames stand at equal times within the window.
"""

import json
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import metaworld
import mujoco
import numpy as np
from metaworld import policies

GOALS = 50
"""Episodes that Meta-World draws for one seed."""
LIMIT_STEPS = 300
"""An expert that has not succeeded by then has failed."""
STILL_M = 1e-4
"""An object that moves less in a step stands still."""
STATE = mujoco.mjtState.mjSTATE_PHYSICS


STAGES: dict[tuple[str, int], tuple[Any, Any, mujoco.Renderer]] = {}
"""At most one."""


def stage(task: str, size_px: int) -> tuple[Any, Any, mujoco.Renderer]:
    """Environment, expert and renderer of a task, as `door-open-v3`; those of the last task are kept."""
    if (task, size_px) not in STAGES:
        for _, _, renderer in STAGES.values():
            renderer.close()  # before the next one is made: it takes OSMesa's current context with it
        STAGES.clear()
        env = metaworld.MT1(task, seed=0).train_classes[task]()
        words = task.removesuffix("-v3").replace("peg-insert-", "peg-insertion-").split("-")
        expert = getattr(policies, f"Sawyer{''.join(map(str.capitalize, words))}V3Policy")()
        env.model.material("table_wood").texid[:] = -1  # plain; the renderer asks for it once
        STAGES[task, size_px] = env, expert, mujoco.Renderer(env.model, size_px, size_px)
    return STAGES[task, size_px]


@lru_cache(maxsize=1)
def goals(task: str, seed: int) -> list[Any]:
    """Places of the object and its goal, `GOALS` of them."""
    return metaworld.MT1(task, seed=seed).train_tasks


def played(env: Any, expert: Any, goal: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Every state (steps, values) and the object's place (steps, 3), metres; None where the expert fails."""
    env.set_task(goal)
    seen, _ = env.reset()
    states, places = [], []
    for _ in range(LIMIT_STEPS):
        seen, _, _, _, info = env.step(np.clip(expert.get_action(seen), -1, 1))
        states.append(np.empty(mujoco.mj_stateSize(env.model, STATE)))
        mujoco.mj_getState(env.model, env.data, states[-1], STATE)
        places.append(seen[4:7].copy())
        if info["success"]:
            return np.array(states), np.array(places)
    return None


def moments(places: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """When so much of the object's path is done (len(shares),), steps with fractions."""
    moves = np.linalg.norm(np.diff(places, axis=0), axis=1)
    path = np.concatenate([[0.0], np.cumsum(np.where(moves < STILL_M, 0.0, moves))])
    return np.interp(np.multiply(shares, path[-1]), path, np.arange(len(path)))


def episode(
    task: str,
    number: int,
    frames: int,
    size_px: int,
    window: Sequence[float],
    camera: dict[str, Any],
    table: Sequence[float],
    light: float,
) -> np.ndarray | None:
    """Frames (frames, size_px, size_px, 3) uint8 of the `number`-th episode of a task; None where the expert fails.

    window: two shares of the object's path. camera: azimuth and elevation in degrees, distance in metres from where it
    looks, which is so far `beside` (x, y and z in metres) the object in the middle of the window.
    table: its colour, red, green and blue in [0, 1]. light: brightness, 1 is Meta-World's.
    """
    env, expert, renderer = stage(task, size_px)
    play = played(env, expert, goals(task, number // GOALS)[number % GOALS])
    if play is None:
        return None
    states, places = play
    start, middle, end = moments(places, [window[0], sum(window) / 2, window[1]])
    view = mujoco.MjvCamera()
    view.lookat[:] = places[round(middle)] + camera["beside"]
    view.azimuth, view.elevation, view.distance = camera["azimuth"], camera["elevation"], camera["distance"]
    no_sites = mujoco.MjvOption()
    no_sites.sitegroup[:] = 0  # marks of goals would tell what the expert is about to do
    env.model.material("table_wood").rgba[:3] = table
    env.model.vis.headlight.ambient[:] = env.model.vis.headlight.diffuse[:] = 0.4 * light
    drawn = []
    for moment in np.linspace(start, end, frames):
        before = min(int(moment), len(states) - 2)
        part = moment - before
        mujoco.mj_setState(env.model, env.data, (1 - part) * states[before] + part * states[before + 1], STATE)
        mujoco.mj_forward(env.model, env.data)
        renderer.update_scene(env.data, view, no_sites)
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        drawn.append(renderer.render())
    return np.stack(drawn)


def main() -> None:
    """Answer until the input ends. What packages print goes to standard error, not between the answers."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            asked = json.loads(line)
            frames = episode(**asked)
            if frames is None:
                head = json.dumps({"failed": f"the expert of {asked['task']} fails in episode {asked['number']}"})
                answers.write(f"{head}\n".encode())
            else:
                answers.write(json.dumps({"shape": frames.shape}).encode() + b"\n" + frames.tobytes())
            answers.flush()


if __name__ == "__main__":
    main()
