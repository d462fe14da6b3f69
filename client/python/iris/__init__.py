"""Iris for Python: symmetric heaps for jobs of several GPUs, over the library libiris.so, without a compiler.

    import iris

    with iris.Context() as context:          # this process's rank; started by iris-run, torchrun, mpirun, srun
        x = context.ones(1024)               # at the same offset of every rank's heap
        context.all_reduce(x)
        print(context.rank, x.numpy()[0])

`Context` is a rank with all its operations, `Tensor` is memory of the heap, `iris()` gives the host API of the
reference system, and `iris.symm_mem` that of torch.distributed._symmetric_memory. docs/python.md describes them.
"""

from typing import Any, List

from iris import _modules, _platform, moe, norm, ops
from iris._capi import VERSION_MAJOR, VERSION_MINOR
from iris._foreign import MemPool
from iris.bench import do_bench
from iris.collectives import Communicator, Work
from iris.context import Context, current_context, mem_pool
from iris.dtypes import DType
from iris.errors import (AbortedError, AlreadyExistsError, CancelledError, DataLossError, DeadlineExceededError,
                         FailedPreconditionError, InternalError, InvalidArgumentError, IrisError, NotFoundError,
                         OutOfRangeError, PermissionDeniedError, ResourceExhaustedError, StatusCode,
                         UnauthenticatedError, UnavailableError, UnimplementedError, UnknownError)
from iris.factories import Generator
from iris.logging import DEBUG, ERROR, INFO, WARNING, logger, set_logger_level
from iris.reference import Iris, iris
from iris.stream import Event, Graph, Stream
from iris.team import Team
from iris.tensor import Storage, Tensor
from iris.tracing import trace

__version__ = f"{VERSION_MAJOR}.{VERSION_MINOR}.0"
_platform.share_devices()

_modules.register()


def __getattr__(name: str) -> Any:
    return _modules.find("iris", name)


def __dir__() -> List[str]:
    """Returns the names of the API, without the names that this module and its functions import."""
    return sorted({*__all__, *_modules.names("iris"), "__version__"})


__all__ = [
    "AbortedError", "AlreadyExistsError", "CancelledError", "Communicator", "Context", "DEBUG", "DType",
    "DataLossError", "DeadlineExceededError", "ERROR", "Event", "FailedPreconditionError", "Generator", "Graph",
    "INFO", "InternalError", "InvalidArgumentError", "Iris", "IrisError", "MemPool", "NotFoundError", "OutOfRangeError",
    "PermissionDeniedError", "ResourceExhaustedError", "StatusCode", "Storage", "Stream", "Team", "Tensor",
    "UnauthenticatedError", "UnavailableError", "UnimplementedError", "UnknownError", "WARNING", "Work",
    "current_context", "do_bench", "iris", "logger", "mem_pool", "moe", "norm", "ops", "set_logger_level", "trace",
]
