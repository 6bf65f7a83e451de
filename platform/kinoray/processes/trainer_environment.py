"""What environment a trainer gives its processes."""

import json

from ray.runtime_env import RuntimeEnv

from kinoray.processes.ray_settings import trainer_variables


class MergedEnvironment(RuntimeEnv):
    """An environment in the very characters that Ray's core writes where it merges a job's with an actor's own.

    Ray lends an idle worker only for the same characters, and Python's and its core's JSON differ in their spaces: a
    trainer's processes, which merge, would never take one that was started, or asked for, by Python's.
    """

    def serialize(self) -> str:
        return json.dumps(self, sort_keys=True, separators=(",", ":"))


def trainer_environment() -> RuntimeEnv:
    """What a trainer sets for its processes. Given to a whole job, all its processes are of one kind, and any idle
    worker that has it serves for any of them."""
    return MergedEnvironment(env_vars=trainer_variables())
