"""Loggers: one file each, found by name. It states what it `NEEDS` and has a `Logger`; a new one edits nothing else."""
