"""What a step costs a GPU, counted without one: operations, bytes by kind of kernel, bytes kept for backward, waits.

    python benchmarks/gpu_bytes.py [--json] [--keep] [--methods NAME...] [--batch B] [--set NAME=VALUE...] [--no-waits]

The engine's own step (`training/loop.py: train_step`) of a task behind the first, its memory full, over fake tensors:
they have shapes and types, and no numbers. Towers are ViT-Base/16 at 384 px with BERT-Base, 48 clips of 4 frames;
methods of CLIP have ViT-B/32 and the `ctvr` recipe, those of pictures ResNet-18 and the `ucl` recipe, VideoMoCo
R(2+1)D-18 and the `video-ssl` recipe.

A kernel moves what it reads and what it writes, once each. Fake tensors of a GPU need torch's build for GPUs, so these
are the CPU's, under torch's own autocast for the CPU with what CUDA's takes in float32 beside (`FLOAT32`). Where
deterministic mode fills memory, a kernel's outputs of `FILLED` are written once more. Waits of the host cannot come
from fake tensors: `host_waits.py` counts them in steps of the small stream on the CPU.

Seconds a method; a minute for one that sees 192 clips.
"""

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from host_waits import COUNTED, all_experts, waits_of
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import deterministic
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import Tokens, TwoTower
from kinoray.backbones.checkpointing import checkpoint_blocks
from kinoray.backbones.clip import ClipTowers
from kinoray.config import Recipe, build
from kinoray.data.plan import TASK_SHIFT, StepFacts
from kinoray.execution.run_rank import compute_repeatably
from kinoray.method import BaseMethod, Batch, ParamGroup, Rows, Task, TaskFacts
from kinoray.methods import frame_fusion_moe
from kinoray.rehearsal import Payloads
from kinoray.runs.method_source import find_method, method_names, with_learner
from kinoray.streams import ctvr, cvlm, ucl, video_ssl
from kinoray.training import optim
from kinoray.training.distributed import World
from kinoray.training.flops import with_flops
from kinoray.training.loop import train_step

RESULTS = Path(__file__).parent / "results"
FLOAT32 = {
    *("layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss", "kl_div", "mse_loss"),
    *("norm", "normalize", "cosine_similarity", "exp", "log", "log1p", "pow", "rsqrt", "softplus", "cumsum", "sum"),
}
"""Functions that CUDA's autocast computes in float32, those that methods use."""
KINDS = ("products", "attention", "elementwise", "fill", "optimizer")
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
FILLED = {
    *("empty", "empty_like", "empty_strided", "new_empty", "zeros", "zeros_like", "_to_copy", "clone"),
    *("native_layer_norm", "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward"),
    *("convolution", "embedding_dense_backward"),
}
"""What allocates through `torch.empty` on CUDA, which deterministic mode fills with NaN; attention does, too."""
GATHERS = {"embedding", "index", "index_select", "gather"}
"""What reads as much as it writes, not all that it is given."""


class CudaAutocast(TorchFunctionMode):
    """Within autocast of the CPU, what CUDA's has in float32."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if getattr(function, "__name__", "") in FLOAT32 and torch.is_autocast_enabled("cpu"):
            arguments, named = tree_map(_in_float32, (arguments, named or {}))
        return function(*arguments, **(named or {}))


def _in_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


class Traffic(TorchDispatchMode):
    """Adds up the bytes that kernels move, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()
        filling: bool = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        self.fills = filling and torch.are_deterministic_algorithms_enabled()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        done = function(*arguments, **(named or {}))
        name = function.overloadpacket.__name__
        if function.is_view or name in ("_unsafe_view", "device", "detach", "alias", "set_"):
            return done
        given, made = _tensors((arguments, named)), _tensors(done)
        if "scaled_dot_product" in name:
            kind = "attention"
        elif name in PRODUCTS:
            kind = "products"
        else:
            kind = "optimizer" if name.startswith("_foreach") else "elementwise"
        written = sum(map(_bytes, made.values()))
        if self.fills and (name in FILLED or kind == "attention"):
            self.kinds["fill"] += written
        if name.startswith(("empty", "new_empty")):
            return done
        read = written if name in GATHERS else sum(map(_bytes, given.values()))
        if name.rstrip("_") in ("zero", "fill", "zeros", "ones", "full", "zeros_like", "ones_like", "copy"):
            read -= sum(_bytes(given[key]) for key in given if key in made)  # written over
        if name.endswith("_") and not made:  # _foreach_add_ and others return nothing, and write what comes first
            written = sum(map(_bytes, _tensors(arguments[0]).values()))
        self.kinds[kind] += read + written
        return done


