"""What Ray is told by variables; read also by who shall not import it."""

import os

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_oom_retries": "2",  # without end by default
    "RAY_raylet_client_connect_timeout_milliseconds": "20",  # a raylet looks so often whether its own store has started
    "RAY_raylet_client_num_connect_attempts": "500",  # for 10 s in all, as by default, which is every second
}
"""Set before Ray starts where the user has not set them."""
TRAINER_PREFIX = "RAY_TRAIN_"
BLOCKING = "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"
"""What a trainer gives its processes by itself, with "0" where nobody set it."""


def apply_settings() -> None:
    """Set `RAY_SETTINGS` for this process and those that it starts."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)


def trainer_variables() -> dict[str, str]:
    """Of the environment that a trainer's processes have."""
    settings = {name: os.environ[name] for name in RAY_SETTINGS if name.startswith(TRAINER_PREFIX)}
    return settings | {BLOCKING: os.environ.get(BLOCKING, "0")}
