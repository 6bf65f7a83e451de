"""Read a stranger's pickle without letting it run anything: plain values and arrays of numbers, nothing else.

A pickle is a program; what reaches code in it are the names it looks up. `find_class` answers those of a short list,
and the first other name ends the reading before anything was called. What comes out holds dict, list, tuple, set,
frozenset, str, bytes, int, float, bool, None and `numpy.ndarray` of numbers only.
"""

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.errors import UsageError

MAX_BYTES = 2**30
"""Larger files are refused; the largest published one (CIFAR-100) has 155 MB."""
MAX_TUPLES = 10_000
"""More are refused: hashing very deeply nested tuples overflows the stack."""
NUMBERS = frozenset("biufc")
"""Kinds of array elements that are numbers."""
PLAIN = (str, bytes, int, float, bool, type(None))


class _Refused(Exception):
    """Something in a pickle that is not plain data."""


class _DType:
    """The type of an array's elements. NumPy's own takes a state that may say anything of memory."""

    def __init__(self, text: Any, *ignored: Any) -> None:
        self.value = np.dtype(str(text))
        if self.value.kind not in NUMBERS:
            raise _Refused(f"arrays of {text!s:.40}")

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            self.value = self.value.newbyteorder(state[1])


class _Array:
    """An array, first empty, then given its state. NumPy's own would also take objects."""

    def __init__(self, *ignored: Any) -> None:
        self.value = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.value = _from_bytes(data, dtype, shape, "F" if is_fortran else "C")


def _from_bytes(data: Any, dtype: _DType, shape: Any, order: Any) -> np.ndarray:
    if isinstance(data, str):  # Python 2 wrote bytes as text
        data = data.encode("latin1")
    return np.frombuffer(data, dtype.value).reshape(tuple(shape), order=order).copy(order=order)


def _from_buffer(*arguments: Any) -> _Array:
    array = _Array()
    array.value = _from_bytes(*arguments)
    return array


def _scalar(dtype: _DType, data: Any) -> Any:
    return _from_bytes(data, dtype, (), "C").item()


def _encode(text: str, encoding: str) -> bytes:
    """How old protocols write bytes: `_codecs.encode(text, "latin1")`."""
    if encoding != "latin1":
        raise _Refused(f"text in the encoding {encoding!s:.40}")
    return text.encode("latin1")


BUILT_IN = (list, dict, tuple, set, frozenset, str, int, float, bool)
ALLOWED: dict[str, Callable[..., Any]] = {
    "collections.defaultdict": lambda *ignored: {},
    "collections.OrderedDict": dict,
    "_codecs.encode": _encode,
    "numpy.dtype": _DType,
    "numpy.ndarray": _Array,
    **{f"{module}.{t.__name__}": t for module in ("builtins", "__builtin__") for t in BUILT_IN},
    **{f"numpy.{core}.multiarray._reconstruct": _Array for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _from_buffer for core in ("core", "_core")},
}
"""Every name that a pickle may use, as Python 2 and 3 and NumPy before and since 2.0 write them."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        make = ALLOWED.get(f"{module}.{name}")
        if make is None:
            raise _Refused(f"the name {f'{module}.{name}':.80}")
        # A new function each time: a pickle can set attributes of what it is given, and must change nothing that stays.
        return lambda *arguments: make(*arguments)

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a reference to something outside the file")


def load_plain(path: Path | str, encoding: str = "latin1") -> Any:
    """The plain data of a pickle file.

    `encoding` is that of texts written by Python 2; with "latin1" its bytes also survive in arrays.
    Raises: UsageError naming the first thing that is not plain data; nothing of the file was run. UsageError too where
    the file is missing, larger than `MAX_BYTES` or damaged.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _Refused(f"{path.stat().st_size} bytes; the limit is {MAX_BYTES}")
        data = path.read_bytes()
        _check_size(data)
        return _plain(_PlainUnpickler(io.BytesIO(data), encoding=encoding).load(), {})
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None
    except _Refused as error:
        raise UsageError(
            f"{path} is refused, and nothing in it was run: a pickle may hold plain data only, but this one has "
            f"{' '.join(str(error).split())}. Get the file from its publisher again."
        ) from None
    except Exception as error:  # a damaged pickle can end in nearly any error
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{path} is not a readable pickle ({message:.120}). Get the file again.") from None


def _check_size(data: bytes) -> None:
    """Refuse programs that would need far more memory or stack than their bytes."""
    tuples = 0
    file, more = io.BytesIO(data), True
    while more:
        try:
            for opcode, argument, _ in pickletools.genops(file):
                tuples += "TUPLE" in opcode.name or opcode.name == "FROZENSET"
                if "PUT" in opcode.name and int(argument or 0) > len(data):
                    raise _Refused("a memo far larger than the file")
                if tuples > MAX_TUPLES:
                    raise _Refused(f"more than {MAX_TUPLES} tuples")
            more = False
        except UnicodeDecodeError:  # bytes of Python 2, which `genops` takes for ASCII; it goes on behind them
            continue


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """The value with arrays for stand-ins; what is shared stays shared."""
    if type(value) in PLAIN:
        return value
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, dict):
        made: Any = {_plain(key, seen): _plain(item, seen) for key, item in value.items()}
    elif type(value) in (list, tuple, set, frozenset):
        made = type(value)(_plain(item, seen) for item in value)
    elif type(value) is _Array:
        made = value.value
    else:
        raise _Refused("an object that is not a plain value")
    seen[id(value)] = made
    return made
