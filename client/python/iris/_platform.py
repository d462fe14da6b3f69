"""Helpers of the reference system around a GPU: its modules iris.hip and iris.host.platform. Vendors' names for the
platform are in this file and in _foreign.py alone.

A device is one of torch's, or emulated: then numbers come from the host. Functions take the number of a device in this
process; None is the current one. Thread-safe.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from iris import _foreign
from iris.context import current_context
from iris.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from iris.context import Context

_TICKS_PER_MS_ON_HOST = 1_000_000  # of time.monotonic_ns
_NUMBER_OF_DIES, _WALL_CLOCK_RATE = 10018, 10017  # attributes of a HIP device
_DIES = {"gfx942": 8, "gfx950": 8}  # where ROCm is older than 7 and has no such attribute


def _gpu() -> Optional[Any]:
    """Returns torch if this process uses a GPU by it, or None if devices are emulated."""
    context = current_context()
    torch = _foreign.importable_torch()
    if context is not None and context.on_host or context is None and torch is None:
        return None
    if torch is None or not torch.cuda.is_available():
        if context is None:
            return None
        raise FailedPreconditionError("this is asked of torch, which is not there or sees no GPU: install a torch for "
                                      "this machine's GPUs")
    return torch


def _is_amd(torch: Any) -> bool:
    return getattr(torch.version, "hip", None) is not None


def _library(torch: Any) -> Any:
    return ctypes.CDLL("libamdhip64.so" if _is_amd(torch) else "libcuda.so.1")


def gpu_try(err: int) -> None:
    """Raises RuntimeError if `err`, a result of a function of the GPU's platform, is not 0."""
    if err:
        torch = _gpu()
        text = ctypes.c_char_p(b"no GPU is in use")
        if torch is not None and _is_amd(torch):
            _library(torch).hipGetErrorString.restype = ctypes.c_char_p
            text = ctypes.c_char_p(_library(torch).hipGetErrorString(err))
        elif torch is not None:
            _library(torch).cuGetErrorString(err, ctypes.byref(text))
        raise RuntimeError(f"error {err} of the GPU's platform: {(text.value or b'unknown').decode()}")


def count_devices() -> int:
    """Returns how many devices this process sees; 1 if they are emulated."""
    torch = _gpu()
    return 1 if torch is None else torch.cuda.device_count()


def set_device(gpu_id: int) -> None:
    """Makes a device the current one of this thread. Without effect if devices are emulated."""
    torch = _gpu()
    if torch is not None:
        torch.cuda.set_device(gpu_id)


def get_device_id() -> int:
    """Returns the number of the current device."""
    torch, context = _gpu(), current_context()
    if torch is not None:
        return int(torch.cuda.current_device())
    return 0 if context is None else context.device_index


def _properties(torch: Any, device_id: Optional[int]) -> Any:
    return torch.cuda.get_device_properties(get_device_id() if device_id is None else device_id)


def get_cu_count(device_id: Optional[int] = None) -> int:
    """Counts a device's compute units, or the CPUs that this process may use."""
    torch = _gpu()
    return len(os.sched_getaffinity(0)) if torch is None else int(_properties(torch, device_id).multi_processor_count)


def get_rocm_version() -> Tuple[int, int]:
    """Returns the first two numbers of ROCm's version, of which torch is made; (-1, -1) on other platforms."""
    torch = _gpu()
    if torch is None or not _is_amd(torch):
        return -1, -1
    major, minor = torch.version.hip.split(".")[:2]
    return int(major), int(minor)


def _attribute(torch: Any, number: int, device_id: Optional[int]) -> int:
    value = ctypes.c_int()
    gpu_try(_library(torch).hipDeviceGetAttribute(ctypes.byref(value), number,
                                                  get_device_id() if device_id is None else device_id))
    return value.value


def get_wall_clock_rate(device_id: Optional[int] = None) -> int:
    """Returns the rate of the clock that read_realtime() reads in kernels, in kHz."""
    torch = _gpu()
    if torch is None or not _is_amd(torch):
        return _TICKS_PER_MS_ON_HOST  # NVIDIA's globaltimer counts nanoseconds, too
    return _attribute(torch, _WALL_CLOCK_RATE, device_id)


