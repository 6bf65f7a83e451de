"""What a sweep of CODA-Prompt explores: one line per knob, with its reason. How many components
there is room for says the width of the tower, so `per_task` is no knob."""

SPACE = {
    "length": {"choices": [2, 4, 8]},  # the released 4
    "ortho_weight": {"choices": [0.0, 0.01, 0.1, 1.0]},  # the paper 0.1, the code 0
}
