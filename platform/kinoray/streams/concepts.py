"""What the streams over fetched packages share: splits by concept, cut anew for each number in a stream's name."""

import pyarrow as pa
import pyarrow.compute as pc

from kinoray.data.manifest import SCHEMA, Manifest, read_manifest, write_table
from kinoray.datasets.packages import RESERVED_TASK, concept_of, find_family, split_of_concept
from kinoray.datasets.prepared import prepared
from kinoray.datasets.vectors import vectors_manifest
from kinoray.errors import UsageError
from kinoray.system.folders import prepared_folder, writing

VIDEOS = "videos"
"""What a stream's argument says where whole towers are to see its clips."""


def split_number(name: str, argument: str) -> int:
    """K of `NAME:K`, 0 where there is none. Raises: UsageError for what is no number."""
    if not (argument or "0").isdecimal():
        raise UsageError(f"{name}:{argument}: give the number of the split, such as {name}:1.")
    return int(argument or 0)


def split_and_media(name: str, argument: str) -> tuple[int, bool]:
    """K of `NAME:K` or `NAME:K,videos`, and whether clips are vectors that were made once: without the word `videos`.

    Raises: UsageError for what is no number.
    """
    words = argument.split(",")
    number = ",".join(word for word in words if word != VIDEOS)
    return split_number(name, number), VIDEOS not in words


def cut_by_concept(data_set: str, number: int, vectors: bool = False) -> Manifest:
    """A prepared set without what is reserved, split in the `number`-th way: no concept is in two splits.

    vectors: its clips are what `kinoray data vectors` made of them.
    Raises: UsageError with the command that prepares it, or makes the vectors, where that was not done.
    """
    whole = vectors_manifest(data_set) if vectors else prepared(data_set)
    path = prepared_folder(data_set) / f"split-{number}-{whole.digest[:16]}.parquet"
    if not path.is_file():
        table = whole.table.filter(pc.not_equal(pc.fill_null(whole.table["task"], ""), RESERVED_TASK))
        share = find_family(data_set).RESERVED
        splits = [split_of_concept(concept_of(id), number, share) for id in table["id"].to_pylist()]
        table = table.set_column(SCHEMA.names.index("split"), "split", pa.array(splits, pa.string()))
        with writing(f"the splits of {data_set}"):
            write_table(table, path, whole.root)
    return read_manifest(path)
