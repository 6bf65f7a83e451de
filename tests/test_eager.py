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
import sys
from kinoray.cli.main import main
unwanted = sys.argv.pop(1).split(",")
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
imported = [name for name in unwanted if name in sys.modules]
assert not imported, imported
"""
MANIFEST = """
import sys
from kinoray.data.manifest import read_manifest

manifest = read_manifest(sys.argv[1])
manifest.digest, manifest.aspects, manifest.samples("train")
assert "pandas" not in sys.modules
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_step_is_torchs_own(optimizer: str) -> None:
    subprocess.run([sys.executable, "-c", STEPS, optimizer], check=True, timeout=120)


def test_a_driver_of_a_run_on_videos_imports_no_towers(tmp_path) -> None:
    """transformers and torchvision take longer than torch itself; the process that builds the towers needs them."""
    words = ["run", "bmu_moco", "--stream", "moving-cvlm", "--dry-run", "--json", "--runs", str(tmp_path)]
    unwanted = "transformers,torchvision,open_clip,torch._dynamo,scipy,ray"
    subprocess.run([sys.executable, "-c", RUN, unwanted, *words], check=True, timeout=300)


def test_a_manifest_is_read_without_pandas(micro) -> None:
    subprocess.run([sys.executable, "-c", MANIFEST, str(micro.tasks[0].manifest)], check=True, timeout=120)


def test_a_run_imports_no_compiler_and_no_ray_and_a_finished_one_nothing_heavy(tmp_path) -> None:
    """The linear probe included. The two took as long as torch itself, in every process that trains."""
    words = ["run", "moco", "--stream", "digits-5", "--smoke", "--num-workers", "0", "--quiet", "--runs", str(tmp_path)]
    for unwanted in ("torch._dynamo,ray", "torch,ray,pandas,matplotlib,scipy,sklearn"):
        subprocess.run([sys.executable, "-c", RUN, unwanted, *words], check=True, timeout=300)
