"""ER-ring, experience replay from a ring (Chaudhry et al., arXiv 1902.10486), as BMU-MoCo's supplement, Sec. 3 (2), has
it: "the memory data are simply used as training samples".

Each task owns an equal slice of the memory and overwrites it in a circle. Rows drawn from it join the current ones, one
loss over the union; an item cannot come back in the step that writes it.

Differs: the original keeps a ring per class, which video-text pairs do not have. Rows per step are not given; as many
as the current ones here, as in the original. Keys of replayed rows enter the learner's queues, for that is what
happens to training samples; `memory_enqueues` keeps them out.
"""

# B current rows   R replayed rows

from dataclasses import replace

from kinoray.config import Capacity, config
from kinoray.method import Batch, Needs, Replay, StepOutput
from kinoray.rehearsal import joined
from kinoray.rule import Rule


@config
class Config:
    """Hyper-parameters of the rule; the default is the paper's (Sec. 4.1)."""

    memory_capacity: Capacity = 10_000
    """Pairs in memory over all tasks; 0 turns the rule off."""
    memory_enqueues: bool = True
    """Whether keys of replayed rows enter the learner's queues."""


# A tenth of an average task's pairs, as in the paper.
RECIPES = {"moving-cvlm": {"memory_capacity": 96}, "moving-conflict": {"memory_capacity": 85}}


class Method(Rule):
    """The learner, with a batch of both."""

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """A ring; as many rows of it as of the task."""
        return Needs(replay=Replay(policy="ring", capacity=config.memory_capacity, rows=None))

    def loss(self, batch: Batch) -> StepOutput:
        """The learner's loss over B + R rows."""
        both = joined(batch)
        output = super().loss(both)
        if self.config.memory_enqueues:
            return replace(output, gather=both.gather)
        rows = len(batch.ids)
        return replace(output, carry={name: value[:rows] for name, value in output.carry.items()})
