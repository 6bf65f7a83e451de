"""Generators that score the frames of a clip, and the removal of frames by their scores (VideoMoCo, CVPR 2021).

Two generators: the paper's (Sec. 4.2) and the one that its authors released, which differ in all but their purpose.

Differs: the paper gives its convolutional LSTM 256 hidden units and says no more of its layers; ours reads each frame
by three convolutions. In the released one the channels that the LSTM goes through as if they were time steps, and the
scores, are 32 as there are 32 frames; here they are as many as there are frames.
"""

# B batch   T frames   C channels   H, W pixels   P places of a map   S hidden units   N frames that stay

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.norm import SplitBatchNorm2d
from kinoray.errors import UsageError

Which = Literal["highest", "lowest"]
Removal = Literal["mean", "drop"]


def without_frames(frames_BTCHW: Tensor, scores_BT: Tensor, count: int, which: Which, removal: Removal) -> Tensor:
    """The clips without the content of the frames that score highest, or lowest (Eq. 3).

    mean: such a frame becomes its own mean over C, H and W, a single value, so that T stays. drop: it goes, T shrinks.

    Shapes:   scores (B, T), of any order; returns (B, T, C, H, W), or (B, T - count, C, H, W), in the order of time.
    Ranges:   0 <= count < T. Of equal scores, which frames go is not said.
    Gradient: straight-through, as released: a score gets the sum of what arrives at its frame, removed or not (at a
              frame that is gone nothing arrives). None to the frames.
    """
    chosen_Bk = scores_BT.topk(count, dim=1, largest=which == "highest").indices
    gone_BT = torch.zeros_like(scores_BT, dtype=torch.bool).scatter(1, chosen_Bk, True)
    surrogate_BT = scores_BT - scores_BT.detach()  # zero, with the gradient of the scores
    if removal == "drop":
        rows = torch.arange(len(frames_BTCHW), device=frames_BTCHW.device)[:, None]
        stays_BN = (~gone_BT).nonzero()[:, 1].view(len(frames_BTCHW), -1)
        left, surrogate_BT = frames_BTCHW[rows, stays_BN], surrogate_BT[rows, stays_BN]
    else:
        means = frames_BTCHW.mean(dim=(2, 3, 4), keepdim=True)
        left = torch.where(gone_BT[:, :, None, None, None], means, frames_BTCHW)
    return left.detach() + surrogate_BT[:, :, None, None, None].to(left.dtype)


class ConvLstm(nn.Module):
    """The paper's generator: convolutions read each frame, an LSTM goes through the frames and scores each.

    Clips may have any length and size.
    """

    def __init__(self, hidden: int = 256, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        """hidden: units of the LSTM, the paper's 256. widths: channels of the convolutions, each of which halves the
        sides."""
        super().__init__()
        layers: list[nn.Module] = []
        for width_in, width in zip((3, *widths[:-1]), widths, strict=True):
            layers += [
                nn.Conv2d(width_in, width, 3, stride=2, padding=1, bias=False),
                SplitBatchNorm2d(width),
                nn.ReLU(),
            ]
        self.convolutions = nn.Sequential(*layers)
        self.lstm = nn.LSTM(widths[-1], hidden, batch_first=True)
        self.score = nn.Linear(hidden, 1, bias=False)  # the softmax takes a bias away again

    def forward(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, T, 3, H, W) -> importance of each frame (B, T), > 0, adding up to 1 over the frames."""
        maps = self.convolutions(frames_BTCHW.flatten(0, 1))
        features_BTC = maps.mean(dim=(2, 3)).unflatten(0, frames_BTCHW.shape[:2])
        hidden_BTS, _ = self.lstm(features_BTC)
        return self.score(hidden_BTS).squeeze(2).softmax(dim=1)


class Pyramid(nn.Module):
    """Atrous spatial pyramid pooling: a picture's mean, a pointwise and three dilated convolutions, side by side."""

    def __init__(self, width: int, dilations: tuple[int, ...] = (6, 12, 18)) -> None:
        super().__init__()
        self.of_mean = nn.Conv2d(width, width, 1)
        self.pointwise = nn.Conv2d(width, width, 1)
        self.dilated = nn.ModuleList(nn.Conv2d(width, width, 3, padding=d, dilation=d) for d in dilations)
        self.join = nn.Conv2d((2 + len(dilations)) * width, width, 1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        mean = self.of_mean(x_BCHW.mean(dim=(2, 3), keepdim=True)).expand_as(x_BCHW)
        return self.join(torch.cat([mean, self.pointwise(x_BCHW), *(layer(x_BCHW) for layer in self.dilated)], dim=1))


class ReleasedGenerator(nn.Module):
    """The released generator: time is merged into the channels, and the LSTM goes through channels.

    Its layers have the size of the clips that it is made for; 558,560 weights for 32 frames of 112 px.
    """

    SMALLEST_PX = 11
    """Smaller frames leave nothing for the last pooling."""

    def __init__(self, frames: int = 32, size_px: int = 112, hidden: int = 64) -> None:
        """hidden: units of the LSTM in each direction. Raises: UsageError for frames that are too small."""
        super().__init__()
        if size_px < self.SMALLEST_PX:
            raise UsageError(
                f"The generator of the authors' code needs frames of {self.SMALLEST_PX} px or more, but got "
                f"{size_px} px. Use generator=conv_lstm."
            )
        self.shape = (frames, 3, size_px, size_px)
        width = 3 * frames
        places = ((size_px - 3) // 8) ** 2
        # One block, passed three times, and another, passed six times.
        self.shared = _normed(nn.Conv2d(width, width, 3, padding=1, dilation=2, bias=False), eps=1e-3)
        self.pyramid = Pyramid(width)
        self.narrow = _normed(nn.Conv2d(width, frames, 3, padding=1))
        self.again = _normed(nn.Conv2d(frames, frames, 3, padding=1))
        self.lstm = nn.LSTM(places, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * hidden, frames)

    def forward(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, T, 3, H, W) -> importance of each frame (B, T), > 0, adding up to 1 over the frames.

        Raises: UsageError for clips of another shape than it was made for.
        """
        self.check(frames_BTCHW)
        x = frames_BTCHW.transpose(1, 2).flatten(1, 2)  # channel c of frame t is channel c T + t
        for _ in range(3):
            x = F.max_pool2d(self.shared(x), 2, stride=1, padding=1)
        x = self.narrow(self.pyramid(x))
        for _ in range(3):
            x = F.avg_pool2d(self.again(self.again(x)), 2)
        hidden_BTS, _ = self.lstm(x.flatten(2))  # (B, T, P)
        return self.score(hidden_BTS[:, -1]).softmax(dim=1)

    def check(self, frames_BTCHW: Tensor) -> None:
        """Raises: UsageError for clips of another shape than it was made for."""
        if frames_BTCHW.shape[1:] != self.shape:
            made, (frames, _, *sides) = self.shape, frames_BTCHW.shape[1:]
            raise UsageError(
                f"The released generator was made for {made[0]} frames of {made[2]} px, but got {frames} of "
                f"{sides[0]} x {sides[1]} px. Set clip_frames and clip_px, or use generator=conv_lstm."
            )


def _normed(convolution: nn.Conv2d, eps: float = 1e-5) -> nn.Sequential:
    """A convolution, batch normalisation over the step's rows and ReLU."""
    return nn.Sequential(convolution, SplitBatchNorm2d(convolution.out_channels, eps=eps), nn.ReLU())
