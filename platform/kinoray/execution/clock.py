"""Where a rank's time goes, in seconds, over all attempts."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from kinoray.training.batches import Feed


class Clock:
    """Time since the rank began, standing still while it is paused."""

    def __init__(self) -> None:
        self.origin = time.monotonic()
        self.start_s = 0.0
        """From the beginning to the first batch."""
        self.eval_s = 0.0
        """All evaluation."""
        self.commits_s = 0.0
        """All commits, waiting for the disk included."""
        self.past: dict[str, float] = {}
        """The cost of earlier attempts, from their last commit."""

    def now_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.origin

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count a block as evaluation."""
        began = self.now_s()
        yield
        self.eval_s += self.now_s() - began

    def pause(self, stages: int) -> Generator[int, None, None]:
        """Yield the number of stages done; what others do until the run goes on is none of its time."""
        left = time.monotonic()
        yield stages
        self.origin += time.monotonic() - left

    def cost(self, feed: Feed) -> dict[str, float]:
        """Seconds by part, over all attempts; the optimizer steps are what the other parts leave.

        And clips of this rank: from the frame cache, and decoded.
        """
        wall_s = self.now_s()
        parts = {
            "start_s": self.start_s,
            "data_wait_s": sum(feed.wait_s.values()),
            "prepare_s": feed.prepare_s,
            "eval_s": self.eval_s,
            "checkpoint_s": self.commits_s,
        }
        waits = {f"data_wait_s/{name}": seconds for name, seconds in feed.wait_s.items()}
        clips = {"clips_cached": feed.cached, "clips_decoded": feed.decoded}
        now = {"wall_s": wall_s, **parts, "train_s": wall_s - sum(parts.values()), **waits, **clips}
        return {name: self.past.get(name, 0.0) + now.get(name, 0.0) for name in self.past | now}
