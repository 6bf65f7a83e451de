"""How a campaign ends: what it measured."""

import json
from collections.abc import Mapping
from typing import Any


def show_lines(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print what was measured, numbers and others, a line each, or all as one object."""
    width = max(map(len, facts))
    print(json.dumps(facts) if as_json else "\n".join(f"{name:<{width}} {value}" for name, value in facts.items()))
