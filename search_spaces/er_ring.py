"""What a sweep of ER-ring explores: one line per knob, with its reason."""

SPACE = {
    "memory_capacity": {"choices": [45, 85, 425, 10_000]},  # paper 10,000, a tenth of its average task's pairs
    "memory_enqueues": {"choices": [True, False]},  # the paper does not say
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [5e-4, 1e-3, 2e-3]},  # half, once and twice that of moving-cvlm
        "m": {"choices": [0.9, 0.99, 0.999]},  # of the learner: the rule has no weight
    },
}
