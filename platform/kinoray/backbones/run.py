"""run: the encoder of a finished run, with the weights of its last commit, as the backbone of another run.

    kinoray run classify --stream shapes-5 --joint --backbone run:runs/simsiam-shapes-5-1f2e3d4c

So probes, fine-tuning and transfer are runs like any other. The folder is that of a seed or of a run; where a run has
several seeds, each run takes the one of its own seed, so that a table over seeds has parents and children in pairs.

Differs from `kinoray export weights`: any method's encoder will do, for it is built by the method's own code, from the
run's record, and the run has to stay where it is.
"""

from pathlib import Path

from kinoray import hooks
from kinoray.backbones.backbone import Backbone
from kinoray.backbones.lora import merge_lora
from kinoray.errors import ConfigMismatch, UsageError
from kinoray.source import recorded_name
from kinoray.system.durable import read_json

NAMES = ("run",)
ABOUT = {"run:FOLDER": "the encoder of a finished run; of several seeds the one of the new run's own seed"}
SMALL = False
BACKBONE = Backbone
WAY_ON = "Run its own command again first."


def origin(argument: str) -> str:
    """The backbone that the run was given: its encoder is one of that kind."""
    folder = _seeds(argument)[0]
    return recorded_name(folder, read_json(folder / "run.json", WAY_ON, {"backbone": None}), "backbone")


def check(name: str, argument: str) -> None:
    """The argument is the folder of a run or a seed whose every seed has finished. Raises: UsageError."""
    for seed in _seeds(argument):
        file, state = seed / "result.json", "not finished"
        if file.is_file():
            state = read_json(file, WAY_ON, {"state": None})["state"]
        if state != "finished":
            raise UsageError(f"{name}:{argument}: {seed} is {state}. First finish it with the command that started it.")


def weights_folder(name: str, argument: str) -> Path:
    """The last commit of the run; of several seeds the run's folder, with all their commits."""
    seeds = _seeds(argument)
    return max(seeds[0].glob("checkpoints/stage-*")) if len(seeds) == 1 else Path(argument)


def load(name: str, argument: str, size_px: int | None, seed: int) -> Backbone:
    """The run's encoder, LoRA merged, all of it ready to train. The method's recorded code is executed.

    Raises: UsageError where the run has no such seed, cannot be opened, or its encoder is no backbone.
    """
    seeds = _seeds(argument)
    folder = seeds[0] if len(seeds) == 1 else Path(argument) / f"seed-{seed}"
    if folder not in seeds:
        there = ", ".join(path.name for path in seeds)
        raise UsageError(f"{name}:{argument} has no seed {seed}, only {there}: name the folder of one of them.")
    try:
        encoder = hooks.open_method(folder).method.encoder()
    except (UsageError, ConfigMismatch) as error:
        raise UsageError(f"{name}:{argument}: the encoder of {folder} cannot be loaded: {error}") from None
    if not isinstance(encoder, Backbone):
        raise UsageError(f"{name}:{argument}: the run's encoder is a {type(encoder).__name__}, not a backbone.")
    merge_lora(encoder)
    return encoder.cpu().requires_grad_(True)


def _seeds(argument: str) -> list[Path]:
    """The folder where it is a seed's, else those of a run's seeds, without what `--fresh` set aside.

    Raises: UsageError where there is no run.
    """
    folder = Path(argument)
    if argument and (folder / "run.json").is_file():
        return [folder]
    seeds = [file.parent for file in folder.glob("seed-*/run.json") if file.parent.name[5:].isdigit()]
    if not argument or not seeds:
        raise UsageError(
            f"There is no run {argument or '(none is named)'}: use run:FOLDER with the folder of a run, or of one of "
            "its seeds. If the folder was moved, put it back."
        )
    return sorted(seeds)
