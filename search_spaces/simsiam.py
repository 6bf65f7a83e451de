"""What a sweep of SimSiam explores: one line per knob, with its reason."""

SPACE = {
    "projector_dim": {"choices": [128, 512, 2048]},  # the paper's 2,048 is four times a ResNet-18's features
    "predictor_dim": {"choices": [32, 64, 512]},  # a quarter of the projector's in the paper
    "projector_layers": {"choices": [2, 3]},  # the benchmark's, the paper's
}

SPACES = {
    "recipe": {  # how the shared recipe of an embedded stream is chosen: at the plain learner's own best
        "learning_rate": {"choices": [0.01, 0.03, 0.06, 0.12]},
        "epochs": {"choices": [10, 20]},
    },
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.015, 0.03, 0.06]},  # half, once and twice
        "projector_layers": {"choices": [2, 3]},
    },
    "bmu-table4": {  # the search that every row of the table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.003, 0.0075, 0.015, 0.03, 0.06, 0.12]},  # no knob besides
    },
}
