"""What a sweep of Co2L explores: one line per knob, with its reason."""

SPACE = {
    "contrast_weight": {"low": 0.03, "high": 3.0, "log": True},  # Co2L 1
    "relation_weight": {"low": 0.1, "high": 10.0, "log": True},  # Co2L 1
}

SPACES: dict[str, dict] = {}
