"""What the folders promise: the standard library's `platform` is visible, imports run downward, nothing unpickles."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from count import CEILING, PACKAGE, code_lines, rooms
from support.places import REPOSITORY

ROOT = REPOSITORY
PLACES = {
    "kinoray": "platform/kinoray",
    "kinoray.methods": "methods",
    "kinoray.search_spaces": "search_spaces",
    "kinoray.cluster": "cluster",
}

FLOORS = """
errors metrics equations families hooks on_device | config system | source | seeds backbones
| decoding momentum
| data | method datasets
| rehearsal rule | streams training methods search_spaces | evaluation | runs
| execution | sweeps | report cluster testing proof | papers | __init__ | cli | __main__
"""
"""The rooms of the package from the ground up: a file imports from its own room and from earlier floors only."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    paths = {}
    for package, folder in PLACES.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = [*package.split("."), *path.relative_to(ROOT / folder).with_suffix("").parts]
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, also inside functions and for type checking."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | ({node.module} - {"kinoray"})
    return names


def imports_by_name(text: str) -> set[str]:
    """Dotted names that calls of `import_module` spell out; of an f-string what stands before its first gap."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            part = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if isinstance(part, ast.Constant):
                names.add(part.value.rstrip("."))
    return names


def test_imports_by_name_are_seen() -> None:
    text = (
        'import_module("kinoray").run\nimportlib.import_module(f"kinoray.streams.{known[0]}", x)\nimport_module(name)'
    )
    assert imports_by_name(text) == {"kinoray", "kinoray.streams"}


def test_platform_is_the_standard_librarys_from_the_repository_root() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    code = "import platform; print(platform.__file__)"
    file = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not Path(file.strip()).is_relative_to(ROOT / "platform")


def room_of(name: str) -> str:
    """The folder, or the file, of the package that a module belongs to."""
    return name.split(".")[1] if "." in name else "__init__"


def test_rooms_import_downward_only() -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS.split("|")) for room in rooms.split()}
    known = modules()
    assert {room_of(name) for name in known} == set(floor)
    up = [
        f"{name} -> {target}"
        for name, path in known.items()
        for target in imports(path) | imports_by_name(path.read_text(encoding="utf-8"))
        if target in known and room_of(target) != room_of(name) and floor[room_of(target)] >= floor[room_of(name)]
    ]
    assert not up, up


def test_no_two_files_import_each_other_however_far_round() -> None:
    known = modules()
    graph = {
        name: {target for target in imports(path) if target in known and target != name}
        for name, path in known.items()
        if name != "kinoray"
    }
    finished: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name in finished:
            return
        for target in graph.get(name, ()):
            visit(target, (*above, name))
        finished.add(name)

    for name in graph:
        visit(name, ())


def test_the_page_about_the_architecture_names_files_and_functions_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"([a-z_]+/[a-z_]+\.py)(?:: ?([A-Za-z_]+))?", text)
    assert len(named) > 40
    for path, name in named:
        (file,) = [f for f in (ROOT / path, PACKAGE / path) if f.is_file()] or [None]
        assert file, path
        assert not name or name in file.read_text(encoding="utf-8"), f"{path}: {name}"


def test_every_folder_of_the_package_is_in_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {name if path.stem == "__init__" else name.rpartition(".")[0] for name, path in modules().items()}
    assert sorted(listed) == sorted(folders)
    for room in folders - {"kinoray"}:
        assert modules()[room].stem == "__init__", f"{room} has no __init__.py"


@pytest.mark.parametrize("name", [n for n in modules() if n.startswith("kinoray.methods.")])
def test_a_method_knows_the_equations_and_not_the_machine(name: str) -> None:
    allowed = (
        "kinoray.backbones",
        "kinoray.config",
        "kinoray.equations",
        "kinoray.errors",
        "kinoray.method",
        "kinoray.momentum",
        "kinoray.rehearsal",
        "kinoray.rule",
        "torch",
    )
    standard = ("collections", "typing", "math", "copy", "dataclasses", "contextlib")
    for target in imports(modules()[name]):
        assert target.split(".")[0] in standard or target.startswith(allowed), target


def test_the_engine_imports_no_method() -> None:
    for name, path in modules().items():
        if not name.startswith(("kinoray.methods", "kinoray.search_spaces")):
            assert not any(t.startswith(("kinoray.methods.", "kinoray.search_spaces.")) for t in imports(path)), name


def test_ray_stays_in_a_handful_of_files() -> None:
    allowed = ("execution.run", "execution.workers", "execution.momentum_store", "execution.run_monitor")
    allowed += (
        "execution.feature_store",
        "execution.shared_storage",
        "data.pipeline",
        "data.ray_rows",
        "data.warm_cache",
    )
    allowed += (
        "system.actors",
        "system.ray_head",
        "system.ray_session",
    )
    allowed += ("datasets.probing", "datasets.vectors")
    allowed += ("sweeps.study_search", "sweeps.trial", "sweeps.sweep", "report.doctor")
    allowed += ("cluster.client", "cluster.submit")
    users = {name for name, path in modules().items() if any(t.split(".")[0] == "ray" for t in imports(path))}
    assert users <= {f"kinoray.{name}" for name in allowed}


def test_nothing_read_can_run_code() -> None:
    """No pickle, unsafe YAML, eval or shell on data; a method's own source is the one thing that is executed."""
    forbidden = re.compile(
        r"\bimport pickle\b|(?<!cloud)pickle\.load|joblib\.load|yaml\.load\(|(?<![.\w])eval\(|shell=True"
        r"|weights_only=False"
    )
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        if name == "kinoray.datasets.unpickle":  # the one file that may: it restricts what a pickle can name
            text = text.replace("import pickle\n", "", 1)
        assert not forbidden.search(text), name
        if "exec(" in text.replace("_exec(", ""):
            assert name == "kinoray.source", name


