"""InfLoRA (Liang and Li, CVPR 2024): LoRA in a space that the inputs of earlier tasks do not reach.

Before a task the inputs x of each block's attention are looked at, C = sum x x^T; what remains of C outside the space P
of earlier inputs gives the task's A, which stays, and B alone learns, of keys and values:

    A = (I - P) U[:, :rank]^T / sqrt(3),  U left singular vectors of C - P C      h = (W + sum_t B_t A_t) x
    e_t = e + (1 - e) (t - 1) / T                                     what is to be remembered of C after task t

After it P grows by the left singular vectors of C - P C until it holds e_t of the squared singular values of C
(DualGPM). So A x = 0 for all x in P, and B A changes nothing of what earlier tasks put in.

Differs: a classifier of pictures with a head for each task; here the video tower of a CLIP-like pair with CLIP's
contrast of the batch, whose captions are all of the task, and without a head; the text tower is frozen. The paper's two
kinds of memory (what to avoid, and what is left) hold one space: the projector P stands for both. A is projected once
more, for vectors beyond the rank of what remains would be any. Products of earlier tasks are merged into W. Shares are
squared singular values of C, as released: fourth powers of those of the inputs. Released: Adam, 5e-4, 20 epochs (CIFAR)
or 50 (ImageNet-R, e 0.98), batch 128, a cosine. The paper's text could not be read: all of this is its code's.
"""

# N blocks   L tokens of all frames of a batch   W width

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kinoray.backbones.backbone import BlockTowers
from kinoray.backbones.lora import LowRank, add_lora, restart_lora
from kinoray.config import Count, Positive, Share, config
from kinoray.equations import clip_contrast
from kinoray.method import BaseMethod, Batch, ParamGroup, Rows, StepOutput, Task

KEYS_AND_VALUES = ("k_proj", "v_proj", "in_proj")
"""In torch's attention queries, keys and values are one matrix."""


@config
class Config:
    """Hyper-parameters; the released code's for CIFAR-100."""

    rank: Count = 10
    """Of each task's pair; 30 for DomainNet."""
    threshold: Share = 0.95
    """e, of the first task; it rises towards 1."""
    temperature: Positive = 0.010051835744633586
    """Of the contrast: exp(-4.6), CLIP's own."""


def free_directions(C_WW: Tensor, P_WW: Tensor, rank: int) -> Tensor:
    """A (rank, W): the strongest directions of inputs outside a space, each of them 3^-1/2 long."""
    U_WW = torch.linalg.svd(C_WW - P_WW @ C_WW)[0][:, :rank]
    U_WW = U_WW * U_WW.gather(0, U_WW.abs().argmax(dim=0, keepdim=True)).sign()  # else any sign is as good
    return (U_WW - P_WW @ U_WW).T / 3**0.5


def remembered(C_WW: Tensor, P_WW: Tensor, threshold: float, first: bool) -> Tensor:
    """The projector on the space of earlier inputs, and as many directions of these as the threshold asks for."""
    U_WW, S_W, _ = torch.linalg.svd(C_WW - P_WW @ C_WW)
    shares_W = S_W.square() / C_WW.square().sum()
    known = 1 - shares_W.sum()
    before_W = known + shares_W.cumsum(0) - shares_W  # of each vector what is held without it
    count = max(1, int((shares_W.cumsum(0) < threshold).sum())) if first else int((before_W < threshold).sum())
    values, vectors = torch.linalg.eigh(P_WW + U_WW[:, :count] @ U_WW[:, :count].T)
    basis = vectors[:, values > 0.5]  # exact again
    return basis @ basis.T


class Method(BaseMethod):
    """A frozen pair of towers, LoRA in the blocks of one, and a space of inputs for each block."""

    suits = ("ctvr", "cvlm")
    backbones = BlockTowers
    whole = True

    def __init__(self, config: Config, backbone: BlockTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.towers = backbone.requires_grad_(False)
        add_lora(backbone.vision_blocks, config.rank, layers=KEYS_AND_VALUES)
        for pair in self._pairs():
            pair.down_PrI.requires_grad_(False)
        width = self._pairs()[0].down_PrI.shape[-1]
        self.register_buffer("known_NWW", torch.zeros(len(backbone.vision_blocks), width, width))

    def begin_task(self, task: Task) -> None:
        """Inputs of the task give A; queries have none."""
        for block, C_WW, P_WW in zip(self.towers.vision_blocks, self._inputs(task), self._known(), strict=True):
            A_rW = free_directions(C_WW, P_WW, self.config.rank)
            for pair in _pairs_in(block):
                pair.down_PrI.zero_()[-2:] = A_rW  # of three parts the last two, or the only one

    def param_groups(self) -> dict[str, ParamGroup]:
        """B of every block."""
        params = {f"towers.{name}": p for name, p in self.towers.named_parameters() if p.requires_grad}
        return {"lora": ParamGroup(params)}

    def loss(self, batch: Batch) -> StepOutput:
        """Both directions over the whole batch. Features: `video` and `text`."""
        video_BD, text_BD = self.towers.embed_video(batch.video), self.towers.embed_text(batch.text)
        t2v, v2t = clip_contrast(batch, video_BD, text_BD, 1 / self.config.temperature)
        return StepOutput(
            objectives=(t2v + v2t) / 2,
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t},
            features={"video": video_BD, "text": text_BD},
        )

    def end_task(self, task: Task) -> tuple[int, ...]:
        """Remember the inputs, as they are by now, and merge."""
        threshold = self.config.threshold + (1 - self.config.threshold) * task.index / task.num_tasks
        pairs = zip(self._inputs(task), self._known(), strict=True)
        known = [remembered(C_WW, P_WW, threshold, task.index == 0) for C_WW, P_WW in pairs]
        self.get_buffer("known_NWW").copy_(torch.stack(known))
        restart_lora(self.towers)
        return ()

    def encoder(self) -> BlockTowers:
        """The towers with LoRA."""
        return self.towers

    def _known(self) -> Tensor:
        return self.get_buffer("known_NWW").cpu().double()

    def _pairs(self) -> list[LowRank]:
        return [pair for block in self.towers.vision_blocks for pair in _pairs_in(block)]

    def _inputs(self, task: Task) -> Tensor:
        """C of each block's attention over the task's training clips, (N, W, W)."""
        found: list[Tensor] = []

        def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x_LW = inputs[0].flatten(0, 1).double()
            found.append(x_LW.T @ x_LW)

        def squares(rows: Rows) -> Tensor:
            found.clear()
            self.towers.embed_video(rows.video)
            return torch.stack(found)

        blocks = self.towers.vision_blocks
        adapted = [next(filter(parametrize.is_parametrized, block.modules())) for block in blocks]
        hooks = [module.register_forward_pre_hook(look) for module in adapted]
        try:
            return task.total(squares)
        finally:
            for hook in hooks:
                hook.remove()


def _pairs_in(block: nn.Module) -> list[LowRank]:
    return [module for module in block.modules() if isinstance(module, LowRank)]
