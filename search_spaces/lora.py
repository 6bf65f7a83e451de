"""What a sweep of LoRA explores: one line per knob, with its reason."""

SPACE = {
    "rank": {"choices": [2, 4, 8, 16, 32]},  # peft 8, C-CLIP 16
    "alpha": {"low": 2.0, "high": 64.0, "log": True},  # peft 8, C-CLIP 32
    "layers": {"choices": ["attention", "all"]},  # the paper, and C-CLIP
    "merged_share": {"choices": [0.5, 0.8, 1.0]},  # C-CLIP keeps half
}
