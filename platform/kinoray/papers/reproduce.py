"""Measure a figure or table of a paper: run what is missing, draw, judge."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kinoray.datasets.prepared import shortfalls
from kinoray.errors import KinorayError, UsageError, unknown
from kinoray.papers import tuned
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.curves import CurveReproduction
from kinoray.papers.entries import EQUAL, SHARED, TUNED, CurveEntry, Entry, MapEntry, MethodRow, TableEntry, filled
from kinoray.papers.maps import MapReproduction
from kinoray.papers.reproduction import Facts, Reproduction, facts_of_data
from kinoray.papers.tables import TableReproduction, Then
from kinoray.runs.request import RunRequest, request_of, shows_options
from kinoray.runs.result import Result
from kinoray.streams import Stream, downstream_set, family_of, is_published, load_stream
from kinoray.streams.orders import ALL
from kinoray.sweeps.request import MEASURED, SweepRequest
from kinoray.sweeps.sweep import sweep
from kinoray.system.folders import expanded, home_of, runs_root
from kinoray.system.signals import Stopped
from kinoray.system.text import printer

CARRIED_OUT = ("runs", "quiet", "log")
"""Options that say how every run of a table is carried out, and nothing of what it is."""


@shows_options(SweepRequest, MEASURED, stream=None, seed=None, seeds=None)
def reproduce(
    name: str,
    *,
    keep: bool = False,
    tune: bool = False,
    partial: bool = False,
    clips: Sequence[str | Path] = (),
    **options: Any,
) -> Any:
    """Make a paper's figure or table again; the same call goes on where it was stopped and reuses what is finished.

    Args:
        name: A key of `REPRODUCTIONS` (`kinoray reproduce` lists them).
        keep: Copy it to `benchmarks/results/` of this checkout.
        tune: Search each row's own best settings first and keep them with the package (`papers.tuned`).
        partial: Measure published data of which clips are missing, too; the page says what is there.
        clips: Video files that a figure of attention maps looks at, in place of the stream's.
        stream: As of `sweep`. [the entry's, an embedded stream of the same protocol]
        seed: First of the seeds. [the entry's; nothing was chosen with its seeds]
        seeds: How many seeds. [the entry's]
        **options: Fields of `SweepRequest`.

    Returns:
        A Reproduction, with its CSV, LaTeX, PNG, SVG, JSON and Markdown page written; with `dry_run` a dict.

    Raises:
        UsageError: Before anything starts; for `concurrent` and `retry` where it is no figure over a knob.
        Stopped: After Ctrl-C or SIGTERM.
    """
    if name not in REPRODUCTIONS:
        raise unknown("figure or table", name, REPRODUCTIONS)
    entry = REPRODUCTIONS[name]
    _check_options(name, entry, tune, clips, options)
    if not partial:
        refuse_partial(name, entry, options.get("stream") or entry.stream)
    quiet, runs = options.get("quiet", False), options.get("runs")
    place = _results_folder(options.get("smoke", False)) if keep else None
    words = [f"--backbone {options['backbone']}"] if options.get("backbone") else []
    words += [f"--orders {options['orders']}"] if options.get("orders") else []
    words += ["--tune"] if tune else []
    common: dict[str, Any] = {
        **options,
        "stream": options.get("stream") or entry.stream,
        "worlds": () if options.get("stream") else entry.worlds,
        "seed": _given(options, "seed", entry.seed),
        "seeds": _given(options, "seeds", entry.seeds),
        "orders": _given(options, "orders", entry.orders),
        "settings": {**entry.settings, **(options.get("settings") or {})},
    }
    if isinstance(entry, CurveEntry):
        return _finished(_curves(name, entry, common, runs_root(runs)), words, place, quiet)
    if isinstance(entry, MapEntry):
        made = _maps(name, entry, common, runs_root(runs), [expanded(clip) for clip in clips])
        return _finished(made, words, place, quiet)
    assert isinstance(entry, TableEntry)
    if tune:
        _tune(name, entry, common)
    return _finished(_table(name, entry, common, runs_root(runs)), words, place, quiet)


def _name_of(stream: str | Stream) -> str:
    return stream if isinstance(stream, str) else stream.name


def _is_open(stream: str | Stream) -> bool:
    """Whether the name stands for several streams (`TableEntry.across`)."""
    return isinstance(stream, str) and filled(stream, "") != stream


def _check_options(
    name: str, entry: Entry, tune: bool, clips: Sequence[str | Path], options: Mapping[str, Any]
) -> None:
    """Raises: UsageError for options that would be ignored, or would keep settings that are not the table's own."""
    if clips and not isinstance(entry, MapEntry):
        raise UsageError(f"{name} shows no clips: leave out --clip.")
    if isinstance(entry, TableEntry | MapEntry):
        for option in ("concurrent", "retry"):
            if options.get(option):
                raise UsageError(
                    f"{name} varies no setting: leave out --{option}. It has one run at a time on each CPU, and the "
                    "same command retries what failed."
                )
    if isinstance(entry, MapEntry) and options.get("orders"):
        raise UsageError(f"{name} shows the attention of single runs: leave out --orders.")
    stream = options.get("stream")
    if stream and _is_open(entry.stream) and not _is_open(stream):
        raise UsageError(
            f"{name} compares streams of several lengths, {entry.stream}, but {_name_of(stream)} is one. Write the "
            "letter X in place of its number of tasks, as in --stream cssl-cifar100-X."
        )
    if not tune:
        return
    if not isinstance(entry, TableEntry) or not entry.tuned:
        raise UsageError(f"{name} has no column of tuned settings: leave out --tune.")
    family = family_of(entry.stream)
    if family_of(_name_of(options.get("stream") or entry.stream)) != family:
        raise UsageError(f"--tune searches learning rates for {family}: leave out --stream, or use `kinoray sweep`.")
    given = [word for word in ("smoke", "dry_run", "settings", "backbone") if options.get(word)]
    if given:
        raise UsageError(f"--tune searches with the table's own settings: leave out {', '.join(given)}.")
    _checkout()


def _given(options: Mapping[str, Any], name: str, default: Any) -> Any:
    value = options.get(name)
    return default if value is None else value


def _finished(made: Reproduction | dict[str, Any], words: Sequence[str], place: Path | None, quiet: bool) -> Any:
    """Write the files, and keep the table where it is complete. words: options of the command that they name."""
    if isinstance(made, dict):
        return made
    made.options = words
    made.write()
    if place is not None:
        say = printer(quiet)
        if made.missing:
            say(f"{made.name} is not complete, so its table is not kept. Missing: {'; '.join(made.missing)}.")
        else:
            say(f"Wrote {', '.join(str(path) for path in made.copy_table(place))}.")
    return made


def _streams(common: Mapping[str, Any]) -> list[str | Stream]:
    """The stream, in each of its worlds or splits where there are several."""
    return [f"{common['stream']}:{world}" for world in common["worlds"]] or [common["stream"]]


def _curves(name: str, entry: CurveEntry, common: dict[str, Any], root: Path) -> Reproduction | dict[str, Any]:
    """Every sweep of a figure over a knob."""
    # Only numbers are drawn, so no checkpoint but the last trial's need stay.
    fixed: dict[str, Any] = {"sampler": "grid", "prune": False, "keep_best": 0}
    streams, worlds = _streams(common), common.pop("worlds")
    requests = [
        request_of(SweepRequest, method, common | fixed | {"space": space, "stream": stream})
        for stream in streams
        for method, space in entry.sweeps.items()
    ]
    sweeps = [sweep(request) for request in requests]
    if common.get("dry_run"):
        return {"name": name, "title": entry.title, "place": entry.place, "sweeps": sweeps}
    return CurveReproduction(name, entry, sweeps, root, worlds)


def _table(name: str, entry: TableEntry, common: dict[str, Any], root: Path) -> Reproduction | dict[str, Any]:
    """Every row of a table, at the shared settings and at its own."""
    known = tuned.tuned_settings(name, _name_of(common["stream"])) if entry.tuned else {}
    best = tuned.settings_by_row(known)
    on_paper = family_of(_name_of(common["stream"])) == entry.paper_stream
    rows = [row.on_paper_stream() if on_paper else row for row in entry.rows]
    requests = {SHARED: {name: r for row in rows for name, r in _requests(entry, row, {}, common).items()}}
    if best:
        competing = [row for row in rows if row.label in best and row.has_settings]
        requests[TUNED] = {
            name: r for row in competing for name, r in _requests(entry, row, best[row.label], common).items()
        }
    if entry.equal_flops:
        requests[EQUAL] = {}
        for row in rows:
            if not row.is_bound:
                budget = {} if row.is_plain(entry.equal_flops) else {"equal_flops": entry.equal_flops}
                requests[EQUAL] |= _requests(entry, row, {}, common | budget)
    streams = _streams(common)
    flat = [
        replace(request, stream=stream) if common["worlds"] else request  # a column's own, where there are several
        for by_name in requests.values()
        for request in by_name.values()
        for stream in streams
    ]
    if common.get("dry_run"):
        from kinoray.execution.dry_run import plan_of

        return {"name": name, "title": entry.title, "place": entry.place, "runs": [plan_of(r) for r in flat]}
    results = _results(flat)
    learned = [(request.stream, run) for request, of in zip(flat, results, strict=True) for run in of]
    each = iter(results)
    runs = {
        column: {name: [run for _ in streams for run in next(each)] for name in by_name}
        for column, by_name in requests.items()
    }
    facts = _facts(runs, common)
    if _is_open(common["stream"]) or common["worlds"]:
        facts = replace(facts, stream=common["stream"], worlds=common["worlds"])
    return TableReproduction(name, entry, runs, known, facts, root, _then(entry, learned, common))


def _then(entry: TableEntry, learned: Sequence[tuple[str | Stream, Result]], common: Mapping[str, Any]) -> Then:
    """The method that comes then, on the encoder of each finished run and each downstream set of its stream."""
    if not entry.then:
        return {}
    load = cache(load_stream)  # rows share their streams
    finished = [
        (parent, load(stream) if isinstance(stream, str) else stream)
        for stream, parent in learned
        if parent.state == "finished"
    ]
    names = ("smoke", *CARRIED_OUT)
    options = {name: common[name] for name in names if common.get(name) is not None}
    pairs = [(parent, downstream_set(stream, data.name)) for parent, stream in finished for data in stream.downstream]
    requests = [
        RunRequest(
            entry.then,
            stream=downstream,
            backbone=f"run:{parent.folder}",  # of one seed: more seeds of its run make it no other backbone
            seed=parent.seed,
            **options,
        )
        for parent, downstream in pairs
    ]
    children: dict[Path, list[Result | None]] = {}
    for (parent, _), results in zip(pairs, _results(requests) if requests else [], strict=True):
        children.setdefault(parent.folder, []).append(results[0] if results else None)
    return children


def _maps(
    name: str, entry: MapEntry, common: dict[str, Any], root: Path, clips: Sequence[Path]
) -> Reproduction | dict[str, Any]:
    """The runs whose attention is shown."""
    requests = [_request(row, {}, common) for row in entry.rows]
    if common.get("dry_run"):
        from kinoray.execution.dry_run import plan_of

        return {"name": name, "title": entry.title, "place": entry.place, "runs": [plan_of(r) for r in requests]}
    runs = dict(zip([row.label for row in entry.rows], _results(requests), strict=True))
    return MapReproduction(name, entry, runs, _facts({SHARED: runs}, common), root, clips)


def _tune(name: str, entry: TableEntry, common: Mapping[str, Any]) -> None:
    """Search every row's best settings with the same number of trials each, and keep them."""
    stream = family_of(_name_of(common["stream"]))  # its first world; the table is of another
    best, objective = {}, ""
    for row in entry.rows:
        if not row.has_settings:
            continue
        searched = sweep(
            SweepRequest(
                row.method,
                stream=stream,
                space=entry.budget,
                sampler="grid",
                prune=False,
                keep_best=0,
                seeds=entry.search_seeds,
                settings={**entry.settings, **row.settings},
                **{name: common[name] for name in CARRIED_OUT if name in common},
            )
        )
        objective = f"{searched.objectives[0]} of the validation splits"
        if searched.best is not None:
            best[row.label] = {
                "settings": searched.best.params,
                "validation": searched.best.values,
                "trials": len(searched.complete),
            }
    searched_by = {"seed": 0, "seeds": entry.search_seeds, "space": entry.budget, "objective": objective}
    file = tuned.write_tuned(name, stream, {"stream": stream, **searched_by}, best)
    printer(bool(common.get("quiet")))(f"Kept {file}.")


def _requests(
    entry: TableEntry, row: MethodRow, best: Mapping[str, Any], common: Mapping[str, Any]
) -> dict[str, RunRequest]:
    """The runs of one line by their names (`TableEntry.runs_of`)."""
    if not entry.across:
        return {row.label: _request(row, best, common)}
    requests, stream = {}, common["stream"]
    for name, column in entry.runs_of(row.label).items():
        value = entry.across[column]
        options = {**common, "stream": filled(stream, value) if _is_open(stream) else stream}
        requests[name] = _request(replace(row, method=filled(row.method, value)), best, options)
    return requests


def _request(row: MethodRow, best: Mapping[str, Any], common: Mapping[str, Any]) -> RunRequest:
    """The runs of one line. Settings: the entry's and the command's, over them the row's own, over them its best."""
    names = ("stream", "backbone", "seed", "seeds", "orders", "equal_flops", "smoke", *CARRIED_OUT)
    options = {name: common[name] for name in names if common.get(name) is not None}
    return RunRequest(
        row.method,
        **options | ({"backbone": row.backbone} if row.backbone else {}),
        settings={**common["settings"], **row.settings, **best},
        joint=row.joint,
        zero_shot=row.zero_shot,
        control=row.control,
    )


def _results(requests: list[RunRequest]) -> list[list[Result]]:
    """Carry out the requests; a run that fails is a gap in the table, and what stands is shown."""
    from kinoray.execution.run import run_all
    from kinoray.runs.resolve import each_run

    try:
        return run_all(requests)
    except (Stopped, UsageError):
        raise
    except KinorayError as error:
        printer(requests[0].quiet)(str(error))
        results = []
        for request in requests:
            folders = [run.folder for run in each_run(request)]
            results.append([Result(folder) for folder in folders if (folder / "run.json").is_file()])
        if not any(results):
            raise
        return results


def _facts(runs: Mapping[str, Mapping[str, list[Result]]], common: Mapping[str, Any]) -> Facts:
    first = next(results[0] for by_label in runs.values() for results in by_label.values() if results)
    everything = [result for rows in runs.values() for results in rows.values() for result in results]
    backbones = dict.fromkeys(result.run["backbone"] for result in everything)
    sources = [
        name
        for rows in runs.values()
        for results in rows.values()
        for name in dict.fromkeys(home_of(result.folder).name for result in results)
    ]
    return Facts(
        stream=first.stream,
        backbone=", ".join(backbones),
        seeds=range(common["seed"], common["seed"] + common["seeds"]),
        orders=math.factorial(len(first.tasks)) if common.get("orders") == ALL else int(common.get("orders") or 1),
        smoke=bool(common.get("smoke")),
        settings=common["settings"],
        code=first.run["digests"]["code"],
        sources=sources,
        **facts_of_data(everything),
    )


def _results_folder(smoke: bool) -> Path:
    """`benchmarks/results` of the checkout that this package runs from. Raises: UsageError where there is none."""
    if smoke:
        raise UsageError("A smoke run measures nothing worth keeping: leave out --keep or --smoke.")
    return _checkout() / "benchmarks" / "results"


def _checkout() -> Path:
    """The checkout that this package runs from. Raises: UsageError where it is installed."""
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "results").is_dir():
        raise UsageError("--keep and --tune write into kinoray's repository: run a checkout, not a package.")
    return root


def refuse_partial(name: str, entry: Entry, stream: str | Stream) -> None:
    """Raises: UsageError where a stream, or one that its name stands for, is over published sets that are partial."""
    values = list(entry.across.values()) if isinstance(entry, TableEntry) else []
    names = [filled(stream, value) for value in values or [""]] if isinstance(stream, str) else []
    streams = [load_stream(name) for name in names if is_published(name)] if isinstance(stream, str) else [stream]
    sets = [task.data_set for s in streams for task in (*s.tasks, *s.downstream) if task.data_set]
    if lines := shortfalls(dict.fromkeys(sets)).partial:
        raise UsageError(
            f"{name} uses published data, but {' '.join(lines)} Complete the data (`kinoray data prepare` lists what "
            "is missing), or give --partial to use what is there."
        )
