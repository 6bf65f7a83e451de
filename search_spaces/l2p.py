"""What a sweep of L2P explores: one line per knob, with its reason."""

SPACE = {
    "pool": {"choices": [10, 20, 30]},  # the released 10; more for more tasks
    "chosen": {"choices": [1, 4, 5]},  # the authors' 4, the port's 5
    "length": {"choices": [1, 5, 10]},  # the port's 5, the authors' 10
    "pull_weight": {"low": 0.05, "high": 2.0, "log": True},  # the port's 0.1, the authors' 1
}
