"""What a sweep of CODA-Prompt explores: one line per knob, with its reason."""

SPACE = {
    "per_task": {"choices": [1, 2, 4]},  # 10 as released, of ten tasks in a space of 768
    "length": {"choices": [2, 4, 8]},  # the released 4
    "ortho_weight": {"choices": [0.0, 0.01, 0.1, 1.0]},  # the paper 0.1, the code 0
}
