"""Code of the user's own, a file or a class of a notebook: its digest, how it travels, what runs it.

`./my_backbone.py` or `./my_backbone.py:OPTIONS` means a file wherever a name is asked for. Its text is read once: other
processes and machines run this text, whatever stands in the file by then.

A class given by value has its text and digest in every interpreter alike. A notebook cell has no file; its source is
what the interpreter stores of the cell. In the source is all that decides what the class does and that it was written
with: itself, its bases, its `Config`, and the functions, classes and plain values of its own module that these name.
What comes with kinoray, and installed libraries, are left out.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from kinoray.errors import UsageError
from kinoray.system.folders import expanded

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """Where code comes from, in a form that travels: of the user's own `text` or `pickled`, else it is kinoray's."""

    name: str
    digest: str
    """SHA-256 of the source; of a class, of its `listing`, so that it is the same in every interpreter."""
    text: str | None = None
    """Of a user's file."""
    pickled: bytes | None = None
    """A notebook's class."""
    listing: str | None = None
    """What a pickled class was written as, in parts (`listing_of`)."""
    unknown: tuple[str, ...] = ()
    """Parts of a pickled class that have no source."""

    @property
    def is_own(self) -> bool:
        """Whether it is the user's own code."""
        return self.text is not None or self.pickled is not None


class OwnName(str):
    """The name of a user's own file or class, `my_backbone` or `my_backbone:OPTIONS`, with its source: wherever the
    name goes, in this process or to another one, the code goes along."""

    source: Source

    def __new__(cls, name: str, source: Source) -> "OwnName":
        made = super().__new__(cls, name)
        made.source = source
        return made

    def __getnewargs__(self) -> tuple[str, Source]:  # type: ignore[override]
        return str(self), self.source


def named(given: Any, kind: str, base: type) -> str:
    """What stands for something in a run: a name as it is given, an `OwnName` for a file or a class.

    Args:
        given: A name, `./FILE.py[:OPTIONS]`, or a class.
        kind: What it is, for messages: "backbone", "protocol".
        base: What such a class derives from.

    Raises:
        UsageError: Where there is no such file, or it is none of these.
    """
    if isinstance(given, OwnName):
        return given
    if isinstance(given, type) and issubclass(given, base):
        return OwnName(given.__name__, of_class(given, given.__name__, base))
    if not isinstance(given, str | Path):
        raise UsageError(f"Give a {kind} as a name, ./my_{kind}.py or a subclass of {base.__name__}, not {given!r}.")
    return name_of_file(str(given), kind) or str(given)


def name_of_file(text: str, kind: str) -> OwnName | None:
    """The name that `./FILE.py` or `./FILE.py:OPTIONS` stands for; None where the text names no such file.

    Raises: UsageError where the file is not there.
    """
    if (parts := file_and_options(text)) is None:
        return None
    source, options = of_file(parts[0], kind), parts[1]
    return OwnName(f"{source.name}:{options}" if options else source.name, source)


def file_and_options(text: str) -> tuple[str, str] | None:
    """File and options of `./FILE.py` or `./FILE.py:OPTIONS`; None where the text names no such file."""
    file, colon, options = (text[:-3], ":", "") if text.endswith(".py") else text.partition(".py:")
    return (f"{file}.py", options) if colon else None


def saved_as(kind: str) -> str:
    """The file of a run's folder that holds the user's own backbone or protocol."""
    return f"{kind}.py"


def recorded_name(folder: Path, record: Mapping[str, Any], kind: str) -> str:
    """The name of a run's backbone or protocol, as its run.json has it; of the user's own with the code saved in the
    run's folder, which must be what was recorded. Nothing of it is run here.

    Raises: UsageError where the code is not there, or is another, or was a class of a running program.
    """
    name, source = record[kind], record.get(f"{kind}_source")
    if source is None:
        if ".py" in name and file_and_options(name):  # a file elsewhere is no part of a record
            raise UsageError(f"{folder / 'run.json'} names the {kind} {name}, but does not contain its source.")
        return name
    if source["kind"] == "class":
        raise UsageError(f"The {kind} of {folder}, {name}, is {source['why']}. Save it as a file, and run that file.")
    file = of_file(str(folder / saved_as(kind)), kind)
    if file.digest != source["digest"]:
        raise UsageError(f"{folder / saved_as(kind)} is not the {kind} that the run was made with. Restore it.")
    return OwnName(name, replace(file, name=source["name"]))


