"""What a sweep of ER-ring explores: one line per knob, with its reason."""

SPACE = {
    "memory_capacity": {"choices": [120, 240, 480, 10_000]},  # paper 10,000, a tenth of its pairs
    "memory_enqueues": {"choices": [True, False]},  # the paper does not say
}

SPACES: dict[str, dict] = {}
