"""What a sweep of StructAlign explores: one line per knob, with its reason."""

SPACE = {
    "first_rate": {"low": 1.0, "high": 10.0, "log": True},  # the code: 3 to 7 times the later rate
    "fixed_reference": {"choices": [False, True]},  # the abstract's reference, and the code's
}
