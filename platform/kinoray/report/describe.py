"""One method, stream or backbone, told in full: settings with their meaning, recipes, search spaces, what it needs.

Streams and backbones are told without torch; a method's own file is imported.
"""

import ast
import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import kinoray.config
from kinoray import backbones, streams
from kinoray.config import Recipe, defaults_of, differing, plain
from kinoray.errors import UsageError, unknown
from kinoray.families import families, family_file, stated
from kinoray.runs.method_source import MethodSource, find_method, method_names, methods_folder, names_in
from kinoray.runs.result import Result
from kinoray.streams.rendering import nothing_rendered
from kinoray.system.folders import expanded

BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def describe(name: str) -> dict[str, Any]:
    """What there is to say about a method, a stream or a backbone, as plain values; `kind` says which it is.

    No video is rendered; a set of pictures that was never used is made, in a second.

    Args:
        name: A name; of a method also `./my_method.py` and `rule:learner`, of a stream also a folder.

    Raises:
        UsageError: The name is unknown.
    """
    base = name.partition(":")[0]
    known_streams, known_backbones = streams.stream_families(), families(backbones.__path__)
    if base in method_names() or ".py" in name:
        return _method(name)
    family = known_streams.get(base.partition("/")[0])  # of a downstream set, the stream's
    if family or expanded(base).is_dir():
        return _stream(name, family)
    if base in known_backbones:
        return _backbone(name, known_backbones[base])
    raise unknown("method, stream or backbone", base, {*method_names(), *known_streams, *known_backbones})


def _method(name: str) -> dict[str, Any]:
    """A method; of a rule around a learner, the rule with the learner's facts beside."""
    parts = [_one_method(find_method(part)) for part in names_in(name)]
    return parts[0] | ({"learner": parts[1]} if len(parts) > 1 else {})


def _one_method(source: MethodSource) -> dict[str, Any]:
    from kinoray.rule import Rule

    text = source.text or (methods_folder() / f"{source.name}.py").read_text(encoding="utf-8")
    cls = source.load()
    return {
        "kind": "method",
        "name": source.name,
        "about": first_paragraph(text),
        "role": "rule" if issubclass(cls, Rule) else "whole" if cls.whole else "learner",
        "suits": list(cls.suits),
        "tested_by": cls.tested_by,
        "builds_on": cls.backbones.__name__,
        "settings": settings_of(cls.Config, text),
        "recipes": cls.RECIPES,
        "as_released": cls.RELEASED,
        "spaces": _spaces(source, cls.__module__),
    }


def _spaces(source: MethodSource, module: str) -> dict[str, Any]:
    """Name -> search space; "" is the usual one."""
    home = module if source.is_own else f"kinoray.search_spaces.{source.name}"
    if not source.is_own and importlib.util.find_spec(home) is None:
        return {}
    if not source.is_own:
        importlib.import_module(home)
    names = vars(sys.modules[home])
    return ({"": names["SPACE"]} if "SPACE" in names else {}) | names.get("SPACES", {})


def _stream(name: str, family: str | None) -> dict[str, Any]:
    """A stream; one whose data is not there says what it needs in place of its tasks."""
    file = family_file(streams.__path__, family or "user_folder")
    about = {"kind": "stream", "name": name, "about": ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))}
    try:
        with nothing_rendered():
            stream = streams.load_stream(name)
    except UsageError as problem:
        return about | {"needs": str(problem)}
    recipe = plain(stream.recipe)
    docs = {setting["name"]: setting for setting in settings_of(Recipe, _text_of(kinoray.config))}
    sets = differing(recipe, Recipe)
    return about | {
        "needs": "",
        "protocol": stream.protocol,
        "backbone": stream.backbone,
        "tasks": [task.name for task in stream.tasks],
        "downstream": [task.name for task in stream.downstream],
        "recipe": recipe,
        "recipe_sets": [docs[key] | {"value": value} for key, value in sets.items()],
        "recipe_rest": [setting for name, setting in docs.items() if name not in sets],
    }


