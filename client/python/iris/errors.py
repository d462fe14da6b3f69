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
    """The call was given up before it was done."""


class UnknownError(IrisError):
    """A failure of no known kind."""


class InvalidArgumentError(IrisError, ValueError):
    """An argument is wrong, or the ranks asked for different things. Fix the call."""


class DeadlineExceededError(IrisError):
    """Peers did not come in time. The text names them."""


class NotFoundError(IrisError):
    """There is nothing of that name."""


class AlreadyExistsError(IrisError):
    """The name, or the rank, is taken."""


class PermissionDeniedError(IrisError):
    """irisd's policy forbids it."""


class ResourceExhaustedError(IrisError, MemoryError):
    """There is no room: in the heap, on the device, or in a quota. The text says which."""


class FailedPreconditionError(IrisError):
    """It cannot be done now: after the end of something, in a forked child, with another backend's kernels."""


class AbortedError(IrisError):
    """A rank has died or has left. The text says which; the job has to start again."""


class OutOfRangeError(IrisError, IndexError):
    """A number is outside its range."""


class UnimplementedError(IrisError, NotImplementedError):
    """This backend, or this version, cannot do it."""


class InternalError(IrisError):
    """A mistake inside Iris."""


class UnavailableError(IrisError):
    """irisd cannot be reached. The text says where it was looked for and how to start it."""


class DataLossError(IrisError):
    """Data that cannot be got back."""


class UnauthenticatedError(IrisError):
    """irisd does not know who calls."""


CLASS_OF_CODE: Dict[int, Type[IrisError]] = {}
for _kind in IrisError.__subclasses__():  # InvalidArgumentError has the code INVALID_ARGUMENT
    _kind.code = StatusCode[re.sub("(?<=[a-z])(?=[A-Z])", "_", _kind.__name__[:-len("Error")]).upper()]
    CLASS_OF_CODE[int(_kind.code)] = _kind


def error_of(code: int, text: str) -> IrisError:
    """The exception of a code that the library returned."""
    return CLASS_OF_CODE.get(code, UnknownError)(text)
