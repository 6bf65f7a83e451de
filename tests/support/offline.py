"""Entries of the papers that run on packages, which not every machine has, on a stream that is always there."""

from dataclasses import replace

from kinoray.papers.entries import Entry, TableEntry

INSTEAD = {"sprites-cvlm": "moving-conflict", "sprites-retention": "moving-retention", "robots-ssl": "moving-actions"}


def offline(entry: Entry) -> Entry:
    seeds = 5 if isinstance(entry, TableEntry) else 3
    stream = INSTEAD.get(entry.stream, entry.stream)
    return replace(entry, stream=f"{stream}:9", worlds=(), seeds=seeds) if entry.worlds else entry
