"""What a sweep of RanPAC explores: one line per knob, with its reason."""

SPACE = {
    "lift": {"choices": [0.0, 1.0, 4.0, 10_000 / 768, 20.0]},  # the paper's curve goes from none to 15,000 of 768
    "tune_first": {"choices": [False, True]},  # the paper's rows without and with Phase 1
}
