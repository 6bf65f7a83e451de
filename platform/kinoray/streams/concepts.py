"""What the streams over fetched packages share: splits by concept, cut anew for each number in a stream's name."""

import pyarrow as pa
import pyarrow.compute as pc

from kinoray.data.manifest import SCHEMA, Manifest, read_manifest, write_table
from kinoray.datasets.packages import concept_of, find_family, split_of_concept
from kinoray.datasets.prepared import prepared
from kinoray.errors import UsageError
from kinoray.system.folders import prepared_folder, writing

RESERVED = "reserved"
"""The task of clips that stand in no stream: towers are aligned on them."""


def split_number(name: str, argument: str) -> int:
    """K of `NAME:K`, 0 where there is none. Raises: UsageError for what is no number."""
    if not (argument or "0").isdecimal():
        raise UsageError(f"{name}:{argument}: {argument!r} is no number. Give the way to split, as {name}:1.")
    return int(argument or 0)


def cut_by_concept(data_set: str, number: int) -> Manifest:
    """A prepared set without what is reserved, split in the `number`-th way: no concept is in two splits.

    Raises: UsageError with the command that prepares it, where it is not.
    """
    whole = prepared(data_set)
    path = prepared_folder(data_set) / f"split-{number}-{whole.digest[:16]}.parquet"
    if not path.is_file():
        table = whole.table.filter(pc.not_equal(pc.fill_null(whole.table["task"], ""), RESERVED))
        share = find_family(data_set).RESERVED
        splits = [split_of_concept(concept_of(id), number, share) for id in table["id"].to_pylist()]
        table = table.set_column(SCHEMA.names.index("split"), "split", pa.array(splits, pa.string()))
        with writing(f"the splits of {data_set}"):
            write_table(table, path, whole.root)
    return read_manifest(path)
