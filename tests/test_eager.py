"""Optimizers that spare the import of torch's compiler step as torch's own."""

import subprocess
import sys

import pytest

STEPS = """
import sys, torch
from kinoray.config import Recipe
from kinoray.method import ParamGroup
from kinoray.training.optim import apply_gradients, make_optimizer

def weights(own):
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(5, 3))
    recipe = Recipe(optimizer=sys.argv[1], weight_decay=0.1, clip_norm=0.0)
    optimizer = make_optimizer(recipe, {"all": ParamGroup({"p": param})})
    for _ in range(4):
        param.grad = torch.randn(5, 3)
        if own:
            apply_gradients(optimizer, recipe, 0.01)
        else:
            optimizer.param_groups[0]["lr"] = 0.01
            optimizer.step()
    return param.detach()

ours = weights(True)
assert "torch._dynamo" not in sys.modules
assert torch.equal(ours, weights(False)) and "torch._dynamo" in sys.modules
assert torch.equal(ours, weights(True))
"""
RUN = """
import sys, kinoray
kinoray.run(sys.argv[1], stream=sys.argv[2], num_workers=0, smoke=True, quiet=True, runs=sys.argv[3])
assert "torch" in sys.modules and "torch._dynamo" not in sys.modules and "ray" not in sys.modules
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_step_is_torchs_own(optimizer: str) -> None:
    subprocess.run([sys.executable, "-c", STEPS, optimizer], check=True, timeout=120)


def test_a_run_imports_no_compiler_and_no_ray(tmp_path) -> None:
    """The linear probe included. Together they took as long as torch itself, in every process that trains."""
    subprocess.run([sys.executable, "-c", RUN, "moco", "digits-5", str(tmp_path)], check=True, timeout=300)
