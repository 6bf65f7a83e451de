"""What a sweep of simple replay explores: one line per knob, with its reason."""

SPACE = {
    "exemplars_per_class": {"choices": [5, 10, 20, 50]},  # the paper's 20
}

SPACES: dict[str, dict] = {
    "budget": {  # the rule has no weight, and its memory is part of the setting: its learner's own search
        "learning_rate": {"choices": [0.005, 0.01, 0.02]},
        "temperature": {"choices": [0.1, 0.2]},
    },
}
