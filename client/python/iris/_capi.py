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

# Counts the forks that lead to this process, to detect objects made before the last fork. It is cheaper than the pid.
generation = 0
FORKED = ("{} was used in a forked child, which has no heap: use the start method 'spawn', and make a context in the "
          "child")


def _forked() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)


def in_python(message: str) -> str:
    """Replaces names of the C API in a text of the library by those of Python: reset() for iris_comm_reset()."""
    return re.sub(r"\biris_(?:comm_)?([a-z_]+)\(\)", r"\1()", message)


@functools.lru_cache(None)
def library() -> Any:
    """Returns the library, opened once. If IRIS_LIBRARY is set, only that file is tried; otherwise a file inside the
    package, as in the wheel, or above it, as in the bundle, and then the loader's own rules. Raises UnavailableError if
    there is no library, and UnimplementedError if it is too old."""
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
    """Calls a function whose last parameter points to an object of a ctypes type, and returns that object."""
    made = kind()
    function(*arguments, ctypes.byref(made))
    return made


def text(value: Optional[str]) -> Optional[bytes]:
    """Returns a string for C; None, an argument that is left out, stays None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"a string is wanted here, and not {type(value).__name__}")
    if "\0" in value:
        raise error_of(3, f"a string for Iris must not have a zero byte in it: {value!r}")
    return value.encode("utf-8")
