"""What a sweep of RAIL explores: one line per knob, with its reason."""

SPACE = {
    "form": {"choices": ["primal", "dual"]},  # the paper's two
    "ridge": {"low": 1e-4, "high": 10.0, "log": True},  # the code's 0.1, and 0.001 in its dual
    "gamma": {"low": 0.01, "high": 10.0, "log": True},  # the code's 0.1
    "fusion": {"low": 0.0, "high": 1.0},  # the code's 0.8
}
