"""What a sweep of MagMax explores: one line per knob, with its reason."""

SPACE = {
    "merge_scale": {"low": 0.1, "high": 1.0},  # the code takes 0.5, for other ways to merge 1 or 1 / tasks
    "merge_start": {"choices": ["previous", "first"]},  # sequential, the paper's, and independent fine-tuning
}
