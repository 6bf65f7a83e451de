"""What a sweep of LUMP explores: one line per knob, with its reason."""

SPACE = {
    "mix_alpha": {"low": 0.1, "high": 2.0, "log": True},  # LUMP 0.4
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [5e-4, 1e-3, 2e-3]},  # half, once and twice that of moving-cvlm
        "mix_alpha": {"choices": [0.4, 1.0]},  # LUMP's, and evenly drawn mixtures
        "m": 0.99,  # of Base-MoCo, held
    },
    "bmu-table4": {  # the search that every row of the table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.003, 0.015, 0.06]},  # MoCo's own best on shapes-ucl-5, between, SimSiam's
        "mix_alpha": {"choices": [0.4, 1.0]},  # LUMP's, and evenly drawn mixtures
    },
}
