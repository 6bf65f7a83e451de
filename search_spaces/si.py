"""What a sweep of SI explores: one line per knob, with its reason."""

SPACE = {
    "importance_weight": {"low": 0.01, "high": 1000.0, "log": True},  # UCL 0.4, "tuned per data set"
    "importance_damping": {"low": 1e-4, "high": 1.0, "log": True},  # SI 1e-3, UCL 1
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [5e-4, 1e-3, 2e-3]},  # half, once and twice that of moving-cvlm
        "importance_weight": {"choices": [0.4, 10.0]},  # UCL's, and more
        "m": 0.99,  # of Base-MoCo, held
    },
    "bmu-table4": {  # the search that every row of the table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.003, 0.015, 0.06]},  # MoCo's own best on shapes-ucl-5, between, SimSiam's
        "importance_weight": {"choices": [0.4, 10.0]},  # UCL's, and more
    },
}
