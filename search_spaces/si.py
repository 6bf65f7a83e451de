"""What a sweep of SI explores: one line per knob, with its reason."""

SPACE = {
    "importance_weight": {"low": 0.01, "high": 1000.0, "log": True},  # UCL 0.4, "tuned per data set"
    "importance_damping": {"low": 1e-4, "high": 1.0, "log": True},  # SI 1e-3, UCL 1
}

SPACES: dict[str, dict] = {}
