"""What a sweep of C-CLIP explores: one line per knob, with its reason."""

SPACE = {
    "ckc_weight": {"low": 0.1, "high": 10.0, "log": True},  # the paper 1, one re-implementation 5
    "merged_share": {"choices": [0.3, 0.5, 0.7, 1.0]},  # the paper half
    "rank": {"choices": [4, 8, 16, 32]},  # the paper 16
    "ckc_shape": {"choices": ["concat", "stack"]},  # re-implementations disagree
    "text_rate": {"choices": [1.0, 10.0, 80.0]},  # the paper 10, for COCO 80
}
