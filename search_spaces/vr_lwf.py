"""What a sweep of VR-LwF explores: one line per knob, with its reason."""

SPACE = {
    "distill_weight": {"low": 0.01, "high": 10.0, "log": True},  # ZSCL's code 1
    "distill_temperature": {"low": 0.5, "high": 10.0, "log": True},  # ZSCL's code 2
    "vocabulary_texts": {"choices": [100, 300, 1000, 3000]},  # ZSCL's code 1,000
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [3e-4, 1e-3, 3e-3]},
        "distill_weight": {"choices": [0.1, 1.0]},
    },
}
