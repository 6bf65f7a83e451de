"""Methods by name, by file, or as a class in a notebook. Found by file name, imported only when used.

bmu_moco                     a method that comes with kinoray
./my_method.py               a file of your own
lwf:bmu_moco                 a rule around a learner; either may be a file, as in lwf:./my_method.py
lwf                          a rule around the default learner of the stream's protocol
"""

import importlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kinoray.config import digest_of
from kinoray.errors import UsageError, unknown
from kinoray.source import Source, digest_of_text, of_class, of_file, run_text, whole
from kinoray.system.folders import expanded

if TYPE_CHECKING:
    from kinoray.method import BaseMethod


@dataclass(frozen=True)
class MethodSource(Source):
    """Where a method comes from. `digest` is that of its source, or of both parts' digests.

    With none of `text`, `pickled` and `parts` it is a module of `kinoray.methods`.
    """

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
        return super().is_own or any(part.is_own for part in self.parts)

    def load(self) -> type["BaseMethod"]:
        """The class; of a rule and a learner, composed. Raises: UsageError where a file does not run or holds no
        `Method`, or the two do not go together."""
        from kinoray.method import BaseMethod

        if self.parts:
            from kinoray.rule import compose

            return compose(*(part.load() for part in self.parts))
        if self.pickled is not None:
            import cloudpickle

            return whole(cloudpickle.loads(self.pickled), self.name)
        module = importlib.import_module(f"kinoray.methods.{self.name}") if self.text is None else run_text(self)
        cls = getattr(module, "Method", None)
        if not (isinstance(cls, type) and issubclass(cls, BaseMethod)):
            raise UsageError(f"{self.name}: the file must define `class Method(BaseMethod)`. See `kinoray new method`.")
        if "Config" not in vars(cls):
            if "Config" not in vars(module):
                raise UsageError(f"{self.name}: the file must also define `Config`, made by `kinoray.config.config`.")
            cls.Config = module.Config
            cls.RECIPES, cls.RELEASED = vars(module).get("RECIPES", {}), vars(module).get("RELEASED", {})
        return whole(cls, self.name)


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
        raise UsageError(f"{learner.name} is already a rule with a learner; only a learner can be wrapped.")
    digest = digest_of([rule.digest, learner.digest])
    return MethodSource(f"{rule.name}:{learner.name}", digest, parts=(rule, learner))


def _find_one(text: str) -> MethodSource:
    """The source of a name or file."""
    if text.endswith(".py"):
        return MethodSource(**vars(of_file(text, "method")))
    if text and Path(text).is_dir():
        raise UsageError(f"{text} is a folder, not a method. Name a method, and give the folder as the stream.")
    if text not in method_names():
        raise unknown("method", text, method_names(), "For a file of your own, write `./my_method.py`.")
    return MethodSource(text, digest_of_text((methods_folder() / f"{text}.py").read_text()))


def _from_class(cls: "type[BaseMethod]") -> MethodSource:
    """A class by value; a file's own `Method` is named by its file, a composed class by its parts."""
    from kinoray.method import BaseMethod
    from kinoray.rule import Rule, title

    if issubclass(cls, Rule) and cls.parts:
        return around(*map(_from_class, cls.parts))
    if not hasattr(cls, "Config") and cls.__name__ != "Method":
        raise UsageError(f"{cls.__name__} must set `Config`, a class made by `kinoray.config.config`.")
    name = title(cls)
    if cls.__module__ == f"kinoray.methods.{name}":
        return find_method(name)
    return MethodSource(**vars(of_class(cls, name, BaseMethod)))
