"""libiris.so as ctypes sees it: the constants, structs and functions of <iris/c_api.h>, and how to open the library.

The declarations are in _header.py, which client/python/bindings.py writes from the header. Functions that return an
iris_code raise the exception of that code, with the library's text; the others return the value of C. The first call
of `library()` opens the library, so the package can be imported without it.

Thread-safe, as the library is. A call lets other Python threads run.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from ctypes import c_int32, c_uint32
from typing import Any, Optional

from iris._header import *  # noqa: F403
from iris._header import CODE, FUNCTIONS, VERSION_MAJOR, VERSION_MINOR
from iris.errors import UnavailableError, UnimplementedError, error_of

VERSION = VERSION_MAJOR * 1000 + VERSION_MINOR

# Counts the forks that lead to this process, to detect objects made before the last one. Cheaper than its pid.
generation = 0
FORKED = ("{} was used in a forked child, which has no heap: use the start method 'spawn', and make a context in the "
          "child")


def _forked() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)


def in_python(message: str) -> str:
    """A text of the library with the calls by their names here: reset() for iris_comm_reset()."""
    return re.sub(r"\biris_(?:comm_)?([a-z_]+)\(\)", r"\1()", message)


@functools.lru_cache(None)
def library() -> Any:
    """The library, opened once: of IRIS_LIBRARY alone if it is set; else inside the package, as in the wheel, or above
    it, as in the bundle; else by the loader's own rules. UnavailableError: it is nowhere. UnimplementedError: it is too
    old."""
    package = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in (os.path.join(package, "_bundle", "lib", "libiris.so"),
                               os.path.join(os.path.dirname(os.path.dirname(package)), "libiris.so"))
             if os.path.exists(path)] + ["libiris.so.0", "libiris.so"]
    named = os.environ.get("IRIS_LIBRARY")
    failures = []
    for path in [named] if named else paths:
        try:
            opened = ctypes.CDLL(path)
            break
        except OSError as error:
            failures.append(str(error))
    else:
        raise UnavailableError("cannot open Iris's library: " + "; ".join(failures) + ". Install the wheel iris-symm, "
                               "or set IRIS_LIBRARY to the file libiris.so of an unpacked bundle")

    def raise_error(code: int, function: Any, arguments: Any) -> int:
        if code:
            said = opened.iris_error_message().decode("utf-8", "replace")
            raise error_of(code, in_python(said))
        return code

    opened.iris_version.restype = c_uint32
    there = opened.iris_version()
    if there // 1000 != VERSION_MAJOR or there < VERSION:
        raise UnimplementedError(
            f"{opened._name} is version {there // 1000}.{there % 1000}, and this package was written for "
            f"{VERSION_MAJOR}.{VERSION_MINOR}: install the wheel and the library from the same bundle")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(opened, name)
        function.argtypes = arguments
        function.restype = c_int32 if result is CODE else result
        if result is CODE:
            function.errcheck = raise_error
    return opened


def out(kind: Any, function: Any, *arguments: Any) -> Any:
    """The object of a ctypes type to which the function's last parameter points."""
    made = kind()
    function(*arguments, ctypes.byref(made))
    return made


def text(value: Optional[str]) -> Optional[bytes]:
    """A string for C; None stays what is left out."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"a string is wanted here, and not {type(value).__name__}")
    if "\0" in value:
        raise error_of(3, f"a string for Iris must not have a zero byte in it: {value!r}")
    return value.encode("utf-8")
