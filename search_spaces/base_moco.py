"""What a sweep of Base-MoCo explores: one line per knob, with its reason."""

SPACE = {
    "m": {"low": 0.9, "high": 1.0},  # COTS and the paper use 0.99 (Sec. 4.3); MoCo 0.999
    "temperature": {"low": 0.02, "high": 0.5, "log": True},  # paper 0.07; ALBEF clamps its own to 0.001-0.5
    "queue_size": {"choices": [240, 480, 960, 1440, 2880]},  # paper 1,440 = 30 batches of 48
}

SPACES = {
    "momentum": {  # which average gives the best keys, all else the paper's
        "m": {"choices": [0.9, 0.99, 0.999, 0.9999, 1.0]},  # MoCo's Table: 0.9 to 0.9999; 1 never moves
    },
}
