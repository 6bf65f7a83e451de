"""Dropout on several ranks. All draw torch's numbers alike, for what must be equal on all; masks must not be."""

from typing import Any

import torch
from torch import nn

from kinoray.training.distributed import World

LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def draw_by_rank(module: nn.Module, world: World) -> None:
    """Have every dropout layer of a module draw this rank's own masks, and leave torch's numbers where all ranks have
    them. With one rank it draws as ever. Only layers: `nn.functional.dropout`, also that inside attention and recurrent
    layers, repeats its mask on every rank; `batch.uniform` gives masks that are the same for any number of ranks.
    """
    if world.size == 1:
        return
    for part in module.modules():
        if isinstance(part, LAYERS) and not hasattr(part, "draws_by_rank"):
            part.__dict__["draws_by_rank"] = True
            part.register_forward_pre_hook(
                lambda layer, inputs, named: _begin(layer, [*inputs, *named.values()][0], world), with_kwargs=True
            )
            part.register_forward_hook(lambda layer, inputs, output: _end(layer), always_call=True)


def _begin(layer: Any, x: torch.Tensor, world: World) -> None:
    if not (layer.training and layer.p):  # nothing is drawn
        return
    seed = int(torch.randint(2**62, (), generator=torch.default_generator, device="cpu"))  # the same on all ranks
    generators = [torch.default_generator]
    if x.is_cuda:
        generators.append(torch.cuda.default_generators[x.device.index])
    layer.states_of_all_ranks = [(generator, generator.get_state()) for generator in generators]
    for generator in generators:
        generator.manual_seed(seed + world.rank)


def _end(layer: Any) -> None:
    for generator, state in layer.__dict__.pop("states_of_all_ranks", ()):
        generator.set_state(state)
