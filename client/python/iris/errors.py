"""What calls of Iris raise: one class for each code of the C API, all of them IrisError.

The text is the library's own, with the calls by their names in Python: what failed, on what, and what to do.
"""

from __future__ import annotations

import enum
from typing import Dict, Type


class StatusCode(enum.IntEnum):
    """Kinds of errors, by the numbers of the C API, which are those of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class IrisError(RuntimeError):
    """A call of Iris failed. `code` is a StatusCode; str() is the text."""

    code: StatusCode = StatusCode.UNKNOWN

    @property
    def text(self) -> str:
        """The message, without the name of the code."""
        return str(self)


class CancelledError(IrisError):
    """The call was given up before it was done."""

    code = StatusCode.CANCELLED


class UnknownError(IrisError):
    """A failure of no known kind."""

    code = StatusCode.UNKNOWN


class InvalidArgumentError(IrisError, ValueError):
    """An argument is wrong, or the ranks asked for different things. Fix the call."""

    code = StatusCode.INVALID_ARGUMENT


class DeadlineExceededError(IrisError):
    """Peers did not come in time. The text names them."""

    code = StatusCode.DEADLINE_EXCEEDED


class NotFoundError(IrisError):
    """There is nothing of that name."""

    code = StatusCode.NOT_FOUND


class AlreadyExistsError(IrisError):
    """The name, or the rank, is taken."""

    code = StatusCode.ALREADY_EXISTS


class PermissionDeniedError(IrisError):
    """irisd's policy forbids it."""

    code = StatusCode.PERMISSION_DENIED


class ResourceExhaustedError(IrisError, MemoryError):
    """There is no room: in the heap, on the device, or in a quota. The text says which."""

    code = StatusCode.RESOURCE_EXHAUSTED


class FailedPreconditionError(IrisError):
    """It cannot be done now: after the end of something, in a forked child, with another backend's kernels."""

    code = StatusCode.FAILED_PRECONDITION


class AbortedError(IrisError):
    """A rank has died or has left. The text says which; the job has to start again."""

    code = StatusCode.ABORTED


class OutOfRangeError(IrisError, IndexError):
    """A number is outside its range."""

    code = StatusCode.OUT_OF_RANGE


class UnimplementedError(IrisError, NotImplementedError):
    """This backend, or this version, cannot do it."""

    code = StatusCode.UNIMPLEMENTED


class InternalError(IrisError):
    """A mistake inside Iris."""

    code = StatusCode.INTERNAL


class UnavailableError(IrisError):
    """irisd cannot be reached. The text says where it was looked for and how to start it."""

    code = StatusCode.UNAVAILABLE


class DataLossError(IrisError):
    """Data that cannot be got back."""

    code = StatusCode.DATA_LOSS


class UnauthenticatedError(IrisError):
    """irisd does not know who calls."""

    code = StatusCode.UNAUTHENTICATED


CLASS_OF_CODE: Dict[int, Type[IrisError]] = {
    int(kind.code): kind
    for kind in (CancelledError, UnknownError, InvalidArgumentError, DeadlineExceededError, NotFoundError,
                 AlreadyExistsError, PermissionDeniedError, ResourceExhaustedError, FailedPreconditionError,
                 AbortedError, OutOfRangeError, UnimplementedError, InternalError, UnavailableError, DataLossError,
                 UnauthenticatedError)
}


def error_of(code: int, text: str) -> IrisError:
    """The exception of a code that the library returned."""
    return CLASS_OF_CODE.get(code, UnknownError)(text)
