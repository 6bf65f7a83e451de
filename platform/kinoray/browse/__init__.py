"""Looking around: lists, manifests, statistics, the machine."""
