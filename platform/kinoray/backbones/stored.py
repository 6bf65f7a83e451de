"""Towers whose features were made once: what `kinoray data vectors` leaves, and the two projections that still train.

The folder `vectors` of a prepared set holds BACKBONE.json, which names the folder that was made last, BACKBONE-DIGEST:

    manifest.parquet       the set's clips, each a file of vectors
    clips/*.npy            vectors of a clip's frames, float16 (T, D)
    captions.safetensors   captions (UTF-8, JSON) and a vector of each, float16 (N, E)
    aligned.safetensors    projections that were trained on clips which stand in no stream
"""

# B batch   T frames   D, E widths of both towers   N captions

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kinoray.backbones.backbone import FrameTowers, MixedTokens, Tokens
from kinoray.errors import UsageError
from kinoray.system.durable import read_json, whole_file, write_json
from kinoray.system.folders import prepared_folder
from kinoray.system.text import printable

MANIFEST, CAPTIONS, ALIGNED = "manifest.parquet", "captions.safetensors", "aligned.safetensors"
SHOWN = 60
"""Characters of a caption that an error shows."""


class StoredTowers(FrameTowers):
    """A projection of stored vectors of frames, and one of stored vectors of captions; a caption is a row's number."""

    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    reads_vectors = True
    mixes = True
    table_NE: Tensor

    def __init__(self, captions: Sequence[str], table_NE: Tensor, vision_width: int, dim: int, made_by: str) -> None:
        """captions: those of the table's rows. made_by: the command that makes the table."""
        super().__init__()
        self.vision_projection = nn.Linear(vision_width, dim)
        self.text_projection = nn.Linear(table_NE.shape[1], dim)
        self.register_buffer("table_NE", table_NE, persistent=False)
        self.rows = {caption: row for row, caption in enumerate(captions)}
        self.dim, self.made_by = dim, made_by

    def embed_frames(self, frames_BTD: Tensor) -> Tensor:
        """The projected vectors, (B, T, dim). Raises: UsageError for vectors of another width."""
        width, wanted = frames_BTD.shape[-1], self.vision_projection.in_features
        if width != wanted:
            raise UsageError(f"The clips' vectors have {width} numbers, not {wanted}. Run `{self.made_by}`.")
        return self.vision_projection(frames_BTD)

    def embed_video(self, frames_BTD: Tensor) -> Tensor:
        """The mean over frames, as unit vectors (B, dim): averaged first, which is the same for a T-th of the work."""
        return nn.functional.normalize(self.embed_frames(frames_BTD.mean(dim=1, keepdim=True))[:, 0], dim=-1)

    def project_text(self, tokens: Tokens | MixedTokens) -> Tensor:
        """(B, dim) of captions, not normalised."""
        vectors_BE = self._vectors(tokens.ids)
        if isinstance(tokens, MixedTokens):
            vectors_BE = self._vectors(tokens.other_ids).lerp(vectors_BE, tokens.share)
        return self.text_projection(vectors_BE)

    def _vectors(self, ids_B1: Tensor) -> Tensor:
        return self.table_NE[ids_B1[:, 0]].to(self.text_projection.weight.dtype)

    def random_tokens(self, count: int, length: int) -> Tokens:
        """Captions drawn evenly from all that are stored, whatever their length."""
        ids = torch.randint(len(self.rows), (count, 1))
        return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))

    def tokenize(self, captions: list[str], max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the table int64, and a mask of true, both (N, 1). Raises: UsageError for a caption without a row."""
        missing = [caption for caption in captions if caption not in self.rows]
        if missing:
            shown = printable(missing[0])[:SHOWN]
            raise UsageError(f"There is no stored vector of the caption {shown!r}. Run `{self.made_by}`.")
        ids = np.array([self.rows[caption] for caption in captions], dtype=np.int64).reshape(-1, 1)
        return ids, np.ones_like(ids, dtype=bool)


def command(data_set: str) -> str:
    """What makes a set's vectors."""
    return f"kinoray data vectors {data_set}"


def pointer(backbone: str, data_set: str) -> Path:
    """The file that names the folder of a set's vectors."""
    return prepared_folder(data_set) / "vectors" / f"{backbone}.json"


def point_to(folder: Path, backbone: str, data_set: str, source: str) -> None:
    """Let a folder of vectors be the one that is used. source: digest of the manifest that it was made of."""
    write_json(pointer(backbone, data_set), {"folder": folder.name, "source": source})


def vectors_folder(backbone: str, data_set: str, source: str | None = None) -> Path:
    """The folder of a set's vectors. source: digest of the manifest that it must have been made of; None: of any.

    Raises: UsageError with the command where there is none.
    """
    file, way_on = pointer(backbone, data_set), f"Run `{command(data_set)}`."
    if not file.is_file():
        raise UsageError(f"The vectors of {data_set} for {backbone} are not made yet. {way_on}")
    said = read_json(file, way_on, {"folder": None, "source": None})
    folder = file.parent / Path(said["folder"]).name
    if not (folder / MANIFEST).is_file() or source not in (None, said["source"]):
        raise UsageError(f"The vectors of {data_set} for {backbone} do not match the clips prepared now. {way_on}")
    return folder


def write_captions(path: Path, captions: Sequence[str], table_NE: Tensor) -> None:
    """Captions with a vector of each, whole or not at all."""
    text = np.frombuffer(json.dumps(list(captions), ensure_ascii=False).encode(), dtype=np.uint8)
    write_tensors(path, {"captions": torch.from_numpy(text.copy()), "vectors": table_NE})


def read_captions(path: Path, made_by: str) -> tuple[list[str], Tensor]:
    """What `write_captions` wrote. Raises: UsageError with the command that makes it again."""
    tensors = read_tensors(path, ("captions", "vectors"), made_by)
    captions, table_NE = json.loads(tensors["captions"].numpy().tobytes()), tensors["vectors"]
    if table_NE.shape[:-1] != (len(captions),):
        raise UsageError(f"{path} is damaged. Run `{made_by}`.")
    return captions, table_NE


def load_stored(folder: Path, vision_width: int, dim: int, made_by: str) -> StoredTowers:
    """Towers over a folder of vectors; the projections are drawn from torch's global generator.

    Raises: UsageError with the command where a file is missing or damaged.
    """
    return StoredTowers(*read_captions(folder / CAPTIONS, made_by), vision_width, dim, made_by)


def save_projections(towers: StoredTowers, path: Path) -> None:
    """Both projections, whole or not at all."""
    write_tensors(path, towers.state_dict())


def load_projections(towers: FrameTowers, path: Path, made_by: str) -> None:
    """Let both projections of any towers be those of a file. Raises: UsageError with the command that makes it."""
    projections = [name for name in towers.state_dict() if "_projection." in name]
    tensors = read_tensors(path, projections, made_by)
    try:
        towers.load_state_dict(tensors, strict=False)
    except RuntimeError:
        raise UsageError(f"{path} was made for other towers. Run `{made_by}`.") from None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, draft)
        draft.chmod(0o644)  # safetensors writes for the owner only


def read_tensors(path: Path, names: Sequence[str], made_by: str) -> dict[str, Tensor]:
    """What a safetensors file holds. Raises: UsageError where it is missing, damaged or holds other names."""
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise UsageError(f"There is no {path}. Run `{made_by}`.") from None
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} cannot be read ({error}). Run `{made_by}`.") from None
    if set(tensors) != set(names):
        raise UsageError(f"{path} does not hold {', '.join(names)}. Run `{made_by}`.")
    return tensors
