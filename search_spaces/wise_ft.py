"""What a sweep of WiSE-FT explores: one line per knob, with its reason."""

SPACE = {
    "wise_share": {"low": 0.0, "high": 1.0},  # WiSE-FT draws the whole line, ZSCL's code stands at 0.8
    "wise_partner": {"choices": ["previous", "first"]},  # ZSCL's code has both
    "mean_every": {"choices": [0, 1, 10, 100]},  # ZSCL's code 100, in 1,000 steps a task
}
