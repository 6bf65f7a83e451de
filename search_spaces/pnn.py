"""What a sweep of PNN explores: one line per knob, with its reason."""

SPACE = {
    "laterals": {"choices": [True, False]},  # whether later tasks gain from earlier columns
    "alpha_start": {"choices": [0.01, 0.1, 1.0]},  # the paper's "small values"; 1 is mammoth's
    "projector_dim": {"choices": [128, 512, 2048]},  # as SimSiam's
    "predictor_dim": {"choices": [32, 64, 512]},  # as SimSiam's
    "projector_layers": {"choices": [2, 3]},  # as SimSiam's
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.015, 0.03, 0.06]},  # half, once and twice
        "alpha_start": {"choices": [0.1, 1.0]},
    },
    "bmu-table4": {  # the search that every row of the table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.003, 0.015, 0.06]},  # MoCo's own best on shapes-ucl-5, between, SimSiam's
        "alpha_start": {"choices": [0.1, 1.0]},
    },
}
