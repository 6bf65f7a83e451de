"""Runs in other people's trackers: what is told of a run, and the loggers that follow it while it trains."""
