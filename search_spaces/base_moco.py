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
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [5e-4, 1e-3, 2e-3]},  # half, once and twice that of moving-cvlm
        "m": {"choices": [0.99, 0.999]},  # the paper's, and MoCo's own
    },
    "recipe": {  # how a stream trains, chosen for the plain learner alone and shared by all methods
        "learning_rate": {"choices": [3e-4, 5e-4, 1e-3, 2e-3, 3e-3]},
        "epochs": {"choices": [5, 10]},  # more make a run of moving-conflict longer than two minutes
        "schedule": {"choices": ["cosine", "constant"]},
    },
}
