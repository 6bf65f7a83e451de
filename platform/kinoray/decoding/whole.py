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
ASF = bytes.fromhex("3026b2758e66cf11a6d900aa")
"""What a file of Windows Media begins with."""
ASF_PACKETS, ASF_LEAST = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c"), 50
"""Its object that holds all packets, and the bytes of an empty one."""
START, PACK = b"\0\0\1", 0xBA
"""Of program streams (MPEG, VOB): what each part begins with, and the byte behind it."""
LAST_BYTES = 1 << 20
"""Where the last page or pack of a file begins."""
ZEROS_BYTES = 512
"""Zeros at its end that a whole file may have."""
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
        ends_in_zeros = declared is None and _ends_in_zeros(file, size)
    if declared is not None and size < (1 - LOST_SHARE) * declared:
        raise VideoError("decode", f"the file is cut off: {size:,} of {declared:,} bytes")
    if ends_inside:
        raise VideoError("decode", "the file is cut off: it ends inside a packet")
    if ends_in_zeros:
        raise VideoError("decode", "the file is cut off: there are only zeros at its end")


def is_encrypted(path: str) -> bool:
    """Whether a file of the MP4 family says that its video is encrypted."""
    with open(path, "rb") as file:
        for kind, begin, length in _boxes(file, os.path.getsize(path)):
            if kind == b"moov":
                file.seek(begin + 8)
                return b"encv" in file.read(min(length, MOST_BYTES))
    return False


def other_kind(path: str) -> str | None:
    """What a file is that only has a video's name; None where it is none of what downloads leave."""
    with open(path, "rb") as file:
        head = file.read(512).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer in place of the file: get it with `git lfs pull`"
    if head.startswith((b"<!doctype html", b"<html")):
        return "a web page in place of the file"
    return "an XML text in place of the file" if head.startswith(b"<?xml") else None


