"""What a sweep of ZSCL explores: one line per knob, with its reason."""

SPACE = {
    "distill_weight": {"low": 0.1, "high": 10.0, "log": True},  # ZSCL's code 1, in one set-up 5
    "distill_temperature": {"low": 0.5, "high": 10.0, "log": True},  # ZSCL's code 2
    "distill_texts": {"choices": [False, True]},  # FrameFusionMoE's code, and ZSCL's
}
