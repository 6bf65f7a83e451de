"""Search space of my_method: one line per knob, with its reason or source."""

SPACE = {
    "my_method_weight": {"low": 0.05, "high": 5.0, "log": True},  # around the paper's 0.5
}
