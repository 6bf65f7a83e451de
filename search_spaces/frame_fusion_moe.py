"""What a sweep of FrameFusionMoE explores: one line per knob, with its reason."""

SPACE = {
    "fusion_layers": {"choices": [0, 4, 6, 8, 10, 12]},  # the paper's Fig. 8 goes from 4 to 12
    "experts": {"choices": [1, 2, 5, 10, 20]},  # Fig. 8: 1 to 20
    "beta": {"low": 0.0, "high": 1.0},  # Fig. 8: loss scale 0 to 1
    "rank": {"choices": [8, 16, 32, 64]},  # the code's 64, and less
}

SPACES = {
    "layers": {"fusion_layers": {"choices": [0, 4, 6, 8, 10, 12]}},
    "experts": {"experts": {"choices": [1, 2, 5, 10, 20]}},
    "loss_scale": {"beta": {"choices": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]}},
    "frames": {"frames": {"choices": [2, 4, 6, 8, 12]}},  # of a training clip; Fig. 8: 6 and more
}
