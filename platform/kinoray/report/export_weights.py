"""`kinoray export weights`: a run's encoder as files that anybody can load without kinoray, with a model card.

| form | what is written | who reads it |
| --- | --- | --- |
| safetensors | the encoder's state by its own names | `safetensors.torch.load_file` |
| hf | a CLIP, SigLIP or VideoMAE with tokenizer and pixels | `from_pretrained` of transformers |
| open_clip | a plain CLIP with its configuration | `open_clip.create_model_from_pretrained("local-dir:FOLDER")` |

The last two also come back as backbones (`hf:FOLDER`, `open_clip:FOLDER`), and so does the first of a ViT with BERT
(`vit-bert:FOLDER`, `tiny:FOLDER`). Of a plain CLIP the first has open_clip's own names.
"""

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from torch import Tensor

from kinoray.backbones import clip, hf, load_backbone, public_name
from kinoray.backbones.backbone import Backbone, Preprocessing, TwoTower, save_state
from kinoray.backbones.lora import merge_lora
from kinoray.backbones.towers import WEIGHTS_FILE, VitBertTowers, save_towers
from kinoray.datasets.readers import describe
from kinoray.errors import UsageError, unknown
from kinoray.execution.open_method import OpenedMethod, open_method
from kinoray.method import BaseMethod, Tokens
from kinoray.report.tables import compare
from kinoray.runs.reopen import label_of
from kinoray.runs.result import Result
from kinoray.streams.rendering import rendered_from
from kinoray.system.durable import sha256
from kinoray.system.folders import expanded
from kinoray.system.text import markdown_table, printable

ABOUT_FILE, CARD_FILE = "kinoray.json", "README.md"
PLAIN = "safetensors"
FORMS = (PLAIN, *hf.NAMES, clip.NAMES[-1])
CLOSE = 1e-4
"""By which numbers of unit vectors may differ: weights are equal, sums need not be taken in one order."""


def export_weights(run: str | Path | Result, out: str | Path, *, to: str = PLAIN, method: Any = None) -> Path:
    """Write the encoder of a run's newest commit into a new folder.

    Beside the weights, which have LoRA merged, lie `kinoray.json`, which says what they are, and a model card. What is
    written in a library's form is loaded again, and has to give what the encoder gives.

    Args:
        run: As of `open_method`.
        out: The folder; it must not exist.
        to: safetensors, hf or open_clip.
        method: As of `open_method`.

    Returns:
        The folder.

    Raises:
        UsageError: As `open_method`; for a form that does not fit, with those that do; where the folder exists or
            cannot be written.
    """
    if to not in FORMS:
        raise unknown("form of weights", to, FORMS)
    folder = expanded(out)
    if folder.exists():
        raise UsageError(f"{folder} exists already; nothing was written. Give a new folder with --out.")
    opened = open_method(run, method=method)
    encoder = opened.method.encoder().cpu()
    if to not in (forms := _forms_of(encoder)):
        raise UsageError(
            f"{label_of(opened.run)}: {_kind(opened)} cannot be exported as {to}. Use --to {' or '.join(forms)}."
        )
    merge_lora(encoder)
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}.draft")
    try:
        draft.mkdir(parents=True)
        _write(opened, encoder, draft, to)
        (draft / ABOUT_FILE).write_text(json.dumps(_about(opened, encoder), indent=1) + "\n", encoding="utf-8")
        (draft / CARD_FILE).write_text(_card(opened, draft, to), encoding="utf-8")
        draft.rename(folder)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"Cannot write weights into {folder}: {error}. Give another folder with --out.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _forms_of(encoder: Backbone) -> list[str]:
    """The forms that have a place for such an encoder."""
    fits = {
        hf.NAMES[0]: isinstance(encoder, hf.HfTowers | hf.HfVideo),
        clip.NAMES[-1]: isinstance(encoder, clip.ClipTowers) and bool(encoder.sizes),
    }
    return [PLAIN, *(name for name, does in fits.items() if does)]


def _kind(opened: OpenedMethod) -> str:
    """The encoder in words."""
    encoder = opened.method.encoder()
    return f"the encoder ({type(encoder).__name__}) that {opened.run.method} makes of {opened.spec.run.backbone}"


def _write(opened: OpenedMethod, encoder: Backbone, folder: Path, to: str) -> None:
    """The files of a form. Raises: UsageError where the form loses a part of the encoder."""
    if to == PLAIN:
        if isinstance(encoder, VitBertTowers):
            save_towers(encoder, folder)
        else:
            module = encoder.model if isinstance(encoder, clip.ClipTowers) else encoder
            save_state(module, folder / WEIGHTS_FILE)
        return
    seen = preprocessing(opened)
    if isinstance(encoder, clip.ClipTowers):
        clip.save(encoder, folder, seen)
    else:
        assert isinstance(encoder, hf.HfTowers | hf.HfVideo)
        hf.save(encoder, folder, seen)
    if not _comes_back(encoder, f"{to}:{folder.absolute()}", opened):
        raise UsageError(
            f"{label_of(opened.run)}: {_kind(opened)} has parts that {to} has no place for, such as adapters. Give it "
            f"with --to {PLAIN}."
        )