def _declared(file: BinaryIO, size: int) -> int | None:
    """Bytes that the file should have; None where it does not say."""
    head = file.read(12)
    kinds: list[tuple[bool, Callable[[BinaryIO, int], int | None]]] = [
        (head[:4] == b"RIFF" and head[8:] == b"AVI ", _riff),
        (head[:4] == EBML, _ebml),
        (head[4:8] in BOXES, _boxes_end),
        (head == ASF, _asf),
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


def _asf(file: BinaryIO, size: int) -> int | None:
    """The end of the object that holds all packets, behind the header."""
    file.seek(16)
    header = int.from_bytes(file.read(8), "little")
    if header > size:  # a damaged length, which no file system can seek
        return None
    file.seek(header)
    kind, length = file.read(16), int.from_bytes(file.read(8), "little")
    return header + length if kind == ASF_PACKETS and length > ASF_LEAST else None


def _ebml(file: BinaryIO, size: int) -> int | None:
    """The end of the segment, behind the EBML header."""
    file.seek(4)
    header = _vint(file)
    if header is None or header > size:
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
    """The end of the last box on the top level; of a file in fragments, what its indexes list.

    Raises: VideoError where a fragment is not all there: those before it would pass for the whole.
    """
    end = indexed = 0
    fragmented, kind = False, b""
    for kind, begin, length in _boxes(file, size):
        if not kind.isalnum() or length < 8:  # the last box may reach to the end, whatever that is
            return None
        fragmented |= _tells_of_fragments(file, kind, begin, length)
        end = begin + length
        if kind == b"sidx":
            indexed = max(indexed, _indexed_end(file, begin, length))
    if fragmented and (end != size or kind == b"moof"):
        raise VideoError("decode", "the file is cut off: it ends inside a fragment")
    return max(end, indexed)


def _tells_of_fragments(file: BinaryIO, kind: bytes, begin: int, length: int) -> bool:
    """Whether a box is a fragment's, or the header before them: a small one, for it lists no frames."""
    if kind != b"moov" or length > LAST_BYTES:
        return kind == b"moof"
    file.seek(begin)
    return b"mvex" in file.read(length)


def _indexed_end(file: BinaryIO, begin: int, length: int) -> int:
    """Where the last fragment ends that an index (`sidx`) lists."""
    file.seek(begin + 8)
    data = file.read(min(length, MOST_BYTES) - 8)
    wide = data[:1] == b"\1"
    place = 28 if wide else 20
    offset, count = data[20 if wide else 16 : place], data[place + 2 : place + 4]
    sizes = (data[at : at + 4] for at in range(place + 4, place + 4 + 12 * int.from_bytes(count, "big"), 12))
    fragments = sum(int.from_bytes(size, "big") & 0x7FFFFFFF for size in sizes)
    return begin + length + int.from_bytes(offset, "big") + fragments


def _ends_in_zeros(file: BinaryIO, size: int) -> bool:
    """Whether the end of a file that says no size is what a download had room for and never got."""
    file.seek(0)
    head = file.read(8)
    if head[:3] == b"GIF":  # it has a last byte of its own
        return False
    if head[4:8] in BOXES and not any(_tells_of_fragments(file, *box) for box in _boxes(file, size)):
        return False  # it says where each frame is, and decoding finds none there
    begin = place = size - max(int(LOST_SHARE * size), ZEROS_BYTES)
    if begin <= 0:
        return False
    file.seek(begin)
    while place < size and not any(block := file.read(min(1 << 16, size - place))):
        place += len(block)
    return place == size


def _ends_inside(file: BinaryIO, size: int) -> bool:
    """Whether a file of a kind that says no size ends where none may: GIF, FLV, IVF, Ogg, live WebM, MPEG's streams."""
    file.seek(0)
    head = file.read(8)
    if head[:4] == EBML:
        return _elements_end(file) > size
    if head[:3] == b"GIF":
        file.seek(-min(size, 16), os.SEEK_END)
        return not file.read().rstrip(b"\0").endswith(b";")
    if head[:4] == b"OggS":
        return _last_page_end(file, size) > size
    if head[:4] == b"DKIF":
        return _frames_end(file, size) != size
    if head[:4] == START + bytes([PACK]):
        return _ends_inside_pack(file, size)
    if head[:3] == b"FLV":
        return not _ends_with_tag(file, size)
    for place, packet in PACKETS.items():
        if head[place : place + 1] == b"G" and _has_sync(file, place, packet):
            return size % packet > 0
    return False


def _last_page_end(file: BinaryIO, size: int) -> int:
    """Where the last page of an Ogg file should end; 0 where none is found."""
    begin = file.seek(max(0, size - LAST_BYTES))
    data = file.read()
    page = data.rfind(b"OggS\0")
    if page < 0:
        return 0
    count = int.from_bytes(data[page + 26 : page + 27], "big")
    sizes = data[page + 27 : page + 27 + count]
    return begin + page + 27 + count + sum(sizes)


def _frames_end(file: BinaryIO, size: int) -> int:
    """Where the last frame of an IVF file should end, by the length before each."""
    end = 32
    while end < size:
        file.seek(end)
        head = file.read(12)
        if not any(head):
            return end
        end += 12 + int.from_bytes(head[:4], "little")
    return end


def _ends_inside_pack(file: BinaryIO, size: int) -> bool:
    """Whether a program stream ends inside one of its last pack's packets; each says how long it is."""
    file.seek(max(0, size - LAST_BYTES))
    data = file.read()
    place = data.rfind(START + bytes([PACK]))
    while 0 <= place < len(data):
        head = data[place : place + 14]
        if not START.startswith(head[:3]) or (head[3:4] < bytes([PACK]) and len(head) > 3):
            return False  # the end of all packs, or nothing of theirs
        if head[3:4] == bytes([PACK]):
            place += 14 + int.from_bytes(head[13:]) % 8 if head[4:5] >= b"\x40" else 12
        else:
            place += 6 + int.from_bytes(head[4:6], "big")
    return place > len(data)


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
