"""Classes of notebook cells: one digest for one source, in every interpreter, and another for an edited one."""

import json
import subprocess
import sys

import pytest

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
for name, text in json.loads(sys.argv[1]).items():  # as IPython runs a cell: by a name that differs between kernels
    file = f"/tmp/ipykernel_{sys.argv[2]}/{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), globals())
from kinoray.runs.method_source import find_method
source = find_method(Late)
print(json.dumps([source.digest, source.listing, list(source.unknown)]))
"""


def in_a_kernel(number: int, cells: dict[str, str], code: str = KERNEL) -> tuple[str, str, list[str]]:
    """Digest, listing and parts without source of the class `Late` as another interpreter sees it."""
    command = [sys.executable, "-c", code, json.dumps(cells), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def edited(cell: str, old: str, new: str) -> dict[str, str]:
    assert old in CELLS[cell]
    return CELLS | {cell: CELLS[cell].replace(old, new)}


@pytest.mark.slow
def test_the_same_cells_give_one_digest_in_two_interpreters_and_an_edit_of_any_part_another() -> None:
    first, listing, unknown = in_a_kernel(1, CELLS)
    assert in_a_kernel(2, CELLS)[0] == first and unknown == []
    assert [
        name for name in ("class Late", "class Base", "class Mine", "def scaled", "SCALE = 0.5") if name not in listing
    ] == []
    others = [
        edited("method", "super().after_step(carry, step)", "None"),
        edited("base", "scaled(1.0)", "scaled(2.0)"),
        edited("config", "SCALE * x", "SCALE + x"),
        edited("config", "SCALE = 0.5", "SCALE = 0.25"),
        edited("config", "weight: float = 1.0", "weight: float = 2.0"),
    ]
    digests = {in_a_kernel(3, cells)[0] for cells in others}
    assert len(digests | {first}) == 6
    unrelated = edited("config", "SCALE = 0.5", "step_scale, weight, SCALE = 7, 8, 0.5")
    assert in_a_kernel(4, unrelated)[0] == first, "names of attributes and locals are not globals"


@pytest.mark.slow
def test_a_class_without_source_has_one_digest_as_well_and_says_what_it_lacks() -> None:
    blind = KERNEL.replace("linecache.cache[file]", "_")
    first, listing, unknown = in_a_kernel(1, CELLS, blind)
    assert in_a_kernel(2, CELLS, blind)[0] == first
    assert "Late" in unknown and "Late: no source" in listing
    assert in_a_kernel(3, edited("base", "scaled(1.0)", "scaled(2.0)"), blind)[0] != first
