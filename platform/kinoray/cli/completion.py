"""What the shell offers behind a half-typed word: methods and streams by name. Imports no torch and no Ray."""


def methods(incomplete: str) -> list[str]:
    """Methods that come with kinoray, and learners behind `rule:`."""
    from kinoray.runs.method_source import method_names

    rule, colon, start = incomplete.rpartition(":")
    return [f"{rule}{colon}{name}" for name in method_names() if name.startswith(start)]


def streams(incomplete: str) -> list[str]:
    """The streams by name."""
    from kinoray.streams import stream_families

    return [name for name in stream_families() if name.startswith(incomplete)]
