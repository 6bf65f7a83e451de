"""What a sweep of VR-LwF explores: one line per knob, with its reason."""

SPACE = {
    "distill_weight": {"low": 0.01, "high": 10.0, "log": True},  # ZSCL's code 1
    "distill_temperature": {"low": 0.5, "high": 10.0, "log": True},  # ZSCL's code 2
    "vocabulary_texts": {"choices": [100, 300, 1000, 3000]},  # ZSCL's code 1,000
}
