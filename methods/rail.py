"""RAIL (Xu et al., NeurIPS 2024): a ridge regression from frozen CLIP to classes, and zero-shot for what it never saw.

Nothing is trained by gradient: after each task one regression on the rows of all tasks is solved, whatever their order.
Zero-shot decides whether a clip is of a class that some task had; where it is, the regression joins.

    primal   phi(x) = ReLU(x V),                  W = (Phi^T Phi + lambda I)^-1 Phi^T Y,      a(x) = phi(x) W
    dual     k(x, x') = exp(-gamma |x - x'|^2),   alpha = (K + lambda I)^-1 Y,                a(x) = k(x, X) alpha
    p = softmax(100 x.t),   score = (1 - beta) p + beta a  where argmax p is a class seen so far,  else p

x and t have unit norm, V is drawn evenly from +-1/sqrt(d) and stays; the dual keeps x of every row.

Differs: read in the code (`primal_RAIL.py`, `dual_RAIL.py`); the paper's text could not be. The code updates the
inverse batch by batch, here both sums are kept, in double precision: the same weights. lambda of the dual is 0.001
there, whatever its setting says; V has 15,000 columns of 512 features, here as many for each; rows are seen as in a
test, there in a random crop; one label in two tasks is one class, there two. `retention-agnostic` tests as the code
does, and `retention` too (`answer=names`): t is the mean over a class's prompts, of which there is one there, and a
class is seen if one of them is like the captions that some task had of it. On other streams with labels classes are
told apart by number (`classification`): t is the mean of a class's captions, and no class is unseen. The engine's steps
change nothing, so there are two.
"""

# B, N rows   D embedding   M lifted, or rows kept   C classes so far   Q names   V clips

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.backbone import TextTowers, Tokens, TwoTower
from kinoray.config import Positive, Share, config
from kinoray.equations import classes_named, lifted, ridge_moments, ridge_weights, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput, Task, TaskFacts
from kinoray.rehearsal import labelled


@config
class Config:
    """Hyper-parameters; the code's."""

    form: Literal["primal", "dual"] = "primal"
    lift: Positive = 15_000 / 512
    """Columns of V by the embedding's size. The sums take 8 bytes times their square: 1.8 GB of CLIP's 512."""
    gamma: Positive = 0.1
    """Of the dual's kernel."""
    ridge: Positive = 0.1
    """lambda."""
    fusion: Share = 0.8
    """beta."""
    answer: Literal["numbers", "names"] = "numbers"
    """What is stored of a clip: scores of all classes so far, or its embedding, for names to be scored against."""
    same_name: Share = 0.99
    """How alike (cosine) a name is at least to the captions of the class that it is."""


NAMES = {"answer": "names"}
RECIPES: dict[str, dict[str, Any]] = {
    "": {"max_steps": 2, "validations": 0},
    "protocol:retention": NAMES,
    "protocol:retention-agnostic": NAMES,
}


def kernel(x_ND: Tensor, rows_MD: Tensor, gamma: float) -> Tensor:
    """k of all pairs, (N, M) in double precision."""
    distances_NM = torch.cdist(x_ND.double(), rows_MD, compute_mode="donot_use_mm_for_euclid_dist")
    return (-gamma * distances_NM.square()).exp()


def fused(logits_BC: Tensor, adapter_BC: Tensor, seen_C: Tensor, beta: float) -> Tensor:
    """Zero-shot's probabilities, joined by the regression (0 for classes not seen) where a class seen wins."""
    p_BC = logits_BC.double().softmax(dim=1)
    joins_B1 = seen_C[p_BC.argmax(dim=1)][:, None]
    return torch.where(joins_B1, (1 - beta) * p_BC + beta * adapter_BC, p_BC)


