"""Search space of my_method: one line per knob, with its reason or source."""

SPACE = {
    "temperature": {"low": 0.02, "high": 0.2, "log": True},  # around the paper's 0.07
}
