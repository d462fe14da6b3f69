"""Iris for Python: symmetric heaps for jobs of several GPUs, over the library libiris.so, without a compiler.

    import iris

    with iris.Context() as context:          # this process's rank; started by iris-run, torchrun, mpirun, srun
        x = context.ones(1024)               # at the same offset of every rank's heap
        context.all_reduce(x)
        print(context.rank, x.numpy()[0])

`Context` is a rank with all its operations, `Tensor` is memory of the heap, `iris()` gives the host API of the
reference system, and `iris.symm_mem` that of torch.distributed._symmetric_memory. docs/python.md describes them.
"""

import importlib
from typing import Any, List

from iris import moe, norm, ops
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

# Names for kernels of Triton, and their modules. The first use of one of them imports Triton.
_IN_KERNELS = {
    "DeviceContext": "_device_context",
    **dict.fromkeys(("AllReduceConfig", "TensorView", "Tile", "TileView", "make_tensor_view", "x"), "x"),
    **dict.fromkeys((
        "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_sub", "atomic_xchg",
        "atomic_xor", "copy", "get", "load", "put", "put_signal", "quiet", "signal", "store", "translate",
        "wait_until"),
        "_triton"),
}


def __getattr__(name: str) -> Any:
    if name not in _IN_KERNELS:
        raise AttributeError(f"module 'iris' has no attribute '{name}'")
    try:
        module = importlib.import_module(f"iris.{_IN_KERNELS[name]}")
    except ImportError as error:
        # With an AttributeError, hasattr returns False, as for any missing name.
        raise AttributeError(f"iris.{name} is for kernels of Triton, which cannot be used here ({error}): install the "
                             "package triton") from error
    found = globals()[name] = module if name == "x" else getattr(module, name)
    return found


def __dir__() -> List[str]:
    """Returns the names of the API, without the names that this module and its functions import."""
    return sorted([*__all__, *_IN_KERNELS, "__version__"])


__all__ = [
    "AbortedError", "AlreadyExistsError", "CancelledError", "Communicator", "Context", "DEBUG", "DType",
    "DataLossError", "DeadlineExceededError", "ERROR", "Event", "FailedPreconditionError", "Generator", "Graph",
    "INFO", "InternalError", "InvalidArgumentError", "Iris", "IrisError", "MemPool", "NotFoundError", "OutOfRangeError",
    "PermissionDeniedError", "ResourceExhaustedError", "StatusCode", "Storage", "Stream", "Team", "Tensor",
    "UnauthenticatedError", "UnavailableError", "UnimplementedError", "UnknownError", "WARNING", "Work",
    "current_context", "do_bench", "iris", "logger", "mem_pool", "moe", "norm", "ops", "set_logger_level", "trace",
]
