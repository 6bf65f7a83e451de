"""Classes of notebook cells: one digest for one source, in every interpreter, and another for an edited one."""

import json
import subprocess
import sys

import cloudpickle
import pytest

from kinoray.runs.method_source import find_method

CELLS = {
    "config": """
from kinoray.config import config
from kinoray.methods.base_moco import Method as Shipped
SCALE = 0.5
def scaled(x):
    return SCALE * x
@config
class Mine:
    weight: float = 1.0
""",
    "base": """
class Base(Shipped):
    Config = Mine
    def helper(self):
        return scaled(1.0)
""",
    "method": """
class Late(Base):
    def after_step(self, carry, step):
        step_scale = self.helper()
        return super().after_step(carry, step)
""",
}

KERNEL = """
import json, linecache, sys
from kinoray.runs.method_source import find_method
sets, number, has_source = json.loads(sys.argv[1])
digests = []
for cells in sets:
    for name, text in cells.items():  # as IPython runs a cell: by a name that differs between kernels
        file = f"/tmp/ipykernel_{number}/{len(digests)}-{name}.py"
        if has_source:
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), globals())
    source = find_method(Late)
    digests.append([source.digest, source.listing, list(source.unknown)])
print(json.dumps(digests))
"""

Seen = tuple[str, str, list[str]]


def in_a_kernel(number: int, *sets: dict[str, str], has_source: bool = True) -> list[Seen]:
    """Digest, listing and parts without source of the class `Late`, as another interpreter sees it after each set of
    cells, one after the other."""
    command = [sys.executable, "-c", KERNEL, json.dumps([sets, number, has_source])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [tuple(seen) for seen in json.loads(done.stdout.splitlines()[-1])]


def edited(cell: str, old: str, new: str) -> dict[str, str]:
    assert old in CELLS[cell]
    return CELLS | {cell: CELLS[cell].replace(old, new)}


@pytest.mark.slow
def test_the_same_cells_give_one_digest_in_two_interpreters_and_an_edit_of_any_part_another() -> None:
    others = [
        edited("method", "super().after_step(carry, step)", "None"),
        edited("base", "scaled(1.0)", "scaled(2.0)"),
        edited("config", "SCALE * x", "SCALE + x"),
        edited("config", "SCALE = 0.5", "SCALE = 0.25"),
        edited("config", "weight: float = 1.0", "weight: float = 2.0"),
    ]
    unrelated = edited("config", "SCALE = 0.5", "step_scale, weight, SCALE = 7, 8, 0.5")
    (first, listing, unknown), *rest = in_a_kernel(1, CELLS, *others)
    assert unknown == []
    assert [
        name for name in ("class Late", "class Base", "class Mine", "def scaled", "SCALE = 0.5") if name not in listing
    ] == []
    assert len({digest for digest, _, _ in rest} | {first}) == 6
    again, same = in_a_kernel(2, CELLS, unrelated)
    assert again[0] == first
    assert same[0] == first, "names of attributes and locals are not globals"


@pytest.mark.slow
def test_a_class_without_source_has_one_digest_as_well_and_says_what_it_lacks() -> None:
    other = edited("base", "scaled(1.0)", "scaled(2.0)")
    (first, listing, unknown), changed = in_a_kernel(1, CELLS, other, has_source=False)
    assert "Late" in unknown and "Late: no source" in listing
    assert changed[0] != first
    (again,) = in_a_kernel(2, CELLS, has_source=False)
    assert again[0] == first


def test_a_class_that_type_made_does_not_make_the_standard_library_travel() -> None:
    """It is said to live in `abc`; by value `ABCMeta` would be another one where the class arrives."""
    shipped = find_method("base_moco").load()
    made = type("Made", (shipped,), {"Config": shipped.Config})
    assert made.__module__ == "abc"
    find_method(made)
    assert "abc" not in cloudpickle.list_registry_pickle_by_value()
