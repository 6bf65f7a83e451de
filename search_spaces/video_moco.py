"""What a sweep of VideoMoCo explores: one line per knob, with its reason."""

SPACE = {
    "t": {"choices": [1.0, 0.9999999, 0.999999, 0.99999, 0.9999, 0.999]},  # Table 2
    "dropout_share": {"choices": [0.125, 0.25, 0.375, 0.5, 0.75]},  # Table 1: 4, 8, 12, 16, 24 of 32 frames
    "gap_weight": {"low": 10.0, "high": 1000.0, "log": True},  # released 100; Eq. 4 as written is 128
    "temperature": {"low": 0.02, "high": 0.5, "log": True},  # released 0.07; MoCo v2 0.2
}

SPACES = {
    "video-moco-table1": {  # which frames the query loses, all else the paper's; the row without decay is t=1
        "dropout": {"choices": ["none", "random", "generator"]},
        "t": 1.0,
    },
    "video-moco-frames": {  # Table 1: k of 32 frames
        "dropout_share": {"choices": [0.125, 0.25, 0.375, 0.5, 0.75]},
        "t": 1.0,
    },
    "video-moco-table2": {  # the decay with the generator
        "t": {"choices": [1.0, 0.9999999, 0.999999, 0.99999, 0.9999, 0.999]},
    },
    "released": {  # where paper and released code disagree
        "decay": {"choices": ["paper", "released"]},
        "dropped": {"choices": ["highest", "lowest"]},
        "generator_sees_contrast": {"choices": [False, True]},
    },
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.01, 0.02, 0.04]},  # half, once and twice the paper's
        "dropout_share": {"choices": [0.25, 0.5]},  # the paper's, and more
    },
}
