"""What a sweep of BMU-MoCo on pictures explores: one line per knob, with its reason."""

SPACE = {
    "m_hat": {"low": 0.9, "high": 1.0},  # the range of Fig. 4; 1 turns the pulls off
    "m": {"low": 0.9, "high": 1.0},  # held at 0.99 in the paper (Sec. 4.3), notebook 0.99
    "temperature": {"low": 0.05, "high": 0.5, "log": True},  # notebook 0.1, v2 0.2
    "queue_size": {"choices": [128, 512, 4096, 65_536]},  # notebook 4,096, MoCo's paper 65,536
    "variant": {"choices": ["full", "local", "global"]},  # Table 2
    "symmetric": {"choices": [False, True]},  # the notebook's option
}

SPACES = {
    "bmu-table4": {  # the search that every row of the table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.003, 0.015, 0.06]},  # MoCo's own best on shapes-ucl-5, between, SimSiam's
        "m_hat": {"choices": [0.99, 0.995]},  # the paper's, and half the pull
    },
}
