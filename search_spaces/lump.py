"""What a sweep of LUMP explores: one line per knob, with its reason."""

SPACE = {
    "mix_alpha": {"low": 0.1, "high": 2.0, "log": True},  # LUMP 0.4
}

SPACES: dict[str, dict] = {}