@torch.inference_mode()
def _comes_back(encoder: Backbone, name: str, opened: OpenedMethod) -> bool:
    """Whether a written encoder gives what it gave, on noise and on the tasks' names."""
    recipe = opened.reader.recipe
    try:
        again = load_backbone(name, recipe.size_px).eval()
    except UsageError:
        return False
    shape = (1, recipe.test_frames, 3, recipe.size_px, recipe.size_px)
    clips = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def features(towers: Backbone) -> Iterator[Tensor]:
        yield towers.embed_video(clips)
        if isinstance(towers, TwoTower):
            ids, mask = towers.tokenize(list(opened.spec.names), recipe.max_tokens)
            yield towers.embed_text(Tokens(torch.from_numpy(ids), torch.from_numpy(mask)))

    pairs = zip(features(encoder), features(again), strict=True)
    return all(torch.allclose(own, theirs, atol=CLOSE) for own, theirs in pairs)


def preprocessing(opened: OpenedMethod) -> Preprocessing:
    """What the run's tests make of a picture."""
    form = opened.reader.test_form
    short_px = form.short_px if form.shape == "centre" else 0
    return Preprocessing(opened.reader.recipe.size_px, short_px, form.interpolation, *opened.reader.pixels)


def _about(opened: OpenedMethod, encoder: Backbone) -> dict[str, Any]:
    """What the weights are, without places on this machine."""
    seen = preprocessing(opened)
    return {
        "method": opened.run.method,
        "settings": opened.run.config["method"],
        "stream": opened.run.stream,
        "seed": opened.run.seed,
        "tasks": list(opened.learned),
        "backbone": public_name(opened.spec.run.backbone),
        "dim": encoder.dim,
        "size_px": opened.reader.recipe.size_px,
        "frames": opened.reader.recipe.test_frames,
        "mean": seen.mean,
        "std": seen.std,
        "weights": type(encoder).__name__,
    }


USES = {
    PLAIN: 'import safetensors.torch\n\nweights = safetensors.torch.load_file("model.safetensors")',
    hf.NAMES[0]: 'import transformers\n\nmodel = transformers.AutoModel.from_pretrained(".")',
    clip.NAMES[-1]: 'import open_clip\n\nmodel, preprocess = open_clip.create_model_from_pretrained("local-dir:.")',
}
"""Python that loads each form, run in the folder."""
LIBRARIES = {hf.NAMES[0]: "transformers", clip.NAMES[-1]: "open_clip"}


def _card(opened: OpenedMethod, folder: Path, to: str) -> str:
    """The model card: what it is, how to load it, scores, settings, data, digests."""
    run, seen = opened.run, preprocessing(opened)
    head = {"library_name": LIBRARIES.get(to, "kinoray"), "tags": ["kinoray", run.stream, run.method]}
    cut = f"short side to {seen.short_px} px, then the central square" if seen.short_px else "whole pictures squeezed"
    facts = {
        "method": run.label,
        "stream": f"{run.stream}, tested by {run.protocol.name}, {run.place}",
        "tasks": "none, it was not trained" if run.zero_shot else ", ".join(opened.learned),
        "began with": public_name(run.run["backbone"]),
        "state": run.state,
        "training": run.work,
        "sees": f"{opened.reader.recipe.test_frames} frames of {seen.size_px} px ({cut}, {seen.interpolation}), "
        f"mean {list(seen.mean)}, standard deviation {list(seen.std)}",
        "made by": run.run["created_by"],
    }
    digests = {f"data of {task}": digest for task, digest in run.run["digests"]["data"].items()}
    digests |= {"code of kinoray": run.run["digests"]["code"], "code of the method": run.run["digests"]["method"]}
    digests |= {"final state": run.outcome.get("state_digest") or "not finished"}
    digests |= {file.name: sha256(file) for file in sorted(folder.glob("*.safetensors"))}
    settings = {name: run.config[name] for name in ("method", "recipe")}
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {printable(run.label)} on {printable(run.stream)}",
        f"```python\n{USES[to]}\n```",
        "## Scores",
        compare([run]).markdown().strip(),
        *([OTHERWISE] if _is_tested_otherwise(opened.method) else []),
        "## Training",
        markdown_table([["", ""], *map(list, facts.items())], left=2),
        f"```yaml\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}```",
        "## Licences",
        "\n".join(f"- {line}" for line in _licences(opened)),
        "## Digests",
        markdown_table([["of", "SHA-256"], *map(list, digests.items())], left=2),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


OTHERWISE = "The scores are of the method, which embeds or compares by code of its own, not of this encoder alone."


def _is_tested_otherwise(method: BaseMethod) -> bool:
    """Whether a method's tests may not be what its encoder gives."""
    verbs = ("embed_video", "embed_text", "score")
    return any(getattr(type(method), verb) is not getattr(BaseMethod, verb) for verb in verbs)


def _licences(opened: OpenedMethod) -> list[str]:
    """What is known of the data's licences, and of the weights'."""
    stream = opened.spec.run.stream
    unknown_one = "rendered by kinoray" if rendered_from(stream) else "not known to kinoray"
    lines = {task.name: describe(task.data_set).licence if task.data_set else unknown_one for task in stream.tasks}
    data = [
        f"data of {', '.join(n for n in lines if lines[n] == said)}: {said}" for said in dict.fromkeys(lines.values())
    ]
    return [*data, f"weights that training began with ({public_name(opened.spec.run.backbone)}): as their authors say"]
