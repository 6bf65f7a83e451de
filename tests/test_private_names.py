"""The package uses no private name of the libraries that it stands on: their next version may be without it."""

import ast
import pkgutil
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache

import pytest
from support.places import REPOSITORY

FOLDERS = ("platform/kinoray", "methods", "search_spaces", "cluster")
LIBRARIES = ("ray", "torch", "transformers", "loky", "open_clip", "optuna", "av", "pyarrow")
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit", "_getframe", "_thread", "_xoptions", "_repr_html_"}
"""Private by their looks alone: documented by Python, and by Jupyter."""
DOTTED = re.compile(rf"({'|'.join(LIBRARIES)})(\.\w+)*\._\w+(\.\w+)*")
LOGGER = "the name of a logger, which is told to be quiet: where it is another one, there are more lines"
EXCEPTIONS = {
    ("cluster/client.py", "Client._do_request"): "the client has no limit of time; requests waits for ever without",
    ("cluster/client.py", "ray._private.runtime_env.packaging"): LOGGER,
    ("platform/kinoray/data/ray_rows.py", "ray.data._internal.progress"): LOGGER,
    ("platform/kinoray/backbones/norm.py", "torch.nn.modules.batchnorm._BatchNorm"): "what the three kinds share",
    ("platform/kinoray/backbones/norm.py", "_check_input_dim"): "the shapes that each of the three kinds accepts",
    ("platform/kinoray/momentum.py", "torch._foreach_*"): "one kernel for all parameters, in place of one for each",
    ("platform/kinoray/system/pool.py", "threading._register_atexit"): "nothing else comes before loky's own wait",
    ("platform/kinoray/system/ray_head.py", "_node_ip_address"): "the one argument by which Ray keeps to loopback",
    (
        "platform/kinoray/system/ray_session.py",
        "ray._private.authentication.authentication_token_setup.enable_token_auth_by_default",
    ): "a program that imported Ray before kinoray has read RAY_AUTH_MODE, and no public call reads it again",
    ("platform/kinoray/training/checkpoint.py", "_version"): "the only count of the writes to a tensor",
}
"""By file and name, which may be a pattern: why there is no other way."""


def is_private(name: str) -> bool:
    """A leading underscore, but not two at both ends, that no documentation names."""
    return (
        name not in PUBLIC
        and name.startswith("_")
        and name.strip("_") != ""
        and not (name.startswith("__") and name.endswith("__"))
    )


class File:
    """What a file imports, and the private names that it defines."""

    def __init__(self, text: str) -> None:
        self.nodes = list(ast.walk(ast.parse(text)))
        self.imported: dict[str, str] = {}
        """Dotted names by what they are called here."""
        self.own: set[str] = set()
        """Names that are defined here, attributes of self among them."""
        self.classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        for node in self.nodes:
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        self.imported[alias.asname or alias.name.partition(".")[0]] = alias.name
                case ast.ImportFrom(names=names):
                    self.imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in names}
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self.own.add(node.name)
                case ast.arg(arg=name):
                    self.own.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    self.own.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    self.own.add(name)

    def dotted(self, node: ast.AST) -> str:
        """The full name of what was imported, else ""."""
        match node:
            case ast.Name(id=name):
                whole = self.imported.get(name, "")
                return whole if whole.split(".")[0] != name else name
            case ast.Attribute(value=value, attr=name):
                before = self.dotted(value)
                return f"{before}.{name}" if before else ""
            case ast.Subscript(value=value):
                return self.dotted(value)
        return ""

    def bases(self, node: ast.ClassDef) -> Iterator[str]:
        """Dotted names of a class's bases, through those that are defined here."""
        for base in node.bases:
            if dotted := self.dotted(base):
                yield dotted
            elif isinstance(base, ast.Name) and base.id in self.classes:
                yield from self.bases(self.classes[base.id])


