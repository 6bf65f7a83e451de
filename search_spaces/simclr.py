"""What a sweep of SimCLR explores: one line per knob, with its reason."""

SPACE = {
    "temperature": {"low": 0.05, "high": 0.5, "log": True},  # 0.1 to 0.5 in use
    "head": {"choices": ["linear", "mlp"]},  # the paper finds mlp better
}

SPACES = {
    "recipe": {  # how the recipe of an embedded stream is chosen: of these the shared 0.01 is best over `shapes-5`
        "learning_rate": {"choices": [0.003, 0.01, 0.03, 0.06, 0.12]},
    },
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.005, 0.01, 0.02]},
        "temperature": {"choices": [0.1, 0.2]},
    },
}
