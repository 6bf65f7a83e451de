"""Methods by name, by file, or as a class in a notebook. Found by file name, imported only when used.

bmu_moco                     a method that comes with kinoray
./my_method.py               a file of your own
lwf:bmu_moco                 a rule around a learner; either may be a file, as in lwf:./my_method.py
lwf                          a rule around the default learner of the stream's protocol

A class given by value has its text and digest in every interpreter alike. A notebook cell has no file; its source is
what the interpreter stores of the cell. In the source is all that decides what the class does and that it was written
with: itself, its bases, its `Config`, and the functions, classes and plain values of its own module that these name.
What comes with kinoray, and installed libraries, are left out.
"""

import ast
import dis
import hashlib
import importlib
import importlib.util
import inspect
import json
import linecache
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kinoray.config import digest_of
from kinoray.errors import UsageError, unknown
from kinoray.system.folders import expanded

if TYPE_CHECKING:
    from kinoray.method import BaseMethod


@dataclass(frozen=True)
class MethodSource:
    """Where a method comes from, in a form that travels to other processes and machines.

    With none of `text` (a user's file), `pickled` (a notebook's class) and `parts` it is a module of `kinoray.methods`.
    """

    name: str
    digest: str
    """SHA-256 of the source, or of both parts' digests; of a class, of its `listing`, so that it is the same in every
    interpreter."""
    text: str | None = None
    pickled: bytes | None = None
    listing: str | None = None
    """What a pickled class was written as, in parts (`class_source`)."""
    unknown: tuple[str, ...] = ()
    """Parts of a pickled class that have no source."""
    parts: tuple["MethodSource", ...] = ()
    """Of a rule around a learner: the sources of both, in this order."""

    @property
    def files(self) -> tuple["MethodSource", ...]:
        """The sources that it is made of: two of a rule around a learner, else itself."""
        return self.parts or (self,)

    @property
    def own_digests(self) -> list[str]:
        """Digests of what is the user's own code; empty for a method that comes with kinoray."""
        return [part.digest for part in self.files if part.is_own]

    @property
    def is_own(self) -> bool:
        """Whether it is, or wraps, the user's own code."""
        return self.text is not None or self.pickled is not None or any(part.is_own for part in self.parts)

    def load(self) -> type["BaseMethod"]:
        """The class; of a rule and a learner, composed. Raises: UsageError where a file does not run or holds no
        `Method`, or the two do not go together."""
        from kinoray.method import BaseMethod

        if self.parts:
            from kinoray.rule import compose

            return compose(*(part.load() for part in self.parts))
        if self.pickled is not None:
            import cloudpickle

            return self._whole(cloudpickle.loads(self.pickled))
        module = importlib.import_module(f"kinoray.methods.{self.name}") if self.text is None else _run_text(self)
        cls = getattr(module, "Method", None)
        if not (isinstance(cls, type) and issubclass(cls, BaseMethod)):
            raise UsageError(f"{self.name}: the file must define `class Method(BaseMethod)`. See `kinoray new method`.")
        if "Config" not in vars(cls):
            if "Config" not in vars(module):
                raise UsageError(f"{self.name}: beside `Method` stands no `Config`, made by `kinoray.config.config`.")
            cls.Config = module.Config
            cls.RECIPES, cls.RELEASED = vars(module).get("RECIPES", {}), vars(module).get("RELEASED", {})
        return self._whole(cls)

    def _whole(self, cls: type["BaseMethod"]) -> type["BaseMethod"]:
        if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
            raise UsageError(f"{self.name}: its class lacks {' and '.join(lacking)}. See `kinoray new method`.")
        return cls


def methods_folder() -> Path:
    """Folder of the methods that come with kinoray."""
    package = importlib.util.find_spec("kinoray.methods")
    assert package is not None and package.submodule_search_locations
    return Path(next(iter(package.submodule_search_locations)))


def method_names() -> list[str]:
    """Names of the methods that come with kinoray: one file each."""
    return sorted(p.stem for p in methods_folder().glob("*.py") if p.stem != "__init__")


