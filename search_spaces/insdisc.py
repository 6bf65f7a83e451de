"""What a sweep of InsDisc explores: one line per knob, with its reason."""

SPACE = {
    "temperature": {"low": 0.05, "high": 2.0, "log": True},  # 0.1 on CIFAR, 0.07 on ImageNet, more on small sets
    "negatives": {"choices": [128, 512, 4096]},  # the release's 4,096 is a twelfth of CIFAR
    "bank_keep": {"low": 0.0, "high": 0.9},  # the release's 0.5
}

SPACES = {
    "recipe": {  # how the recipe of an embedded stream is chosen: at the plain learner's own best
        "learning_rate": {"choices": [0.01, 0.03, 0.06]},
        "temperature": {"choices": [0.2, 0.5, 0.7, 1.0, 2.0]},
    },
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.015, 0.03, 0.06]},  # half, once and twice
        "temperature": {"choices": [0.7, 1.0]},
    },
}