def get_arch_string(device_id: Optional[int] = None) -> str:
    """Returns the name of a device's architecture: "sm_90", "gfx942", or "emu"."""
    torch = _gpu()
    if torch is None:
        return "emu"
    properties = _properties(torch, device_id)
    if _is_amd(torch):
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def get_num_xcc(device_id: Optional[int] = None) -> int:
    """Returns the number of a device's dies that have compute units. It is 1 except on some GPUs of AMD."""
    torch = _gpu()
    if torch is None or not _is_amd(torch):
        return 1
    if get_rocm_version()[0] < 7:
        return _DIES.get(get_arch_string(device_id), 1)
    return _attribute(torch, _NUMBER_OF_DIES, device_id)


def hip_malloc(size: int) -> ctypes.c_void_p:
    """Allocates memory of the current device for this process alone, outside the symmetric heap."""
    torch = _gpu()
    if torch is not None:
        return ctypes.c_void_p(torch.cuda.caching_allocator_alloc(size))
    allocate = ctypes.CDLL(None).malloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    return ctypes.c_void_p(allocate(size))


def malloc_fine_grained(size: int) -> ctypes.c_void_p:
    """Works as hip_malloc(), which is coherent enough on NVIDIA's GPUs. Raises NotImplementedError on AMD's, where only
    the symmetric heap is fine-grained: allocate there."""
    torch = _gpu()
    if torch is not None and _is_amd(torch):
        raise NotImplementedError("memory that other devices may access while a kernel runs is the symmetric heap's: "
                                  "use its zeros() or empty()")
    return hip_malloc(size)


def hip_free(ptr: Any) -> None:
    """Frees memory of hip_malloc()."""
    torch, address = _gpu(), _address(ptr)
    if torch is not None:
        torch.cuda.caching_allocator_delete(address)
    else:
        ctypes.CDLL(None).free(ctypes.c_void_p(address))


def _address(ptr: Any) -> int:
    value = ptr if isinstance(ptr, int) else ptr.value
    if not value:
        raise InvalidArgumentError(f"{ptr!r} is no address: give a tensor's data_ptr()")
    return int(value)


def get_address_range(ptr: Any) -> Tuple[int, int]:
    """Returns the first address and the size of the allocation with the address `ptr`; on the host, of its mapping.
    Raises RuntimeError if the GPU has no memory there."""
    torch, address = _gpu(), _address(ptr)
    if torch is None:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
            for line in maps:
                begin, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
                if begin <= address < end:
                    return begin, end - begin
        raise NotFoundError(f"nothing is mapped at {address:#x}")
    library, base, size = _library(torch), ctypes.c_void_p(), ctypes.c_size_t()
    find = library.hipMemGetAddressRange if _is_amd(torch) else library.cuMemGetAddressRange_v2
    gpu_try(find(ctypes.byref(base), ctypes.byref(size), ctypes.c_void_p(address)))
    return base.value or 0, size.value


def describe(context: "Context") -> Dict[str, Any]:
    """Returns a description of this process and its device for the metadata of a trace."""
    torch = _gpu()
    index = context.device_index
    properties = None if torch is None else _properties(torch, index)
    return {
        "process_name": os.path.basename(sys.argv[0]),
        "command_line": " ".join(sys.argv),
        "hostname": os.uname().nodename,
        "gpu_device_name": "emulated device" if properties is None else properties.name,
        "gpu_total_memory_gb": f"{0 if properties is None else properties.total_memory / 2**30:.2f}",
        "gpu_arch": get_arch_string(index),
        "gpu_cu_count": get_cu_count(index),
        "gpu_num_xcc": get_num_xcc(index),
        "rocm_version": get_rocm_version(),
    }


# The instructions behind the functions of _instruments.py: their assembly, and the constraint of the result.
_CUDA = {
    "read_realtime": ("mov.u64 $0, %globaltimer;", "=l,~{memory}"),
    "get_cu_id": ("mov.u32 $0, %smid;", "=r,~{memory}"),
    "wait_cnt": ("fence.acq_rel.sys;\nmov.u32 $0, 0;", "=r,~{memory}"),
}
_HIP = {
    "read_realtime": ("s_memrealtime $0\ns_waitcnt lgkmcnt(0)", "=s,~{memory}"),
    "get_cu_id": ("s_getreg_b32 $0, hwreg(HW_REG_HW_ID, 8, 4)", "=s,~{memory}"),
    "get_se_id": ("s_getreg_b32 $0, hwreg(HW_REG_HW_ID, 13, 3)", "=s,~{memory}"),
    "wait_cnt": ("s_waitcnt vmcnt(0)\ns_mov_b32 $0, 0", "=s,~{memory}"),
}
_HIP_OF_SEVERAL_DIES = {**_HIP, "get_xcc_id": ("s_getreg_b32 $0, hwreg(HW_REG_XCC_ID, 0, 16)", "=s,~{memory}")}
_HIP_OF_WORKSTATIONS = {"read_realtime": ("s_sendmsg_rtn_b64 $0, sendmsg(MSG_RTN_GET_REALTIME)\ns_waitcnt lgkmcnt(0)",
                                          "=s,~{memory}")}


