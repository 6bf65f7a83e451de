"""What a sweep of LwF explores: one line per knob, with its reason."""

SPACE = {
    "distill_weight": {"low": 0.1, "high": 100.0, "log": True},  # the supplement gives none
    "distill_of": {"choices": ["features", "similarities"]},  # two readings of "align"
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [5e-4, 1e-3, 2e-3]},  # half, once and twice that of moving-cvlm
        "distill_weight": {"choices": [1.0, 10.0]},  # LwF's; on features it is small beside the contrast
        "m": 0.99,  # of Base-MoCo, held
    },
}