def of_file(file: str, kind: str) -> Source:
    """The source that a file holds now. Raises: UsageError."""
    path = expanded(file)
    if not path.is_file():
        raise UsageError(f"There is no {kind} file {path}. `kinoray new {kind} NAME` writes one to begin with.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Write it as UTF-8 text.") from None
    return Source(path.stem, digest_of_text(text), text=text)


def of_class(cls: type, name: str, base: type) -> Source:
    """The source of a class by value. base: what classes of its kind derive from."""
    import cloudpickle

    known = sys.stdlib_module_names | {"kinoray"}  # a class that type() made is said to live in `abc`
    for part in cls.__mro__:  # the classes it builds on may be as unknown to a worker as itself
        home, top = sys.modules.get(part.__module__), part.__module__.partition(".")[0]
        if home is not None and issubclass(part, base) and top not in known:
            cloudpickle.register_pickle_by_value(home)
    listing = listing_of(cls)
    digest, pickled = digest_of_text(listing), cloudpickle.dumps(cls)
    return Source(name, digest, pickled=pickled, listing=listing, unknown=tuple(missing_of(cls)))


def class_of(source: Source, constant: str, base: type) -> tuple[type, dict[str, Any]]:
    """The class that a user's own code is, and what else its file defines; {} for a class by value.

    constant: what names the class in a file; where it is left out, the file's only class derived from `base`.
    Raises: UsageError where the file does not run, or does not tell the class.
    """
    if source.pickled is not None:
        import cloudpickle

        return cloudpickle.loads(source.pickled), {}
    module = run_text(source)
    stated = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    file, kinds = f"{source.name}.py", [v for v in stated.values() if isinstance(v, type) and issubclass(v, base)]
    own = [*dict.fromkeys(kind for kind in kinds if kind.__module__ == module.__name__)]
    made = stated.get(constant)
    if made not in own and getattr(made, "__name__", "") == constant:  # imported, as `from ... import Protocol`
        made = None
    if made is None:
        if not own:
            raise UsageError(f"{file} defines no class derived from {base.__name__}. See `kinoray new`.")
        if len(own) > 1:
            names = " and ".join(kind.__name__ for kind in own)
            raise UsageError(f"{file} defines {names}: say which one is meant, as `{constant} = {own[-1].__name__}`.")
        made = own[0]
    if made not in kinds:
        raise UsageError(f"{file}: `{constant}` must be a class derived from {base.__name__}, but is {made!r}.")
    return made, stated


def whole(cls: type[T], name: str) -> type[T]:
    """The class. Raises: UsageError for one that lacks a verb of its base."""
    if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
        raise UsageError(f"{name}: its class lacks {' and '.join(lacking)}. See `kinoray new`.")
    return cls


def run_text(source: Source) -> types.ModuleType:
    """Run a user's file as a module of its own; the same text is run once per process."""
    assert source.text is not None
    home = f"kinoray_user_{source.digest[:12]}"
    sys.modules.setdefault(home, types.ModuleType(home))  # pickle finds a dotted name under a package only
    name = f"{home}.{source.name}"
    if name in sys.modules:
        return sys.modules[name]
    module = types.ModuleType(name)
    module.__file__ = file = f"{source.name}.py"
    sys.modules[name] = module
    # For tracebacks and `inspect`: what stands in the file by now may be another text.
    linecache.cache[file] = len(source.text), None, source.text.splitlines(keepends=True), file
    try:
        exec(compile(source.text, file, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{source.name}.py does not run: {type(error).__name__}: {error}.") from error
    return module


def digest_of_text(text: str) -> str:
    """SHA-256 of a source."""
    return hashlib.sha256(text.encode()).hexdigest()


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
