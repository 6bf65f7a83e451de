"""Files that survive a crash, locks, signals, Ray's session, actors, progress: knows no run."""
