"""Where the checkout and what lies beside it are."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = REPOSITORY.parent / "shared"
"""Real clips and published annotation files; tests that need them skip, saying so, where they are absent."""
