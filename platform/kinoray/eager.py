"""torch's optimizers without its compiler: they import `torch._dynamo` to tell it to leave them alone.

That takes 0.9 s, two thirds of torch's own import, in every process that trains, and nothing here is compiled. Where
somebody has imported it they are as ever.
"""

import inspect
import sys

import torch
from torch.optim import Optimizer

COMPILER = "torch._dynamo"


def spare_compiler() -> None:
    """Let optimizers be made without the import; called before one is made."""
    plain = inspect.unwrap(Optimizer.add_param_group)
    if COMPILER not in sys.modules:
        setattr(plain, "__dynamo_disable", plain)  # where torch keeps what the compiler made of it


def step(optimizer: Optimizer) -> None:
    """`optimizer.step()` without the import, and so without its hooks, which none of ours has."""
    if COMPILER in sys.modules:
        optimizer.step()
        return
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)
