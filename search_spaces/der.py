"""What a sweep of DER explores: one line per knob, with its reason."""

SPACE = {
    "memory_weight": {"low": 0.03, "high": 3.0, "log": True},  # DER 0.1-1.0 by data set
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [5e-4, 1e-3, 2e-3]},  # half, once and twice that of moving-cvlm
        "memory_weight": {"choices": [0.3, 1.0]},  # within DER's 0.1 to 1.0
        "m": 0.99,  # of Base-MoCo, held
    },
    "bmu-table4": {  # the search that every row of the table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.003, 0.015, 0.06]},  # MoCo's own best on shapes-ucl-5, between, SimSiam's
        "memory_weight": {"choices": [0.4, 1.0]},  # UCL's, and DER's highest
    },
}
