"""WebDataset's shards: `*.tar` in which `0001.mp4` or `.jpg` lies beside `0001.txt`, `.json` or `.cls`.

Members of other kinds are never opened: to read `.pyd` and `.pth` is to run them.
"""

import gzip
import json
import re
import shutil
import tarfile
import zlib
from pathlib import Path

from kinoray.errors import UsageError
from kinoray.streams.layouts import Listing, Row, is_picture, is_video, listed_in
from kinoray.streams.layouts.tables import COLUMNS, filled, has_text, our_names
from kinoray.streams.layouts.unpacking import CHUNK, new_file, unpacked
from kinoray.system.stand_ins import opened

RANK = 3
TARS = (".tar", ".tar.gz", ".tgz")
KEY = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)")
"""What files of one sample have in common is all up to the first dot of their names."""
TEXTS = {"txt": "caption", "text": "caption", "caption": "caption", "cls": "label"}
TEXT_BYTES = 1 << 20


def read(folder: Path) -> Listing | None:
    """A shard's name tells its split. Raises: UsageError for links, devices and names that leave the folder."""
    archives = [file for file in listed_in(folder, *TARS) if _has_videos(file)]
    if not archives:
        return None
    count = f"{len(archives):,} shard{'s' * (len(archives) > 1)}"
    return unpacked(f"a web dataset ({count})", folder, archives, _unpack)


def _has_videos(file: Path) -> bool:
    """Whether one of a tar's first members is a video or a picture."""
    try:
        with opened(file) as data, tarfile.open(fileobj=data) as tar:
            return any(
                is_video(member.name) or is_picture(member.name) for member, _ in zip(tar, range(64), strict=False)
            )
    except (tarfile.TarError, OSError, EOFError):
        return False


def _unpack(file: Path, place: Path) -> tuple[list[Row], dict[str, list[str]]]:
    samples: dict[str, Row] = {}
    others: list[str] = []
    try:
        with opened(file) as data, tarfile.open(fileobj=data) as tar:
            for member in tar:
                if member.issym() or member.islnk() or member.isdev():
                    raise UsageError(f"{file}: {member.name!r} is a link or a device. Pack only regular files.")
                if member.isfile() and (match := KEY.fullmatch(member.name.removeprefix("./"))):
                    sample = samples.setdefault(match[1], {})
                    if not _add(file, tar, member, match[2].lower(), sample, place):
                        others.append(member.name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}. Get it again.") from None
    rows = {key: filled(sample) for key, sample in samples.items()}
    partial = [key for key, row in rows.items() if row and ("video" not in row or not has_text(row))]
    for key in partial:
        if video := rows.pop(key).get("video"):
            (place / video).unlink()
    left_out = {"samples without a video or a caption are": partial, "members of other kinds are": others}
    return [row for row in rows.values() if row], {what: names for what, names in left_out.items() if names}


def _add(file: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, ending: str, sample: Row, place: Path) -> bool:
    """What one member says of its sample, and whether it says any; a video is written, else a picture."""
    data = tar.extractfile(member)
    assert data is not None
    if is_video(member.name) or (is_picture(member.name) and "video" not in sample):
        path = new_file(file, place, member.name)
        with open(path, "xb") as out:
            shutil.copyfileobj(data, out, CHUNK)
        if picture := sample.get("video"):
            (place / picture).unlink()
        sample["video"] = str(path.relative_to(place))
    elif ending in TEXTS and member.size <= TEXT_BYTES:
        sample[TEXTS[ending]] = data.read().decode("utf-8", "replace").strip()
    elif ending == "json" and member.size <= TEXT_BYTES:
        try:
            said = json.loads(data.read())
        except ValueError:
            raise UsageError(f"{file}: {member.name!r} is not JSON. Pack the archive again.") from None
        if isinstance(said, dict):
            ours = {name: our for name, our in our_names(said).items() if our == "caption"}
            known = {ours.get(name, name): value for name, value in said.items()}
            sample |= {k: v for k, v in known.items() if k in COLUMNS and k != "video" and k not in sample}
    else:
        return is_picture(member.name)
    return True