def instruction(name: str, backend: str, arch: str) -> Tuple[str, str]:
    """Returns the assembly of one of Triton's backends and its constraint, or two empty texts if the GPU has none."""
    table = _CUDA
    if backend == "hip":
        table = (_HIP_OF_SEVERAL_DIES if arch in _DIES else
                 _HIP_OF_WORKSTATIONS if arch.startswith(("gfx11", "gfx12")) else _HIP)
    return table.get(name, ("", ""))


# The reference's module iris.host.platform.utils.


def is_simulation_env() -> bool:
    """Returns True if IRIS_SIMULATION is 1, true or yes: then ranks share the devices that there are, and each writes
    the addresses of its heaps into a file."""
    return os.environ.get("IRIS_SIMULATION", "").strip().lower() in ("1", "true", "yes")


def get_simulation_device_id(local_rank: int) -> int:
    """Returns the number of the device that a rank of this node shares with others."""
    return local_rank % max(count_devices(), 1)


def get_device_id_for_rank(local_rank: int) -> int:
    """Returns the number of the device of a rank of this node, which is the rank's own except in a simulation."""
    return get_simulation_device_id(local_rank) if is_simulation_env() else local_rank


def share_devices() -> None:
    """In a simulation, makes torch.cuda.set_device take the numbers of devices that do not exist as those of others."""
    torch: Any = _foreign.importable_torch() if is_simulation_env() else None
    if torch is None:
        return
    real = torch.cuda.set_device

    def wrapped(device: Any) -> None:
        """Calls torch's function with a number modulo the number of devices."""
        n_devices = torch.cuda.device_count()
        real(device % n_devices if isinstance(device, int) and n_devices else device)

    torch.cuda.set_device = wrapped


def write_heap_bases(context: "Context") -> None:
    """In a simulation, writes the addresses of the heaps to PREFIX_rank_R_heap_bases.json, where PREFIX is
    IRIS_HEAP_BASES_PREFIX or "iris"."""
    if is_simulation_env():
        prefix = os.environ.get("IRIS_HEAP_BASES_PREFIX", "iris")
        with open(f"{prefix}_rank_{context.rank}_heap_bases.json", "w", encoding="ascii") as file:
            json.dump({"rank": context.rank, "num_ranks": context.n_ranks,
                       "heap_bases": [hex(base) for base in context.heap_bases]}, file, indent=2)


def get_empty_cache_for_benchmark() -> Any:
    """Returns a tensor of torch that is larger than the device's caches, for clear_cache()."""
    from iris.bench import FLUSHED_BYTES, FLUSHED_BYTES_ON_HOST
    torch, words = _gpu(), _foreign.importable_torch()
    if words is None:
        raise FailedPreconditionError("torch is not installed: iris.do_bench() empties the caches without it")
    return words.empty((FLUSHED_BYTES_ON_HOST if torch is None else FLUSHED_BYTES) // 4, dtype=words.int32,
                       device="cpu" if torch is None else "cuda")


def clear_cache(cache: Any) -> None:
    """Empties the caches of the device of get_empty_cache_for_benchmark()."""
    cache.zero_()


class _TimeOnHost:
    """An event of torch that takes times, for emulated devices, whose kernels run in the call."""

    def record(self, stream: Any = None) -> None:
        """Takes the time."""
        del stream
        self._seconds = time.perf_counter()

    def elapsed_time(self, later: "_TimeOnHost") -> float:
        """Returns the milliseconds from this event to another."""
        return (later._seconds - self._seconds) * 1e3

    def query(self) -> bool:
        """Returns True: the work before the event is done."""
        return True

    synchronize = wait = query


def create_timing_event() -> Any:
    """Returns an event that takes times, with the methods of torch.cuda.Event."""
    torch = _gpu()
    return _TimeOnHost() if torch is None else torch.cuda.Event(enable_timing=True)
