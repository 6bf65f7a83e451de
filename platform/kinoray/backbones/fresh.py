"""Fresh weights for a backbone that came with others: what training, and pre-training, is measured against."""

import torch
from torch import nn


@torch.no_grad()
def draw_anew(backbone: nn.Module, seed: int) -> None:
    """Draw all weights anew, in place; the global random state is left as it was.

    A module that says how it begins (`reset_parameters`) begins so, its running averages too. The entries of any other
    parameter, such as position embeddings, are shuffled: their size stays, what they have learned goes; a single number
    (a temperature) stays. What is frozen stays frozen.
    """
    begun: set[int] = set()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in backbone.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
                begun |= {id(parameter) for parameter in module.parameters(recurse=False)}
        for parameter in backbone.parameters():
            if id(parameter) not in begun:
                entries = parameter.flatten()
                parameter.copy_(entries[torch.randperm(len(entries))].view_as(parameter))
