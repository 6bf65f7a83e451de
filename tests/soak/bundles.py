"""What becomes of bundles that a stranger hands over: honest, changed, forged with all digests anew, hostile ones.

    python tests/soak/bundles.py [--honest 40] [--tampered 100] [--recomputed 50] [--seed 0] [--json]

Honest ones first: small runs of every method in turn, of other seeds each time around; each must be repeated.

Of two methods a small run is trained and bundled so that its second task is the one to train again.

- **tampered**: a rank, a weight's bit, a setting, a digest, a metric, a member... is another, nothing is made good.
  The bundle must fail, or be refused, in one line that names the place.
- **recomputed**: the fault is in the very task that is trained again, and every digest and number that follows is made
  anew until the seal chooses that task. The bundle must fail in training.
- **hostile**: paths, bombs, links, wrong types, huge JSON, NaN, 10^9 rows declared. Each must end in one line with exit
  code 2, within seconds and without much memory.

Exits with 1 where one does not. About a quarter of an hour.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.forging import TAMPERINGS, Files, document, forged_at_task, hostile, packed, unpacked

import kinoray
from kinoray.errors import UsageError
from kinoray.runs.method_source import method_names
from kinoray.streams import Stream
from kinoray.testing.engine import run_spec, spec_of
from kinoray.testing.small_stream import on_protocol, small_stream, suited

METHODS = {"base_moco": "cvlm", "avg_pool": "ctvr"}
SECONDS = 20.0
"""Within which a hostile file is refused."""
Outcome = tuple[str, str]
"""A kind and the words."""


def made(method: str, stream: Stream, folder: Path) -> Files:
    """The members of a bundle whose second task is trained again."""
    for seed in range(20):
        spec = spec_of(method, stream, folder, seed)
        run_spec(spec)
        files = unpacked(kinoray.bundle(spec.folder, folder / f"{method}-{seed}.zip", quiet=True))
        if document(files)["task"] == 2:
            return files
    raise AssertionError("no seed of twenty chooses the second task")


def outcome(path: Path, stream: Stream) -> Outcome:
    """What `kinoray verify` makes of a file."""
    try:
        verdict = kinoray.verify(path, stream=stream)
        return verdict.words, verdict.checks[-1].words
    except UsageError as error:
        return ("refused" if "\n" not in str(error) and error.exit_code == 2 else "several lines"), str(error)
    except BaseException:
        return "traceback", traceback.format_exc()


def honest(small: Stream, count: int, folder: Path) -> Iterator[Outcome]:
    """Outcomes of bundles that nobody touched."""
    methods = method_names()
    for number in range(count):
        method, seed = methods[number % len(methods)], number // len(methods)
        stream = suited(method, small)
        spec = spec_of(method, stream, folder / "honest", seed)
        run_spec(spec)
        file = kinoray.bundle(spec.folder, folder / f"honest-{number}.zip", quiet=True)
        kind, words = outcome(file, stream)
        yield (kind if kind == "repeated" else "bad", f"{method}, seed {seed}: {kind}: {words}")


def tampered(bundles: list[tuple[Files, Stream]], count: int, rng: random.Random, folder: Path) -> Iterator[Outcome]:
    """Outcomes of changes; kind is "bad" where one is not found, or its place not named."""
    for number in range(count):
        files, stream = bundles[number % len(bundles)]
        tampering = TAMPERINGS[number // len(bundles) % len(TAMPERINGS)]
        changed = tampering.change(files, rng)
        kind, words = outcome(packed(changed, folder / "tampered.zip", listed=tampering.listed), stream)
        named = any(part in words for part in ("json", "parquet", "safetensors"))
        yield (kind if kind in ("failed", "refused") and named else "bad", f"{tampering.name}: {kind}: {words}")


def recomputed(bundles: list[tuple[Files, Stream]], count: int, rng: random.Random, folder: Path) -> Iterator[Outcome]:
    """Outcomes of forgeries in the task that is trained again."""
    for number in range(count):
        files, stream = bundles[number % len(bundles)]
        kind, words = outcome(packed(forged_at_task(files, rng), folder / "forged.zip", listed=True), stream)
        yield (kind if kind == "failed" and "task 2, trained again" in words else "bad", f"forged: {kind}: {words}")


def refused(files: Files, stream: Stream, folder: Path) -> Iterator[Outcome]:
    """Outcomes of hostile files."""
    for name, path in hostile(files, folder):
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        kind, words = outcome(path, stream)
        took_s = time.monotonic() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        good = kind == "refused" and took_s < SECONDS
        yield (kind if good else "bad", f"{name}: {kind} in {took_s:.1f} s, {grown} MB more: {words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--honest", type=int, default=40)
    parser.add_argument("--tampered", type=int, default=100)
    parser.add_argument("--recomputed", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng, counts, bad = random.Random(options.seed), {}, []
    with tempfile.TemporaryDirectory(prefix="kinoray-bundles-") as name:
        folder, small = Path(name), small_stream()
        streams = {method: on_protocol(small, protocol) for method, protocol in METHODS.items()}
        bundles = [(made(method, stream, folder), stream) for method, stream in streams.items()]
        campaigns = {
            "honest": honest(small, options.honest, folder),
            "hostile": refused(*bundles[0], folder),
            "tampered": tampered(bundles, options.tampered, rng, folder),
            "recomputed": recomputed(bundles, options.recomputed, rng, folder),
        }
        for campaign, outcomes in campaigns.items():
            kinds: Counter[str] = Counter()
            for kind, words in outcomes:
                kinds[kind] += 1
                bad += [f"{campaign}: {words}"] if kind == "bad" else []
                print(f"{campaign:<10} {kind:<8} {words[:200]}", file=sys.stderr, flush=True)
            counts[campaign] = dict(kinds)
            print(f"{campaign:<10} {dict(kinds)}", file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"counts": counts, "bad": bad}))
    for line in bad:
        print(f"BAD {line}", file=sys.stderr)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
