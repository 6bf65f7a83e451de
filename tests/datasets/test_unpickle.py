"""The unpickler: plain data comes back as it was, and nothing else is let in."""

import collections
import os
import pickle
import struct
from fractions import Fraction

import numpy as np
import pytest

from kinoray.datasets.unpickle import MAX_TUPLES, load_plain
from kinoray.errors import UsageError


def dump(tmp_path, value, protocol=4):
    path = tmp_path / "file.pkl"
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_and_arrays_of_numbers_come_back(tmp_path, protocol):
    value = {
        "texts": ["é", b"\xff\x00", ""],
        "numbers": (1, -(10**30), 0.5, True, None),
        "sets": [set(), {1, "a"}, frozenset({2})],
        "array": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big endian": np.arange(3, dtype=">i4"),
        "scalar": np.float32(2.5),
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(list, b=[2]),
    }
    read = load_plain(dump(tmp_path, value, protocol))
    assert read.keys() == value.keys()
    for key in ("array", "fortran", "big endian"):
        assert type(read[key]) is np.ndarray and read[key].dtype == value[key].dtype
        np.testing.assert_array_equal(read[key], value[key])
        assert read[key].flags.writeable
    for key in ("texts", "numbers", "sets", "scalar", "ordered", "default"):
        assert read[key] == value[key]
    assert type(read["default"]) is dict and type(read["ordered"]) is dict


def test_arrays_written_by_python_2_and_an_old_numpy_are_read(tmp_path):
    """A CIFAR batch: protocol 2, byte strings as text, `numpy.core`."""
    file = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
        b"K\x00\x85U\x01b\x87Rq\x05(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06\x00\x01\x02\xfd\xfe\xfftbU\x06labels]"
        b"(K\x07K\x01eu."
    )
    read = load_plain(dump(tmp_path, file))
    assert read["labels"] == [7, 1]
    assert read["data"].dtype == np.uint8 and read["data"].tolist() == [[0, 1, 2], [253, 254, 255]]


def test_what_is_shared_stays_shared(tmp_path):
    inner = [1]
    read = load_plain(dump(tmp_path, [inner, inner]))
    assert read[0] is read[1]


class Runs:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, os.mkdir, eval, exec, open, getattr, __import__, Fraction])
def test_a_pickle_that_would_run_code_is_refused_and_did_not_run(tmp_path, function):
    made = tmp_path / "made"
    argument = {os.system: f"touch {made}", eval: f"open({str(made)!r}, 'w')", exec: f"open({str(made)!r}, 'w')"}
    path = dump(tmp_path, {"ok": 1, "bad": Runs(function, argument.get(function, str(made)))})
    with pytest.raises(UsageError, match="nothing in it was run") as caught:
        load_plain(path)
    assert function.__name__ in str(caught.value) and "\n" not in str(caught.value)
    assert not made.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array([{"a": 1}], dtype=object),
        np.zeros(2, dtype=[("a", "i4")]),
        np.array(["text"]),
        collections.Counter(a=1),
        Fraction(1, 2),
        len,
    ],
    ids=["object array", "structured array", "text array", "Counter", "Fraction", "function"],
)
def test_what_is_not_plain_is_refused(tmp_path, value):
    with pytest.raises(UsageError, match="plain data only"):
        load_plain(dump(tmp_path, [value]))


STAND_INS = {
    # Opcodes that would change what an allowed name means for the next file.
    "set an attribute": b"ccollections\ndefaultdict\n(N}(X\x01\x00\x00\x00mK\x01utb.",
    "set a state": b"cnumpy\ndtype\n}(X\x04\x00\x00\x00makeK\x01ub.",
    "attributes of a dictionary": b"ccollections\nOrderedDict\n)R}(X\x01\x00\x00\x00aK\x01ub.",
    "a name as value": b"]cnumpy\nndarray\na.",
    "an array longer than its bytes": b"cnumpy._core.numeric\n_frombuffer\n(C\x02abcnumpy\ndtype\n"
    b"(X\x02\x00\x00\x00u1tRK\x63\x85X\x01\x00\x00\x00CtR.",
    "persistent id": b"Pfile\n.",
    "extension": b"\x82\x01.",
}


@pytest.mark.parametrize("attack", STAND_INS)
def test_allowed_names_can_be_neither_changed_nor_kept(tmp_path, attack):
    with pytest.raises(UsageError):
        load_plain(dump(tmp_path, STAND_INS[attack]))
    assert load_plain(dump(tmp_path, {"a": np.arange(2)}))["a"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"not a pickle",
        pickle.dumps(list(range(99)))[:-5],
        b"\x80\x04N" + b"r" + struct.pack("<I", 2**31 - 1) + b".",  # a memo of 17 GB
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",  # a byte array of 1 TB
        b")" + b"\x85" * (MAX_TUPLES + 1) + b".",  # tuples whose hash would overflow the stack
        b"]" * 5000 + b"a" * 4999 + b".",  # lists nested deeper than Python can walk
        b"]\x94h\x00a.",  # a list in itself
    ],
    ids=["empty", "text", "cut", "memo", "byte array", "tuples", "deep", "loop"],
)
def test_a_damaged_or_greedy_file_is_one_line(tmp_path, file):
    with pytest.raises(UsageError) as caught:
        load_plain(dump(tmp_path, file))
    assert "\n" not in str(caught.value) and "file.pkl" in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="no file"):
        load_plain(tmp_path / "none.pkl")


def test_every_cut_and_many_changed_bytes_end_in_a_value_or_one_line(tmp_path):
    whole = pickle.dumps({"a": np.arange(6).reshape(2, 3), "b": collections.OrderedDict(c={1, 2}), "d": "text"})
    rng = np.random.default_rng(0)
    changed = [whole[:n] for n in range(0, len(whole), 3)]
    for _ in range(300):
        data = bytearray(whole)
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
        changed.append(bytes(data))
    for data in changed:
        try:
            load_plain(dump(tmp_path, data))
        except UsageError as error:
            assert "\n" not in str(error)
