"""What a sweep of X-Pool explores: one line per knob, with its reason."""

SPACE = {
    "dropout": {"low": 0.0, "high": 0.5},  # the paper 0.3, 0.4 on one set
    "head_rate": {"low": 1.0, "high": 30.0, "log": True},  # the code 10, 30 on the smaller split of MSR-VTT
    "log_scale": {"low": 2.3, "high": 4.6},  # from 10 to CLIP's 100
}
