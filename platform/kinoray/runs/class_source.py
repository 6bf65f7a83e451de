"""The source of a class given by value, and a digest of it that is the same in every interpreter.

A class of a notebook cell has no file; its source is what the interpreter stores of the cell. In the source is all that
decides what the class does and that it was written with: itself, its bases, its `Config`, and the functions, classes
and plain values of its own module that these name. What comes with kinoray, and installed libraries, are left out.
"""

import ast
import dis
import hashlib
import inspect
import json
import linecache
import sys
import textwrap
import types
from collections.abc import Iterator

NOT_THE_USERS = ("kinoray", "torch", "abc", "builtins", "typing", "numpy", "pydantic", "dataclasses")
PLAIN = (bool, int, float, str, bytes, type(None))


def listing_of(cls: type) -> str:
    """The sources that a class is made of, in the order in which they are met; what has none as a comment."""
    return "\n\n".join((_source(thing) or _stand_in(thing)).rstrip() for thing in _things(cls)) + "\n"


def missing_of(cls: type) -> list[str]:
    """Names of what a class is made of that has no source: typed at a prompt, or made by exec."""
    return [_name(thing) for thing in _things(cls) if _source(thing) is None]


def _stand_in(thing: object) -> str:
    return f"# {_name(thing)}: no source; its compiled code is {_code_digest(thing)}"


def _name(thing: object) -> str:
    return thing[0] if isinstance(thing, tuple) else str(getattr(thing, "__qualname__", thing))


def _things(cls: type) -> list[object]:
    """The class and what it is made of: classes, functions, and (name, value) of plain values; each once."""
    things: dict[str, object] = {}
    waiting: list[object] = [cls]
    while waiting:
        thing = waiting.pop(0)
        key = f"{getattr(thing, '__module__', '')}:{_name(thing)}"
        if key in things:
            continue
        things[key] = thing
        if isinstance(thing, type):
            config = vars(thing).get("Config")
            waiting += [base for base in thing.__mro__[1:] if _is_the_users(base)]
            waiting += [config] if isinstance(config, type) and _is_the_users(config) else []
        if not isinstance(thing, tuple):
            waiting += list(_named_by(thing))
    return list(things.values())


def _is_the_users(thing: object) -> bool:
    home = getattr(thing, "__module__", None) or ""
    if home.partition(".")[0] in NOT_THE_USERS:
        return False
    file = getattr(sys.modules.get(home), "__file__", None) or ""
    return "site-packages" not in file and not (home in sys.stdlib_module_names and home != "__main__")


def _named_by(thing: object) -> Iterator[object]:
    """What the code of a class or function names among the globals of its own module."""
    for function in _functions(thing):
        for name in sorted(_names(function.__code__)):
            value = function.__globals__.get(name)
            if isinstance(value, PLAIN) and name in function.__globals__ and not name.startswith("__"):
                yield (name, value)
            elif isinstance(value, type | types.FunctionType) and value.__module__ == function.__module__:
                yield value


def _names(code: types.CodeType) -> set[str]:
    """Globals that a code reads, also in the functions inside it; not the attributes of the same names."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*map(_names, inner))


def _functions(thing: object) -> list[types.FunctionType]:
    """A function itself; of a class those that it defines, in the order of their lines."""
    if isinstance(thing, types.FunctionType):
        return [thing]
    functions = []
    for value in vars(thing).values():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        inner = inspect.unwrap(inner) if callable(inner) else inner
        if isinstance(inner, types.FunctionType) and inner.__globals__.get("__name__") == thing.__module__:
            functions.append(inner)
    return sorted(functions, key=lambda f: (f.__code__.co_firstlineno, f.__qualname__))


def _source(thing: object) -> str | None:
    """Source text of a class, function or plain value; None where the interpreter keeps none."""
    if isinstance(thing, tuple):
        return f"{thing[0]} = {thing[1]!r}"
    if isinstance(thing, type):
        for function in _functions(thing):
            source = _class_around(function.__code__, thing.__qualname__)
            if source is not None:
                return source
    try:
        return textwrap.dedent(inspect.getsource(thing))  # type: ignore[arg-type]
    except (OSError, TypeError, IndentationError, SyntaxError):
        return _in_some_cell(thing) if isinstance(thing, type) else None


def _class_around(code: types.CodeType, name: str) -> str | None:
    """The class of that name around a function's first line, from the lines that the interpreter keeps."""
    return _cut("".join(linecache.getlines(code.co_filename)), name, code.co_firstlineno)


def _in_some_cell(cls: type) -> str | None:
    """A class without functions, of a notebook: the last cell that defines it."""
    if cls.__module__ != "__main__":
        return None
    for file, entry in reversed(linecache.cache.items()):
        if len(entry) > 2 and ("ipykernel" in file or file.startswith("<ipython")):
            source = _cut("".join(entry[2]), cls.__qualname__, None)
            if source is not None:
                return source
    return None


def _cut(text: str, name: str, line: int | None) -> str | None:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a cell with magics
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name.rpartition(".")[2]:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if line is None or first <= line <= (node.end_lineno or line):
                lines = text.splitlines(keepends=True)[first - 1 : node.end_lineno]
                return textwrap.dedent("".join(lines))
    return None


def _code_digest(thing: object) -> str:
    """Of what has no source: its compiled code, without the places where it was compiled."""
    parts = [_name(thing), *(_code(function.__code__) for function in _functions(thing))]
    if isinstance(thing, type):
        parts += [f"{n}={v!r}" for n, v in sorted(vars(thing).items()) if isinstance(v, PLAIN) and n[:2] != "__"]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _code(code: types.CodeType) -> list[object]:
    constants = [_code(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    return [code.co_name, code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _constant(value: object) -> str:
    """A constant in words; the order of a set's elements differs between interpreters."""
    return f"frozenset({sorted(map(repr, value))})" if isinstance(value, frozenset) else repr(value)
