"""What a sweep of LwF explores: one line per knob, with its reason."""

SPACE = {
    "distill_weight": {"low": 0.1, "high": 100.0, "log": True},  # the supplement gives none
    "distill_of": {"choices": ["features", "similarities"]},  # two readings of "align"
}

SPACES: dict[str, dict] = {}
