"""Where kinoray keeps what it made of data: one folder of the user, outside every data set."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kinoray.errors import StorageFull, UsageError


def expanded(path: str | Path) -> Path:
    """A path that a user gave, with the home in place of a leading `~`. Raises: UsageError where there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{path}: `~` has no home folder to stand for. Set HOME, or give the whole path.") from None


def cache_folder() -> Path:
    """Where rendered streams, manifests and decoded clips lie: `$XDG_CACHE_HOME/kinoray`, else `~/.cache/kinoray`.

    Raises: UsageError where there is neither.
    """
    if named := os.environ.get("XDG_CACHE_HOME"):
        return expanded(named) / "kinoray"
    with suppress(RuntimeError):
        return Path.home() / ".cache" / "kinoray"
    raise UsageError("There is no home folder for the cache. Set XDG_CACHE_HOME to a folder that can be written.")


MOST_BYTES, FREE_SHARE = 20_000_000_000, 0.1
"""Bound of what a folder keeps where none is set: the smaller of these, the share being of the disk's free space."""


def given_bound(variable: str, what: str) -> int:
    """The bytes that an environment variable bounds `what` by; 0 where it is not set.

    Raises: UsageError where it is no whole number above 0.
    """
    given = os.environ.get(variable, "")
    if given and not (given.isdecimal() and int(given)):
        raise UsageError(f"{variable}={given}: give {what} as a whole number of bytes.")
    return int(given or 0)


def usual_bound(folder: str | Path, held: int) -> int:
    """The bytes that a folder which holds so many may keep, where nobody set a bound."""
    return int(min(MOST_BYTES, FREE_SHARE * (shutil.disk_usage(folder).free + held)))


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Write something into the cache. Raises: StorageFull, with the variable to set, where that fails."""
    try:
        yield
    except OSError as error:
        raise StorageFull(
            f"Cannot write {what}: {error.strerror or error}. Free space there or set XDG_CACHE_HOME to another folder."
        ) from None


def prepared_folder(name: str) -> Path:
    """Where `kinoray data prepare NAME` keeps a set's `manifest.parquet`, report and lists."""
    return cache_folder() / "data" / name


def data_folder(name: str, otherwise: str) -> Path:
    """Where the user keeps the files of a set: `KINORAY_DATA/NAME`.

    otherwise: what to do where the variable is not set. Raises: UsageError that says so.
    """
    parent = os.environ.get("KINORAY_DATA")
    if not parent:
        raise UsageError(f"The folder with the files of {name} is not given. {otherwise}.")
    return expanded(parent) / name


def runs_root(given: str | Path | None = None) -> Path:
    """Where run folders lie: what is given, else `KINORAY_RUNS`, else ./runs."""
    return expanded(given or os.environ.get("KINORAY_RUNS") or "runs")


def own_file(folder: Path, name: str) -> Path:
    """A file that stands in a folder, by the name that a record gives it: the record may be a stranger's.

    Raises: ValueError for a name that leads elsewhere.
    """
    if Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} is not a valid name of a file in {folder}")
    return folder / name


def seed_folder(home: Path, seed: int, order: int = 0) -> Path:
    """Where a seed of a run lies: RUN/seed-N; of another order of tasks than the stream's own RUN/order-K/seed-N."""
    return home.joinpath(*([f"order-{order}"] if order else []), f"seed-{seed}")


def home_of(folder: Path) -> Path:
    """The folder RUN that the folder of a seed is in."""
    parent = folder.parent
    return parent.parent if _number(parent.name, "order-") is not None else parent


def place_in_run(folder: Path) -> str:
    """seed-N, or order-K/seed-N: where in RUN the folder of a seed is."""
    return folder.relative_to(home_of(folder)).as_posix()


def seed_label(folder: Path) -> str:
    """RUN/seed-N, or RUN/order-K/seed-N: how the folder of a run's seed is called."""
    folder = folder.absolute()
    return folder.relative_to(home_of(folder).parent).as_posix()


def seed_folders_of(home: Path) -> list[Path]:
    """The folders of a run's seeds that hold a record, by order and number; of RUN/order-K those of this order alone.

    Not those that `--fresh` set aside (seed-0.old-1).
    """
    files = [*home.glob("seed-*/run.json"), *home.glob("order-*/seed-*/run.json")]
    places = {(_order_in(file.parent, home), _number(file.parent.name, "seed-")): file.parent for file in files}
    return [places[place] for place in sorted(p for p in places if None not in p)]


def _order_in(folder: Path, home: Path) -> int | None:
    return 0 if folder.parent == home else _number(folder.parent.name, "order-")


def _number(name: str, before: str) -> int | None:
    """The number behind a word; None where there is none."""
    rest = name.removeprefix(before)
    return int(rest) if rest != name and rest.isdigit() else None
