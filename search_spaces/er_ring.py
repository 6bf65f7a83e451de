"""What a sweep of ER-ring explores: one line per knob, with its reason."""

SPACE = {
    "memory_capacity": {"choices": [45, 85, 425, 10_000]},  # paper 10,000, a tenth of its average task's pairs
    "memory_enqueues": {"choices": [True, False]},  # the paper does not say
}

SPACES: dict[str, dict] = {
    "budget": {},  # Base-MoCo's: the rule has no weight, and its memory is part of the setting
}
