"""The commands that can be submitted, as data: what each word means to the cluster, and how the result is read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kinoray.cluster import results, words
from kinoray.cluster.words import Meaning
from kinoray.errors import UsageError


@dataclass(frozen=True)
class Verb:
    """A command: the meanings of its words. Options that are not named here have a plain value."""

    arguments: tuple[Meaning, ...]
    """By position; the last one is that of all that follow."""
    options: Mapping[str, Meaning] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    """Options without a value, beside `COMMON`."""
    in_runs: bool = True
    """Whether it works in the results' folder and takes --runs."""
    result: results.Kind | None = None
    """How what it made is read again; None: it prints what it found, and each time looks anew."""


@dataclass(frozen=True)
class Word:
    """A word of a command, or an option's value."""

    value: str
    meaning: Meaning
    option: str = ""
    """The option that it is, or whose value it is; "" for an argument."""
    prefix: str = ""
    """What stands before the value in the same word: `--seed=`."""


COMMON = frozenset({"--json", "--quiet", "--debug", "--dry-run", "--smoke"})

VERBS: dict[str, Verb] = {
    "run": Verb(
        arguments=(words.method_or_experiment,),
        options={"--stream": words.stream, "--backbone": words.backbone, "--config": words.experiment},
        flags=frozenset({"--joint", "--zero-shot", "--as-released", "--dashboard", "--fresh"}),
        result=results.RUNS,
    ),
    "sweep": Verb(
        arguments=(words.method,),
        options={
            "--stream": words.stream,
            "--backbone": words.backbone,
            "--space": words.space,
            "--then": words.method,
            "--storage": words.storage,
            "--warm-start": words.run,
        },
        flags=frozenset({"--prune", "--no-prune", "--tensorboard", "--dashboard"}),
        result=results.SWEEP,
    ),
    "extend": Verb(
        arguments=(words.run,),
        options={"--task": words.task, "--stream": words.stream, "--method": words.method},
        result=results.RUNS,
    ),
    "reproduce": Verb(
        arguments=(words.plain,),
        options={"--stream": words.stream, "--backbone": words.backbone, "--clip": words.file},
        flags=frozenset({"--tune", "--keep", "--partial"}),
        result=results.TABLE,
    ),
    "search": Verb(
        arguments=(words.run, words.plain),
        options={"--like": words.file, "--out": words.place, "--method": words.method},
    ),
    "data prepare": Verb(arguments=(words.plain,), options={"--root": words.place}, in_runs=False),
    "data check": Verb(arguments=(words.stream,), flags=frozenset({"--deep"}), in_runs=False),
    "data stats": Verb(arguments=(words.stream,), options={"--out": words.place}, in_runs=False),
    "data show": Verb(arguments=(words.stream, words.plain), options={"--out": words.place}, in_runs=False),
    "data list": Verb(arguments=(words.plain,), in_runs=False),
}
NAMES = "run, sweep, extend, reproduce, search or data (prepare, check, stats, show, list)"


def named(typed: Sequence[str]) -> str:
    """The verb that a command begins with. Raises: UsageError for one that is not submitted."""
    for count in (1, 2):
        if " ".join(typed[:count]) in VERBS and len(typed) >= count:
            return " ".join(typed[:count])
    raise UsageError(f"What is submitted begins with {NAMES}, as in `kinoray submit run bmu_moco`.")


def parsed(name: str, typed: Sequence[str]) -> Iterator[Word]:
    """The words behind a verb, each with its meaning. Of --runs only the value is left."""
    verb = VERBS[name]
    position, only_arguments = 0, False
    left = iter(typed)
    for word in left:
        option, equals, value = word.partition("=")
        if only_arguments or not word.startswith("--"):
            yield Word(word, verb.arguments[min(position, len(verb.arguments) - 1)])
            position += 1
        elif equals:
            yield Word(value, _meaning(verb, option), option, f"{option}=")
        else:
            only_arguments = word == "--"
            if option != "--runs":
                yield Word(word, words.plain, option)
            if not only_arguments and option not in COMMON | verb.flags:
                yield from (Word(value, _meaning(verb, option), option) for value in islice(left, 1))


def _meaning(verb: Verb, option: str) -> Meaning:
    return words.place if option == "--runs" else verb.options.get(option, words.plain)