class Regression(TextTowers):
    """Frozen towers, and a regression on what they make of clips."""

    random_DM: Tensor  # V
    kept_MK: Tensor  # primal: [Phi^T Phi, Phi^T Y]; dual: [X, Y], zeros where no row is yet
    W_MC: Tensor  # dual: alpha
    names_TCD: Tensor  # the sum of each class's captions in each task

    def __init__(self, towers: TwoTower, config: Config) -> None:
        super().__init__(towers.requires_grad_(False))
        self.config, self.is_dual, D = config, config.form == "dual", self.dim
        M = 0 if self.is_dual else round(config.lift * D)
        self.register_buffer("random_DM", (2 * torch.rand(D, M) - 1).double() * D**-0.5)
        for name, shape in {"kept_MK": (M, M or D), "W_MC": (M, 0), "names_TCD": (0, 0, D)}.items():
            self.register_buffer(name, torch.zeros(shape).double())

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """The towers'."""
        return self.towers.embed_video(frames_BTCHW)

    def grow(self, classes: int, rows: int) -> None:
        """Room for a task with so many more."""
        below = rows if self.is_dual else 0
        self.kept_MK, self.W_MC = (F.pad(x, (0, classes, 0, below)) for x in (self.kept_MK, self.W_MC))
        self.names_TCD = F.pad(self.names_TCD, (0, 0, 0, classes, 0, 1))

    def learn(self, x_ND: Tensor, y_NC: Tensor) -> None:
        """Add rows, and solve for all."""
        if not self.is_dual:
            self.kept_MK += ridge_moments(x_ND, y_NC, self.random_DM)
            self.W_MC = ridge_weights(self.kept_MK, self.config.ridge)
            return
        before = int(self.kept_MK[:, self.dim :].sum())
        self.kept_MK[before : before + len(x_ND)] = torch.cat([x_ND, y_NC], dim=1)
        X, Y = self.kept_MK[: before + len(x_ND)].tensor_split([self.dim], dim=1)
        self.W_MC[: len(X)] = ridge_weights(torch.cat([kernel(X, X, self.config.gamma), Y], dim=1), self.config.ridge)

    def scores(self, x_BD: Tensor, texts_QD: Tensor, named_QC: Tensor) -> Tensor:
        """Clips against texts, of which each names one class or none, (B, Q)."""
        rows_MD = self.kept_MK[:, : self.dim]
        h_BM = kernel(x_BD, rows_MD, self.config.gamma) if self.is_dual else lifted(x_BD, self.random_DM)
        adapter_BQ, logits_BQ = h_BM @ self.W_MC @ named_QC.double().T, 100 * x_BD.double() @ texts_QD.double().T
        return fused(logits_BQ, adapter_BQ, named_QC.any(dim=1), self.config.fusion).float()


class Method(BaseMethod):
    """The regression, asked together with zero-shot."""

    tested_by = "classification"
    suits = ("classification", "retention", "retention-agnostic")
    needs_labels = True
    whole = True
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.regression = Regression(backbone, config)
        self.resting = nn.Parameter(torch.zeros(()))

    def grow(self, task: TaskFacts) -> None:
        """Room for the task's classes and rows."""
        self.regression.grow(task.new_classes, task.num_samples)

    def param_groups(self) -> dict[str, ParamGroup]:
        """A number that nothing depends on: nothing trains."""
        return {"resting": ParamGroup({"resting": self.resting})}

    def loss(self, batch: Batch) -> StepOutput:
        """0. Features: none."""
        return StepOutput(objectives=0.0 * self.resting)

    def end_task(self, task: Task) -> tuple[int, ...]:
        """Learn the task's rows, and the captions of its classes."""
        towers = self.regression
        both = labelled(
            task, lambda rows: torch.cat([towers.embed_video(rows.video), towers.embed_text(rows.text)], dim=1)
        )
        labels, table = (part.to(towers.W_MC.device) for part in both)
        y_NC = F.one_hot(labels, towers.W_MC.shape[1]).double()
        towers.learn(table[:, : towers.dim], y_NC)
        towers.names_TCD[-1] += y_NC.T @ table[:, towers.dim :]
        return ()

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """Scores of all classes so far (B, C), or the embedding (B, D)."""
        x_BD, names_CD = self.regression.embed_video(video), self.regression.names_TCD.sum(dim=0)
        by_number = torch.eye(len(names_CD), dtype=torch.bool, device=x_BD.device)
        return x_BD if self.config.answer == "names" else self.regression.scores(x_BD, unit(names_CD), by_number)

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        """The embedding of each prompt, and a 1 for the class that it names, or for none, (Q, D + C + 1).

        All are of one length, so that a mean over prompts begins with that of their embeddings."""
        text_QD = unit(super().embed_text(text, task_index))
        named_QC = classes_named(text_QD, self.regression.names_TCD, self.config.same_name)
        return torch.cat([text_QD, named_QC, ~named_QC.any(dim=1, keepdim=True)], dim=1)

    def score(self, queries: Tensor, block: Tensor) -> Tensor:
        """Names (Q, D + C + 1), the whole vocabulary, and clips (V, D): (Q, V)."""
        text_QD, named_QC, _ = queries.tensor_split([block.shape[1], -1], dim=1)
        return self.regression.scores(block, unit(text_QD), named_QC > 0).T

    def encoder(self) -> Regression:
        """The towers with the regression."""
        return self.regression