def private_uses(file: File, own_anywhere: set[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each use of what is private elsewhere; own_anywhere: private names of the package."""
    for node in file.nodes:
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names if _leads_inside(alias.name))
            case ast.ImportFrom(module=str(module), names=names):
                wholes = [f"{module}.{alias.name}" for alias in names]
                yield from ((node.lineno, whole) for whole in wholes if _leads_inside(whole))
            case ast.Attribute(value=owner, attr=name) if _is_foreign(file, owner, name, own_anywhere):
                yield node.lineno, file.dotted(node) or name
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"),
                args=[owner, ast.Constant(value=str(name)), *_],
            ) if _is_foreign(file, owner, name, own_anywhere):
                yield node.lineno, f"{file.dotted(owner)}.{name}".lstrip(".")
            case ast.keyword(arg=str(name)) if is_private(name) and name not in own_anywhere:
                yield node.lineno, name
            case ast.Dict(keys=keys):  # of options that are passed on
                texts = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
                yield from ((node.lineno, text) for text in texts if is_private(text) and text.isidentifier())
            case ast.Constant(value=str(text)) if DOTTED.fullmatch(text):
                yield node.lineno, text
            case ast.ClassDef():
                names = [name for name in _names_of(node) if is_private(name)]
                above = list(file.bases(node)) if names else []
                yield from (
                    (node.lineno, f"{node.name}.{name}") for name in names if any(_has(base, name) for base in above)
                )


def _names_of(node: ast.ClassDef) -> Iterator[str]:
    """What a class's body defines."""
    for part in node.body:
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _leads_inside(dotted: str) -> bool:
    """Whether an import goes through a private name of others."""
    return not dotted.startswith("kinoray.") and any(is_private(name) for name in dotted.split("."))


def _is_foreign(file: File, owner: ast.AST, name: str, own_anywhere: set[str]) -> bool:
    """Whether an attribute is private and not the package's own: of self, defined anywhere in it; else in the file."""
    if not is_private(name):
        return False
    if dotted := file.dotted(owner):
        return not dotted.startswith("kinoray")
    match owner:
        case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")):
            return name not in own_anywhere
    return name not in file.own


def _has(dotted: str, name: str) -> bool:
    """Whether a class, or a library's class above it, has a private name of the library."""
    if dotted.split(".")[0] not in (*LIBRARIES, "kinoray"):
        return False
    above = pkgutil.resolve_name(dotted).__mro__
    return any(name in vars(cls) for cls in above if cls.__module__.split(".")[0] in LIBRARIES)


@cache
def found() -> dict[tuple[str, str], int]:
    """The uses in the whole package: the line of each file and name."""
    paths = [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    files = {str(path.relative_to(REPOSITORY)): File(path.read_text(encoding="utf-8")) for path in paths}
    own = {name for file in files.values() for name in file.own}
    return {(path, name): line for path, file in files.items() for line, name in private_uses(file, own)}


def test_no_private_name_of_a_library_is_used() -> None:
    wrong = [
        f"{path}:{line} {name}"
        for (path, name), line in found().items()
        if not any(path == file and fnmatch(name, pattern) for file, pattern in EXCEPTIONS)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_still_needed() -> None:
    unused = [
        f"{file} {pattern}"
        for file, pattern in EXCEPTIONS
        if not any(path == file and fnmatch(name, pattern) for path, name in found())
    ]
    assert not unused, unused


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import ray._private.x", "ray._private.x"),
        ("from ray._raylet import y", "ray._raylet.y"),
        ("from ray.data._internal.z import a", "ray.data._internal.z.a"),
        ("from torch.nn.modules.dropout import _DropoutNd", "torch.nn.modules.dropout._DropoutNd"),
        ("import ray\nray._private.worker.stop()", "ray._private"),
        ("import torch\ntorch._foreach_add_([], 1)", "torch._foreach_add_"),
        ("from ray import train as t\nt._x", "ray.train._x"),
        ("def f(pool):\n    return pool._processes", "_processes"),
        ("class A:\n    def f(self):\n        return self.pool._processes", "_processes"),
        ("class A:\n    def f(self):\n        return self._of_a_base", "_of_a_base"),
        ("import torch\ngetattr(torch.ops, '_x', None)", "torch.ops._x"),
        ("def f(pool):\n    setattr(pool, '_x', 1)", "_x"),
        ("import ray\nray.init(_node_ip_address='127.0.0.1')", "_node_ip_address"),
        ("options = {'_system_config': 1}", "_system_config"),
        ("import importlib\nimportlib.import_module('ray._private.worker')", "ray._private.worker"),
        ("from torch import nn\nclass A(nn.Module):\n    def _apply(self): ...", "A._apply"),
        ("from torch import nn\nclass A(nn.Linear): ...\nclass B(A):\n    _version = 2", "B._version"),
        ("from kinoray.momentum import Frozen\nclass A(Frozen[int]):\n    def _apply(self): ...", "A._apply"),
    ],
)
def test_a_private_use_is_found(text: str, name: str) -> None:
    file = File(text)
    assert [name for _, name in private_uses(file, file.own)] == [name]


@pytest.mark.parametrize(
    "text",
    [
        "from torch import nn\nclass A(nn.Module):\n    def _own(self):\n        return self._own()",
        "class A:\n    def __init__(self):\n        self._x = 1\ndef f(a: A):\n    return a._x",
        "from kinoray import pool\npool._own()",
        "import os\nos._exit(1)\nx = y._replace(a=1)\nz.__dict__",
        "def f(_x): ...\nf(_x=1)",
        "_, a = b\n_",
        "known = {'_codecs.encode': 1}",
    ],
)
def test_what_is_public_or_ones_own_is_not(text: str) -> None:
    file = File(text)
    assert not list(private_uses(file, file.own))
