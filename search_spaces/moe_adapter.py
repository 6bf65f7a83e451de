"""What a sweep of MoE-Adapters explores: one line per knob, with its reason."""

SPACE = {
    "experts": {"choices": [4, 10, 22]},  # the original's 22, and fewer
    "rest_after": {"choices": [0, 2]},  # without and with resting experts
    "text_gate": {"choices": ["start", "end"]},  # a gate that knows nothing of the query, and one that does
}
