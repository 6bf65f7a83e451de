"""What a sweep of VideoMoCo explores: one line per knob, with its reason."""

SPACE = {
    "t": {"choices": [1.0, 0.9999999, 0.999999, 0.99999, 0.9999, 0.999]},  # Table 2
    "dropout_share": {"choices": [0.125, 0.25, 0.375, 0.5, 0.75]},  # Table 1: 4, 8, 12, 16, 24 of 32 frames
    "gap_weight": {"low": 10.0, "high": 1000.0, "log": True},  # released 100; Eq. 4 as written is 128
    "temperature": {"low": 0.02, "high": 0.5, "log": True},  # released 0.07; MoCo v2 0.2
    "dropout_from": {"choices": [0.0, 0.25, 0.5, 0.75]},  # the warm-up: 100 of 200 epochs without the generator
    "queue_size": {"choices": [128, 512, 4096, 65_536]},  # paper 65,536; a small pretext set has fewer clips
    "m": {"choices": [0.9, 0.99, 0.996, 0.999]},  # paper 0.999
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
    "decay": {  # t against downstream accuracy, with `then="classify"`; of 512 keys the oldest has the paper's weights
        "t": {"choices": [1.0, 0.999987, 0.99987, 0.99872, 0.98728, 0.87973]},  # Table 2's t ** (65,536 / 512)
        "queue_size": 512,
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
