"""Results that carry their proof: bundles that a stranger can check, and train a part of again."""