def _tensors(values: Any) -> dict[int, Tensor]:
    return {id(value): value for value in tree_iter(values) if isinstance(value, Tensor)}


def _bytes(value: Tensor) -> int:
    """Of a tensor that may be expanded from fewer numbers."""
    if not value.numel():
        return 0
    steps = zip(value.shape, value.stride(), strict=True)
    return value.element_size() * math.prod(size for size, stride in steps if stride)


class Kept:
    """Bytes of what autograd keeps for the backward pass, the method's own weights aside."""

    def __init__(self, method: nn.Module) -> None:
        self.own = {id(value.untyped_storage()) for value in method.state_dict(keep_vars=True).values()}
        self.storages: dict[int, Any] = {}

    def note(self, value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if id(storage) not in self.own:
            self.storages[id(storage)] = storage
        return value

    def total(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


def counted(name: str, options: dict[str, Any], batch: int | None = None) -> dict[str, float]:
    """The numbers of a step of a method; options: of its recipe."""
    cls, recipe, backbone = suited(name)
    recipe = build(Recipe, {**vars(recipe), **options, **({"batch_size": batch} if batch else {})}, "the stream")
    config = cls.Config()
    towers = load_backbone(backbone, recipe.size_px)
    if recipe.checkpoint_activations:
        checkpoint_blocks(towers)
    method = cls(config, towers, 2)
    for index in range(2):
        task = TaskFacts(index, "", num_tasks=2, num_samples=4096, num_classes=10, steps=100, new_classes=10)
        method.grow(task)
        method.eval()
        method.begin_task(Task(**vars(task), encode=nothing, total=no_sum, labels=np.arange(4096) % 10))
    method.train()
    run: Any = SimpleNamespace(threads=torch.get_num_threads(), run=SimpleNamespace(recipe=recipe))
    compute_repeatably(run, World(device=torch.device("cuda")))
    traffic = Traffic()
    with FakeTensorMode(allow_non_fake_inputs=True), ExitStack() as stack:
        groups = fake_weights(method)
        optimizer = optim.make_optimizer(recipe, groups)
        rows = batch_of(method, cls.needs(config), recipe)
        kept = Kept(method)
        loss, totals = method.loss, {}

        def watched(rows: Batch) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda value: value):
                output = loss(rows)
            totals["kept"] = kept.total()
            kept.storages.clear()
            return output

        method.loss = watched  # type: ignore[assignment, method-assign]
        around: Any = SimpleNamespace(world=World(), autocast=True, stop_requested=lambda: False)
        stack.enter_context(patch.object(frame_fusion_moe, "experts_to_sum", all_experts))
        stack.enter_context(patch.object(optim, "used_experts", lambda method: None))  # which fake flags cannot say
        stack.enter_context(
            patch.object(Payloads, "write", lambda *given: None)
        )  # nor where it writes, which is little
        stack.enter_context(CudaAutocast())
        stack.enter_context(traffic)
        _, flops = with_flops(lambda: train_step(method, rows, rows.step, 1e-3, groups, optimizer, recipe, around))
    kinds = {f"{kind}_gb": traffic.kinds[kind] / 1e9 for kind in KINDS}
    return {"tflop": flops / 1e12, **kinds, "kept_gb": totals["kept"] / 1e9}


def suited(name: str) -> tuple[type[BaseMethod], Recipe, str]:
    """A method's class, and the recipe and the backbone that it is counted with."""
    cls = find_method(name).load()
    protocol = cls.suits[0] if cls.suits else "cvlm"
    cls = with_learner(find_method(name), protocol).load()
    if "video-ssl" in cls.suits:
        return cls, video_ssl.RECIPE, "r2plus1d-18:4"
    if issubclass(cls.backbones, ClipTowers):
        return cls, ctvr.RECIPES["msrvtt"], "clip:ViT-B-32/random"
    if issubclass(cls.backbones, TwoTower):
        return cls, cvlm.RECIPE, "vit-bert:random"
    return cls, ucl.RECIPE, "resnet18-cifar"


def nothing(fn: Callable[..., Tensor], split: str = "train", views: int = 0) -> tuple[np.ndarray, Tensor]:
    """In place of a pass over a task's data (`Task.encode`)."""
    return np.zeros(0, np.int64), torch.zeros(0, 0)


def no_sum(fn: Callable[[Rows], Tensor]) -> Tensor:
    """In place of a sum over a task's data (`Task.total`)."""
    return torch.zeros(0, 0)


def fake_weights(method: BaseMethod) -> dict[str, ParamGroup]:
    """Put fake tensors in place of a method's weights and buffers; its groups, of those."""
    groups = method.param_groups()
    fakes: dict[int, Any] = {}
    for module in method.modules():
        for name, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(value) not in fakes:
                fake = torch.empty(value.shape, dtype=value.dtype)
                if isinstance(value, nn.Parameter):
                    fake = nn.Parameter(fake, value.requires_grad)
                fakes[id(value)] = value, fake
            setattr(module, name, fakes[id(value)][1])
    return {
        name: replace(group, params={key: fakes[id(value)][1] for key, value in group.params.items()})
        for name, group in groups.items()
    }


def batch_of(method: BaseMethod, needs: Any, recipe: Recipe) -> Batch:
    """A step's rows on the only rank, with as many replayed, stored and reference rows as the method asks for."""
    count = recipe.batch_size
    backbone = method.encoder()

    def rows(size: int, views: int, plain: bool, task: int) -> Rows:
        def clips() -> Tensor:
            return torch.empty(size, recipe.frames, 3, recipe.size_px, recipe.size_px)

        length = recipe.max_tokens
        text: Any = None
        if isinstance(backbone, TwoTower):
            text = Tokens(torch.ones(size, length, dtype=torch.int64), torch.ones(size, length, dtype=torch.bool))
        numbers = torch.full((size,), task << TASK_SHIFT)
        return Rows(
            views=tuple(clips() for _ in range(views)),
            plain=clips() if plain else None,
            text=text,
            ids=numbers,
            labels=torch.zeros_like(numbers),
            slots=torch.zeros_like(numbers),
        )

    replay = None
    if needs.replay is not None:
        again = count if needs.replay.rows is None else needs.replay.rows or count // 4
        replay = rows(again, len(needs.replay.views) or needs.views, needs.plain != "", 0)
    stored, reference = None, None
    if needs.stored is not None:
        stored = torch.empty(needs.stored.rows or count, backbone.dim)
    if needs.reference is not None:
        reference = rows(needs.reference.rows or count, 1, False, 0)

    def drawn(*shape: int, replay: bool = False) -> Tensor:
        return torch.empty(len(batch.replay.ids) if replay and batch.replay else count, *shape)

    batch = Batch(
        **vars(rows(count, needs.views, needs.plain == "all", 1)),
        replay=replay,
        global_size=count,
        replay_size=len(replay.ids) if replay else 0,
        order=torch.zeros(count, dtype=torch.int64),
        gather=lambda value: value,
        normal=drawn,
        uniform=drawn,
        step=StepFacts(50, 0, False, 0),
        stored=stored,
        reference=reference,
    )
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write results/gpu-bytes.md")
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--set", nargs="+", default=[], help="of the recipe, as checkpoint_activations=true")
    parser.add_argument("--no-waits", action="store_true")
    options = parser.parse_args()

    settings = {name: json.loads(value) for name, _, value in (text.partition("=") for text in options.set)}
    lines = [
        "| GB a step | TFLOP | products | attention | elementwise | filling | optimizer | kept | host waits |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(lines), flush=True)
    numbers, waits = {}, {}
    for name in options.methods or method_names():
        row = numbers[name] = counted(name, settings, options.batch)
        if not options.no_waits:
            with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
                waits[name] = sum(waits_of(name, Path(folder)).values()) / COUNTED
        cells = [f"{row['tflop']:.1f}", *(f"{row[f'{kind}_gb']:.1f}" for kind in (*KINDS, "kept"))]
        lines.append(f"| {name} | {' | '.join(cells)} | {waits.get(name, float('nan')):.2g} |")
        print(lines[-1], flush=True)
    if options.keep:
        (RESULTS / "gpu-bytes.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if options.json:
        first = next(iter(numbers))
        row = numbers.get("base_moco", numbers[first])
        largest = {"host_waits": max(waits.values(), default=None), "host_waits_base_moco": waits.get("base_moco")}
        print(json.dumps({name: round(value, 1) for name, value in row.items()} | largest | {"methods": numbers}))


if __name__ == "__main__":
    main()
