"""What a sweep of MoCo explores: one line per knob, with its reason."""

SPACE = {
    "temperature": {"low": 0.05, "high": 0.5, "log": True},  # v1 0.07, notebook 0.1, v2 0.2
    "m": {"choices": [0.9, 0.99, 0.996, 0.999]},  # notebook 0.99, paper 0.999
    "queue_size": {"choices": [128, 512, 4096, 65_536]},  # notebook 4,096, paper 65,536
    "head": {"choices": ["linear", "mlp"]},  # v1, v2
    "symmetric": {"choices": [False, True]},  # the notebook's option
}

SPACES = {
    "recipe": {  # how the shared recipe of an embedded stream is chosen: at the plain learner's own best
        "learning_rate": {"choices": [0.003, 0.01, 0.03, 0.06, 0.12]},
        "epochs": {"choices": [10, 20]},
    },
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.005, 0.01, 0.02]},  # half, once and twice
        "temperature": {"choices": [0.1, 0.2]},
    },
    "bmu-table4": {  # the search that every row of the table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.003, 0.015, 0.06]},  # MoCo's own best on shapes-ucl-5, between, SimSiam's
        "temperature": {"choices": [0.1, 0.2]},
    },
}