def find_method(method: "str | Path | type[BaseMethod] | MethodSource") -> MethodSource:
    """A method's source from its name, the path of a file, two of them as `rule:learner`, or a class.

    Raises: UsageError for an unknown name (with the nearest ones) or a missing file.
    """
    if isinstance(method, MethodSource):
        return method
    if isinstance(method, type):
        return _from_class(method)
    parts = [_find_one(name) for name in names_in(str(method))]
    return around(*parts) if len(parts) > 1 else parts[0]


def with_learner(source: MethodSource, protocol: str) -> MethodSource:
    """The source that runs on a stream of a protocol: a rule by itself gets the protocol's default learner.

    A rule around that learner is called by the rule's name alone, so that `lwf` and `lwf:base_moco` are one run.
    Raises: UsageError where the method's file does not run or the rule does not go with the learner.
    """
    from kinoray.evaluation.protocol import load_protocol
    from kinoray.rule import Rule

    usual = load_protocol(protocol).default_learner
    if source.parts:
        rule, learner = source.parts
        return replace(source, name=rule.name) if learner == find_method(usual) else source
    if issubclass(source.load(), Rule):
        return replace(around(source, find_method(usual)), name=source.name)
    return source


def names_in(text: str) -> list[str]:
    """The names or files in `method` or `rule:learner`. A file's name may hold colons itself."""
    if text.endswith(".py") and expanded(text).is_file():
        return [text]
    if ".py:" in text:
        rule, _, learner = text.partition(".py:")
        return [f"{rule}.py", learner]
    return text.split(":", 1)


def around(rule: MethodSource, learner: MethodSource) -> MethodSource:
    """A rule around a learner."""
    if learner.parts:
        raise UsageError(f"{learner.name} is a rule around a learner already; a rule wraps a learner.")
    digest = digest_of([rule.digest, learner.digest])
    return MethodSource(f"{rule.name}:{learner.name}", digest, parts=(rule, learner))


def _find_one(text: str) -> MethodSource:
    """The source of a name or file."""
    if text.endswith(".py"):
        path = expanded(text)
        if not path.is_file():
            raise UsageError(f"There is no method file {path}.")
        source = path.read_text()
        return MethodSource(path.stem, _digest(source), text=source)
    if text and Path(text).is_dir():
        raise UsageError(f"{text} is a folder, not a method. Name a method, and give the folder as the stream.")
    if text not in method_names():
        raise unknown("method", text, method_names(), "A file of your own: `./my_method.py`.")
    return MethodSource(text, _digest((methods_folder() / f"{text}.py").read_text()))


def _from_class(cls: "type[BaseMethod]") -> MethodSource:
    """A class by value; a file's own `Method` is named by its file, a composed class by its parts."""
    import cloudpickle

    from kinoray.method import BaseMethod
    from kinoray.rule import Rule, title

    if issubclass(cls, Rule) and cls.parts:
        return around(*map(_from_class, cls.parts))
    if not hasattr(cls, "Config") and cls.__name__ != "Method":
        raise UsageError(f"{cls.__name__} must set `Config`, a class made by `kinoray.config.config`.")
    name = title(cls)
    if cls.__module__ == f"kinoray.methods.{name}":
        return find_method(name)
    known = sys.stdlib_module_names | {"kinoray"}  # a class that type() made is said to live in `abc`
    for base in cls.__mro__:  # the classes it builds on may be as unknown to a worker as itself
        home, top = sys.modules.get(base.__module__), base.__module__.partition(".")[0]
        if home is not None and issubclass(base, BaseMethod) and top not in known:
            cloudpickle.register_pickle_by_value(home)
    listing = listing_of(cls)
    return MethodSource(
        name, _digest(listing), pickled=cloudpickle.dumps(cls), listing=listing, unknown=tuple(missing_of(cls))
    )


def _run_text(source: MethodSource) -> types.ModuleType:
    """Run a user's method file as a module of its own; the same text is run once per process."""
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


def _digest(text: str) -> str:
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
