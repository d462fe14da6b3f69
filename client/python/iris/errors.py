"""Exceptions: one class for each code of the C API, all of them IrisError.

The library's text, with the calls by their names in Python, says what failed, on what, and what to do.
"""

from __future__ import annotations

import re
from typing import Dict, Type

from iris._header import StatusCode as StatusCode


class IrisError(RuntimeError):
    """A call of Iris failed. `code` is a StatusCode; str() is the text."""

    code: StatusCode = StatusCode.UNKNOWN

    @property
    def text(self) -> str:
        """The message, without the name of the code."""
        return str(self)


class CancelledError(IrisError):
    """The call was cancelled before it was done."""


class UnknownError(IrisError):
    """A failure of no known kind."""


class InvalidArgumentError(IrisError, ValueError):
    """An argument is wrong, or the ranks asked for different things. Fix the call."""


class DeadlineExceededError(IrisError):
    """Ranks did not arrive in time. The text names them."""


class NotFoundError(IrisError):
    """There is nothing of that name."""


class AlreadyExistsError(IrisError):
    """The name, or the rank, is taken."""


class PermissionDeniedError(IrisError):
    """irisd's policy forbids the call."""


class ResourceExhaustedError(IrisError, MemoryError):
    """There is no room: in the heap, on the device, or in a quota. The text says which."""


class FailedPreconditionError(IrisError):
    """The call is not possible now: after the end of an object, in a forked child, with another backend's kernels."""


class AbortedError(IrisError):
    """A rank has died or has left. The text names the rank; the job has to start again."""


class OutOfRangeError(IrisError, IndexError):
    """A number is outside its range."""


class UnimplementedError(IrisError, NotImplementedError):
    """This backend, or this version, does not support the call."""


class InternalError(IrisError):
    """A mistake inside Iris."""


class UnavailableError(IrisError):
    """irisd cannot be reached. The text gives the path that was tried and says how to start irisd."""


class DataLossError(IrisError):
    """Data is lost."""


class UnauthenticatedError(IrisError):
    """irisd cannot identify the caller."""


CLASS_OF_CODE: Dict[int, Type[IrisError]] = {}
for _kind in IrisError.__subclasses__():  # InvalidArgumentError has the code INVALID_ARGUMENT
    _kind.code = StatusCode[re.sub("(?<=[a-z])(?=[A-Z])", "_", _kind.__name__[:-len("Error")]).upper()]
    CLASS_OF_CODE[int(_kind.code)] = _kind


def error_of(code: int, text: str) -> IrisError:
    """Returns the exception for a code that the library returned."""
    return CLASS_OF_CODE.get(code, UnknownError)(text)
