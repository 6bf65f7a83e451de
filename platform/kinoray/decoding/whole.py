"""How long a video file should be, by its own first bytes: readers take one that was cut off for a shorter one.

Containers write the sizes of their parts in front of them. Where one says nothing (live streams) neither does this.
"""

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from kinoray.errors import VideoError

LOST_SHARE = 0.02
"""Of a file's bytes: an index behind the last frame may be missing, hardly more."""
BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"moof", b"styp", b"sidx", b"pdin", b"uuid")
MOST_BYTES = 1 << 26
"""Of a header that is searched."""
UNKNOWN = {0, 0xFFFFFFFF}
EBML, SEGMENT, CLUSTER = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75"
"""Of Matroska and WebM: what a file begins with, what holds all of it, and what holds some seconds of its frames."""
PACKETS = {0: 188, 4: 192}
"""Where the first sync byte of a transport stream stands -> bytes of a packet."""


def check_whole(path: str) -> None:
    """Raises: VideoError where a file is shorter than its header says."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        declared = _declared(file, size)
        ends_inside = declared is None and _ends_inside(file, size)
    if declared is not None and size < (1 - LOST_SHARE) * declared:
        raise VideoError("decode", f"the file is cut off: {size:,} of {declared:,} bytes")
    if ends_inside:
        raise VideoError("decode", "the file is cut off: it ends inside a packet")


def is_encrypted(path: str) -> bool:
    """Whether a file of the MP4 family says that its video is encrypted."""
    with open(path, "rb") as file:
        for kind, begin, length in _boxes(file, os.path.getsize(path)):
            if kind == b"moov":
                file.seek(begin + 8)
                return b"encv" in file.read(min(length, MOST_BYTES))
    return False


def _declared(file: BinaryIO, size: int) -> int | None:
    """Bytes that the file should have; None where it does not say."""
    head = file.read(12)
    kinds: list[tuple[bool, Callable[[BinaryIO, int], int | None]]] = [
        (head[:4] == b"RIFF" and head[8:] == b"AVI ", _riff),
        (head[:4] == EBML, _ebml),
        (head[4:8] in BOXES, _boxes_end),
    ]
    return next((read(file, size) for fits, read in kinds if fits), None)


def _riff(file: BinaryIO, size: int) -> int | None:
    """The end of the last RIFF chunk; long files have several."""
    end = 0
    while end + 8 <= size:
        file.seek(end)
        head = file.read(8)
        length = int.from_bytes(head[4:], "little")
        if head[:4] != b"RIFF" or length in UNKNOWN:
            return end or None
        end += 8 + length + length % 2
    return end


def _ebml(file: BinaryIO, _: int) -> int | None:
    """The end of the segment, behind the EBML header."""
    file.seek(4)
    header = _vint(file)
    if header is None:
        return None
    file.seek(header, os.SEEK_CUR)
    if file.read(4) != SEGMENT:
        return None
    length = _vint(file)
    return None if length is None else file.tell() + length


def _vint(file: BinaryIO) -> int | None:
    """A number of one to eight bytes; all ones say that nobody knew."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    more = 8 - first[0].bit_length()
    value = int.from_bytes(bytes([first[0] & (0x7F >> more)]) + file.read(more), "big")
    return None if value == (1 << 7 * (more + 1)) - 1 else value


def _elements_end(file: BinaryIO) -> int:
    """Where the last frame or other element of a file ends that does not say its size: from the head of each."""
    end, size = 0, file.seek(0, os.SEEK_END)
    while end < size:
        file.seek(end)
        first = file.read(1)[0]
        if not first:
            return end
        name = bytes([first]) + file.read(8 - first.bit_length())
        length = _vint(file)
        if name in (SEGMENT, CLUSTER):
            length = 0  # what it holds comes next
        if length is None:
            return end
        end = file.tell() + length
    return end


def _boxes(file: BinaryIO, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, place and length of each box on the top level; the last one has a length below 8 where it says none."""
    begin, length = 0, 8
    while length >= 8 and begin + 8 <= size:
        file.seek(begin)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        yield head[4:8], begin, length
        begin += length


def _boxes_end(file: BinaryIO, size: int) -> int | None:
    """The end of the last box on the top level."""
    end = 0
    for kind, begin, length in _boxes(file, size):
        if not kind.isalnum() or length < 8:  # the last box may reach to the end, whatever that is
            return None
        end = begin + length
    return end


def _ends_inside(file: BinaryIO, size: int) -> bool:
    """Whether a file of a kind that says no size ends where none may: GIF, FLV, transport streams, live WebM."""
    file.seek(0)
    head = file.read(8)
    if head[:4] == EBML:
        return _elements_end(file) > size
    if head[:3] == b"GIF":
        file.seek(-min(size, 16), os.SEEK_END)
        return not file.read().rstrip(b"\0").endswith(b";")
    if head[:3] == b"FLV":
        return not _ends_with_tag(file, size)
    for place, packet in PACKETS.items():
        if head[place : place + 1] == b"G" and _has_sync(file, place, packet):
            return size % packet > 0
    return False


def _ends_with_tag(file: BinaryIO, size: int) -> bool:
    """Whether the last four bytes are the length of the tag before them, as behind every tag."""
    file.seek(-min(size, 4), os.SEEK_END)
    length = int.from_bytes(file.read(), "big")
    if not 11 <= length <= size - 4:
        return False
    file.seek(size - 4 - length)
    return int.from_bytes(file.read(4)[1:], "big") + 11 == length


def _has_sync(file: BinaryIO, place: int, packet: int) -> bool:
    file.seek(place + packet)
    return file.read(1) == b"G"
