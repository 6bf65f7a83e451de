"""Methods by name, by file, or as a class in a notebook. Found by file name, imported only when used."""

import hashlib
import importlib
import importlib.util
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kinoray.errors import UsageError, unknown
from kinoray.runs.class_source import listing_of, missing_of

if TYPE_CHECKING:
    from kinoray.method import BaseMethod


@dataclass(frozen=True)
class MethodSource:
    """Where a method comes from, in a form that travels to other processes and machines.

    With neither `text` (a user's file) nor `pickled` (a notebook's class) it is a module of `kinoray.methods`.
    """

    name: str
    digest: str
    """SHA-256 of the source; of a class, of its `listing`, so that it is the same in every interpreter."""
    text: str | None = None
    pickled: bytes | None = None
    listing: str | None = None
    """What a pickled class was written as, in parts (`class_source`)."""
    unknown: tuple[str, ...] = ()
    """Parts of a pickled class that have no source."""

    @property
    def is_own(self) -> bool:
        """Whether it is the user's own code, and no method that comes with kinoray."""
        return self.text is not None or self.pickled is not None

    def load(self) -> type["BaseMethod"]:
        """The class. Raises: UsageError where the file does not run or holds no `Method`."""
        from kinoray.method import BaseMethod

        if self.pickled is not None:
            import cloudpickle

            return cloudpickle.loads(self.pickled)
        module = importlib.import_module(f"kinoray.methods.{self.name}") if self.text is None else _run_text(self)
        cls = getattr(module, "Method", None)
        if not (isinstance(cls, type) and issubclass(cls, BaseMethod)):
            raise UsageError(f"{self.name}: the file must define `class Method(BaseMethod)`. See `kinoray new method`.")
        if "Config" not in vars(cls):
            if "Config" not in vars(module):
                raise UsageError(f"{self.name}: beside `Method` stands no `Config`, made by `kinoray.config.config`.")
            cls.Config, cls.RECIPES = module.Config, vars(module).get("RECIPES", {})
        return cls


def methods_folder() -> Path:
    """Folder of the methods that come with kinoray."""
    found = importlib.util.find_spec("kinoray.methods")
    assert found is not None and found.submodule_search_locations
    return Path(next(iter(found.submodule_search_locations)))


def method_names() -> list[str]:
    """Names of the methods that come with kinoray: one file each."""
    return sorted(p.stem for p in methods_folder().glob("*.py") if p.stem != "__init__")


def find_method(method: "str | Path | type[BaseMethod] | MethodSource") -> MethodSource:
    """A method's source from its name, the path of a file, or a class.

    Raises: UsageError for an unknown name (with the nearest ones) or a missing file.
    """
    if isinstance(method, MethodSource):
        return method
    if isinstance(method, type):
        return _from_class(method)
    text = str(method)
    if text.endswith(".py"):
        path = Path(text)
        if not path.is_file():
            raise UsageError(f"There is no method file {path}.")
        source = path.read_text()
        return MethodSource(path.stem, _digest(source), text=source)
    if Path(text).is_dir():
        raise UsageError(f"{text} is a folder, not a method. Name a method, and give the folder as the stream.")
    if text not in method_names():
        raise unknown("method", text, method_names(), "A file of your own: `./my_method.py`.")
    return MethodSource(text, _digest((methods_folder() / f"{text}.py").read_text()))


def _from_class(cls: "type[BaseMethod]") -> MethodSource:
    """A class by value; a file's own `Method` is named by its file."""
    import cloudpickle

    from kinoray.method import BaseMethod

    if not hasattr(cls, "Config") and cls.__name__ != "Method":
        raise UsageError(f"{cls.__name__} must set `Config`, a class made by `kinoray.config.config`.")
    name = cls.__module__.rsplit(".", 1)[-1] if cls.__name__ == "Method" else cls.__name__
    if cls.__module__ == f"kinoray.methods.{name}":
        return find_method(name)
    for base in cls.__mro__:  # the classes it builds on may be as unknown to a worker as itself
        home = sys.modules.get(base.__module__)
        if home is not None and issubclass(base, BaseMethod) and not base.__module__.startswith("kinoray."):
            cloudpickle.register_pickle_by_value(home)
    listing = listing_of(cls)
    return MethodSource(
        name, _digest(listing), pickled=cloudpickle.dumps(cls), listing=listing, unknown=tuple(missing_of(cls))
    )


def _run_text(source: MethodSource) -> types.ModuleType:
    """Run a user's method file as a module of its own; the same text is run once per process."""
    assert source.text is not None
    name = f"kinoray_user_{source.name}_{source.digest[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    module = types.ModuleType(name)
    module.__file__ = f"{source.name}.py"
    sys.modules[name] = module
    try:
        exec(compile(source.text, f"{source.name}.py", "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{source.name}.py does not run: {type(error).__name__}: {error}.") from error
    return module


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
