"""Words and numbers as people read them."""

import pytest

from kinoray.system.text import one_line, operations, size


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (999, "999 B"), (1200, "1.2 kB"), (3.4e9, "3.4 GB"), (2e12, "2.0 TB")]
)
def test_sizes_are_short(number: float, shown: str) -> None:
    assert size(number) == shown


def test_operations_are_short_too() -> None:
    assert [operations(number) for number in (0, 3.05e9, 5e18)] == ["0 FLOP", "3.0 GFLOP", "5000.0 PFLOP"]


def test_an_error_is_told_without_colours_and_without_what_is_drawn_under_its_lines() -> None:
    error = RuntimeError("\x1b[36mray::x()\x1b[39m (pid=1)\n  a(b ^ c)\n  ~~^^^^^^\nValueError: no")
    assert one_line(error) == "ray::x() (pid=1) a(b ^ c) ValueError: no"
