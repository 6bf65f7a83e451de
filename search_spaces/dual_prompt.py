"""What a sweep of DualPrompt explores: one line per knob, with its reason."""

SPACE = {
    "match_weight": {"low": 0.1, "high": 2.0, "log": True},  # the released 1, a port 0.1
    "general_length": {"choices": [3, 5, 10]},  # the released 5, CODA-Prompt's code 3
    "task_length": {"choices": [5, 10, 20]},  # the released 5, others 10 and 20
    "from_previous": {"choices": [True, False]},  # the released True
}