def _backbone(name: str, family: str) -> dict[str, Any]:
    forms = stated(backbones.__path__, "ABOUT")[family]
    text = family_file(backbones.__path__, family).read_text(encoding="utf-8")
    return {"kind": "backbone", "name": name, "about": ast.get_docstring(ast.parse(text)), "forms": forms}


# Settings


def settings_of(cls: type, text: str) -> list[dict[str, Any]]:
    """Name, default, range and docstring of every field of a config.

    text: the source of the file that the class stands in.
    """
    docs, defaults = field_docs(text, cls.__name__), defaults_of(cls)
    infos: Mapping[str, Any] = cls.__pydantic_fields__  # type: ignore[attr-defined]
    return [
        {
            "name": name,
            "default": defaults.get(name),
            "range": allowed(info),
            "about": docs.get(name, ""),
        }
        for name, info in infos.items()
    ]


def allowed(info: Any) -> str:
    """What a field of a config may be, in a few signs: `>= 0, <= 1`, or its words; "" for anything of its type."""
    if get_origin(info.annotation) is Literal:
        return ", ".join(map(str, get_args(info.annotation)))
    if info.annotation is bool:
        return "true, false"
    bounds = ((sign, getattr(mark, key, None)) for mark in info.metadata for key, sign in BOUNDS.items())
    return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


def field_docs(text: str, cls: str = "Config") -> dict[str, str]:
    """Field -> the docstring below it, of a class in a file, read without running the file."""
    classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == cls)
    body = getattr(next(classes, None), "body", [])
    return {
        field.target.id: " ".join(doc.value.value.split())
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(doc)
    }


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _text_of(module: Any) -> str:
    return Path(module.__file__).read_text(encoding="utf-8")


def list_methods() -> list[dict[str, str]]:
    """Name, kind and first docstring line of every installed method, found by file name."""
    files = {name: methods_folder() / f"{name}.py" for name in method_names()}
    return [{"name": name, "kind": kind_of(file), "about": first_sentence(file)} for name, file in files.items()]


def list_streams() -> list[dict[str, str]]:
    """The streams by name, and how to name a folder."""
    named = [
        {"name": name, "about": first_sentence(family_file(streams.__path__, family)).partition(": ")[2]}
        for name, family in streams.stream_families().items()
    ]
    own = {"name": "FOLDER", "about": "a folder of your own: videos and captions.csv, .jsonl or .parquet"}
    return [*named, own]


def list_backbones() -> list[dict[str, str]]:
    """The backbones by name, and the forms that a name takes."""
    return [{"name": form, "about": about} for form, about in backbones.list_backbones().items()]


def run_line(result: Result) -> dict[str, Any]:
    """One run in one line; `cost_s` is its wall time, None before its first result."""
    outcome = result.outcome  # read once: a list has a thousand of them
    return {
        "name": result.label,
        "stream": result.stream,
        "backbone": result.run["backbone"],
        "seed": result.seed,
        "order": result.order,
        "state": outcome["state"],
        "metrics": outcome.get("metrics", {}),
        "brief": result.protocol.brief,
        "cost_s": outcome.get("cost", {}).get("wall_s"),
        "error": outcome.get("error"),
        "folder": str(result.folder),
    }


def first_sentence(file: Path) -> str:
    """First sentence of a Python file's docstring, read without running the file."""
    return re.split(r"(?<=\.) (?=[A-Z])", first_paragraph(file.read_text(encoding="utf-8")))[0]


def first_paragraph(text: str) -> str:
    """The first paragraph of a Python file's docstring, in one line."""
    return " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())


def kind_of(file: Path) -> str:
    """What a method's file holds: a "rule" that wraps a learner, a "whole" method, or a "learner"; read without running
    the file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    method = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Method"), None)
    if method is None:
        return "learner"
    if any(ast.unparse(base).rpartition(".")[2] == "Rule" for base in method.bases):
        return "rule"
    stated = {ast.unparse(node) for node in method.body if isinstance(node, ast.Assign | ast.AnnAssign)}
    return "whole" if any(line.startswith("whole") and line.endswith("= True") for line in stated) else "learner"
