"""What a sweep of BMU-MoCo explores: one line per knob, with its reason."""

SPACE = {
    "m_hat": {"low": 0.9, "high": 1.0},  # the range of Fig. 4; 1 turns the pulls off
    "m": {"low": 0.9, "high": 1.0},  # held at 0.99 in the paper (Sec. 4.3)
    "temperature": {"low": 0.02, "high": 0.5, "log": True},  # paper 0.07
    "queue_size": {"choices": [240, 480, 960, 1440, 2880]},  # paper 1,440 = 30 batches of 48
    "variant": {"choices": ["full", "local", "global", "ensemble", "fixed"]},  # Tables 2 and 3
}
