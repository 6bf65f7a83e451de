"""What a sweep of BMU-MoCo explores: one line per knob, with its reason. A plain value is held."""

SPACE = {
    "m_hat": {"low": 0.9, "high": 1.0},  # the range of Fig. 4; 1 turns the pulls off
    "m": {"low": 0.9, "high": 1.0},  # held at 0.99 in the paper (Sec. 4.3)
    "temperature": {"low": 0.02, "high": 0.5, "log": True},  # paper 0.07
    "queue_size": {"choices": [240, 480, 960, 1440, 2880]},  # paper 1,440 = 30 batches of 48
    "variant": {"choices": ["full", "local", "global", "ensemble", "fixed"]},  # Tables 2 and 3
}

SPACES = {
    "bmu-fig4": {  # Fig. 4: overall R@1 (current), overall R@1 (final) and HM over m_hat
        "m_hat": {
            "choices": [0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0]
        },  # the text names 0.9, 0.99, 0.999, 1; rest ours
        "m": 0.99,  # "the other momentum coefficient m is fixed at 0.99"
    },
    "bmu-table2": {  # Table 2 from row 1: which momentum encoders, with and without the pulls
        "variant": {"choices": ["local_no_bmu", "global_no_bmu", "both_no_bmu", "local", "global", "full"]},
    },
    "bmu-table3": {  # Table 3: two other uses of the averages, and the model
        "variant": {"choices": ["local_no_bmu", "fixed", "ensemble", "full"]},
    },
    "momenta": {  # both coefficients together, all else the paper's
        "m_hat": {"low": 0.9, "high": 1.0},  # the range of Fig. 4
        "m": {"low": 0.9, "high": 1.0},  # COTS 0.99; MoCo 0.999
    },
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [5e-4, 1e-3, 2e-3]},  # half, once and twice that of moving-cvlm
        "m_hat": {"choices": [0.99, 0.995]},  # the paper's, and half the pull
    },
}
