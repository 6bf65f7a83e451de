"""What a sweep of DER explores: one line per knob, with its reason."""

SPACE = {
    "memory_weight": {"low": 0.03, "high": 3.0, "log": True},  # DER 0.1-1.0 by data set
}

SPACES: dict[str, dict] = {}
