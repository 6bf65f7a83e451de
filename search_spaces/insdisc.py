"""What a sweep of InsDisc explores: one line per knob, with its reason."""

SPACE = {
    "temperature": {"low": 0.05, "high": 0.5, "log": True},  # 0.1 on CIFAR, 0.07 on ImageNet
    "negatives": {"choices": [128, 512, 4096]},  # the release's 4,096 is a twelfth of CIFAR
    "bank_keep": {"low": 0.0, "high": 0.9},  # the release's 0.5
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.005, 0.01, 0.02]},
        "temperature": {"choices": [0.1, 0.2]},
    },
}