MAX_LINES, MAX_LINES_OF_A_FUNCTION, MAX_PARAMETERS = 520, 60, 12


def test_no_file_is_too_long_to_read() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    long = {name: count for name, count in lines.items() if count > MAX_LINES}
    assert not long, long


def test_no_function_is_too_long_to_read() -> None:
    long = {
        f"{name}.{node.name}": lines
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (lines := lines_of(node)) > MAX_LINES_OF_A_FUNCTION
    }
    assert not long, long


def lines_of(function: ast.FunctionDef) -> int:
    """How long it is without its docstring."""
    told = function.body[0] if ast.get_docstring(function) else None
    return (function.end_lineno or 0) - function.lineno + 1 - (told.end_lineno - told.lineno + 1 if told else 0)


def test_no_file_imports_itself() -> None:
    files = {name: path for name, path in modules().items() if path.name != "__init__.py"}
    assert not [name for name, path in files.items() if any(t.startswith(f"{name}.") for t in imports(path))]


def test_the_package_and_its_tests_stay_below_their_ceilings() -> None:
    counted = rooms()
    over = {name: (counted[name], most) for name, most in CEILING.items() if counted[name][0] > most[0]}
    over |= {name: (counted[name], most) for name, most in CEILING.items() if counted[name][1] > most[1]}
    assert not over, over


def test_lines_of_code_are_counted_without_blanks_comments_and_docstrings() -> None:
    text = '"""Head."""\n\nfrom a import (  # why\n    b,\n)\n# Why.\nc = """\nd\n"""\n"""Of c,\ntoo."""\n'
    assert code_lines(text) == 6


GONE = {
    "abreast", "aims", "attend", "courses", "deadly", "feed", "lineage", "outlook",
}  # fmt: skip
"""Words that the dictionary has others for (`docs/architecture.md`): concurrent, objectives, supervise,
curves, crashing, reader, start-up summary."""
ATTENTION = {"attend"}
"""What a network does."""


def test_names_are_without_the_words_that_went() -> None:
    found = []
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = (
                getattr(node, "name", None)
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                else getattr(node, "arg", None)
            )
            parts = set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name or "").lower().split("_"))
            gone = parts & (GONE - ATTENTION if ".backbones." in module else GONE)
            found += [f"{module}: {name}" for _ in gone]
    assert found == []


def public_functions(tree: ast.Module | ast.ClassDef) -> list[ast.FunctionDef]:
    """Public functions of a module, and public methods and constructors of its public classes."""
    functions = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            functions += public_functions(node)
        elif isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
            functions.append(node)
    return functions


def number_of_parameters(function: ast.FunctionDef) -> int:
    """Positional and keyword-only parameters, without `self` and `cls`."""
    named = function.args
    names = [parameter.arg for parameter in (*named.posonlyargs, *named.args, *named.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_public_function_has_too_many_parameters() -> None:
    wide = {
        f"{name}.{function.name}": number_of_parameters(function)
        for name, path in modules().items()
        if room_of(name) != "cli"  # a command has a parameter for each of its options
        for function in public_functions(ast.parse(path.read_text(encoding="utf-8")))
        if number_of_parameters(function) > MAX_PARAMETERS
    }
    assert not wide, wide
