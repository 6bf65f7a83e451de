"""What a sweep of CLIP-ViP explores: one line per knob, with its reason."""

SPACE = {
    "added_proxies": {"choices": [0, 1, 3, 4, 8]},  # the original 3, FrameFusionMoE's table 4
    "new_rate": {"low": 1.0, "high": 30.0, "log": True},  # what is new may want more than CLIP
    "log_scale": {"low": 2.3, "high": 4.6},  # from 10 to CLIP's 100
}
