"""What a sweep of Co2L explores: one line per knob, with its reason."""

SPACE = {
    "contrast_weight": {"low": 0.03, "high": 3.0, "log": True},  # Co2L 1
    "relation_weight": {"low": 0.1, "high": 10.0, "log": True},  # Co2L 1
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [5e-4, 1e-3, 2e-3]},  # half, once and twice that of moving-cvlm
        "relation_weight": {"choices": [1.0, 3.0]},  # Co2L's, and more
        "m": 0.99,  # of Base-MoCo, held
    },
}
