"""What a sweep of AvgPool explores: one line per knob, with its reason."""

SPACE = {
    "log_scale": {"low": 2.3, "high": 4.6},  # from 10 to CLIP's 100: smaller ones learn from more of a batch
    "learn_scale": {"choices": [True, False]},  # CTVR's code holds it
    "frame_norm": {"choices": [True, False]},  # CLIP4Clip's, and CTVR's
}

SPACES = {
    "recipe": {  # how a stream trains, chosen for the plain learner alone and shared by all methods
        "learning_rate": {"choices": [1e-5, 3e-5, 1e-4, 3e-4]},
        "epochs": {"choices": [5, 10]},
    },
}
