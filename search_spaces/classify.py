"""What a sweep of a classifier explores: one line per knob, with its reason."""

SPACE = {
    "train": {"choices": ["all", "head"]},  # fine-tuning, or the linear probe
    "frozen_norm": {"choices": [False, True]},  # the paper is silent, the code freezes it
}

SPACES = {
    "probe": {  # MoCo's linear classification; the best rate depends on how long the features are
        "train": "head",
        "epochs": 100,
        "batch_size": 256,
        "schedule": "steps",
        "milestones": (60, 80),
        "weight_decay": 0.0,
        "learning_rate": {"low": 0.1, "high": 100.0, "log": True},  # MoCo 30
    },
    "fine-tune": {
        "train": "all",
        "learning_rate": {"low": 1e-4, "high": 0.1, "log": True},  # the paper 0.05, the code 0.005
    },
}
