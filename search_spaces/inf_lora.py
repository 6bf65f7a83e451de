"""What a sweep of InfLoRA explores: one line per knob, with its reason."""

SPACE = {
    "rank": {"choices": [4, 10, 20, 30]},  # CIFAR-100 10, DomainNet 30
    "threshold": {"choices": [0.8, 0.9, 0.95, 0.98]},  # the released 0.95 and 0.98, and more room for later tasks
}
