"""libiris.so as ctypes sees it: every constant, struct and function of <iris/c_api.h>, and nothing else.

A test compares this file with the header, field by field. Functions that return an iris_code raise the exception of
that code, with the library's text; the others return what C returns. The library is opened by the first call of
`library()`, so that the package can be imported where there is none.

Thread-safe, as the library is. A call lets other Python threads run.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from ctypes import (POINTER, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64,
                    c_void_p)
from typing import Any, Dict, List, Optional, Tuple

from iris.errors import UnavailableError, UnimplementedError, error_of

VERSION_MAJOR = 0
VERSION_MINOR = 2
VERSION = VERSION_MAJOR * 1000 + VERSION_MINOR
DEVICE_ABI = 1

# Enumerators that are not in errors.StatusCode, by their names in the header.
CONSTANTS: Dict[str, int] = {
    "IRIS_DTYPE_NONE": 0, "IRIS_F32": 1, "IRIS_F64": 2, "IRIS_F16": 3, "IRIS_BF16": 4, "IRIS_I32": 5, "IRIS_I64": 6,
    "IRIS_U8": 7, "IRIS_I8": 8, "IRIS_I16": 9, "IRIS_U16": 10, "IRIS_U32": 11, "IRIS_U64": 12, "IRIS_BOOL": 13,
    "IRIS_F8E4M3": 14, "IRIS_F8E5M2": 15,
    "IRIS_SUM": 0, "IRIS_PROD": 1, "IRIS_MIN": 2, "IRIS_MAX": 3, "IRIS_AVG": 4,
    "IRIS_SIGNAL_SET": 0, "IRIS_SIGNAL_ADD": 1,
    "IRIS_MATMUL_ALL_REDUCE": 12, "IRIS_MATMUL_REDUCE_SCATTER": 13, "IRIS_ALL_GATHER_MATMUL": 14,
    "IRIS_MATMUL_ALL_GATHER": 15, "IRIS_MATMUL_ALL_SCATTER": 16,
    "IRIS_ALL_REDUCE_RMS_NORM": 17, "IRIS_REDUCE_SCATTER_RMS_NORM_ALL_GATHER": 18,
    "IRIS_NO_SCALING": 0, "IRIS_SCALING_STATIC": 1, "IRIS_SCALING_PER_ROW": 2, "IRIS_SCALING_PER_GROUP": 3,
    "IRIS_VARIANT_AUTO": 0, "IRIS_VARIANT_PACKETS": 1, "IRIS_VARIANT_DIRECT": 2, "IRIS_VARIANT_TWO_SHOT": 3,
    "IRIS_VARIANT_TWO_PACKETS": 5, "IRIS_VARIANT_TWO_PHASE": 6,
    "IRIS_VARIANT_COPY_ENGINE": 7, "IRIS_VARIANT_RING": 8, "IRIS_VARIANT_ATOMIC": 9, "IRIS_VARIANT_SPINLOCK": 10,
    "IRIS_VARIANT_LINES": 11, "IRIS_VARIANT_TWO_LINES": 12, "IRIS_VARIANT_PUSH": 13,
    "IRIS_MATMUL_AUTO": 0, "IRIS_MATMUL_FUSED": 1, "IRIS_MATMUL_PAIR": 2, "IRIS_MATMUL_PERSISTENT": 3,
    "IRIS_MATMUL_COPY_ENGINE": 4,
    "IRIS_NORM_AUTO": 0, "IRIS_NORM_PACKETS": 1, "IRIS_NORM_LINES": 2, "IRIS_NORM_TWO_SHOT": 3, "IRIS_NORM_ALONE": 4,
    "IRIS_NORM_TWO_LINES": 5,
    "IRIS_NO_ACTIVATION": 0, "IRIS_RELU": 1, "IRIS_GELU": 2, "IRIS_SILU": 3,
    "IRIS_FILL_VALUE": 0, "IRIS_FILL_ARANGE": 1, "IRIS_FILL_LINSPACE": 2, "IRIS_FILL_RAND": 3, "IRIS_FILL_UNIFORM": 4,
    "IRIS_FILL_RANDN": 5, "IRIS_FILL_RANDINT": 6,
}


class Sized(ctypes.Structure):
    """A struct that begins with its size, as this file knows it."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class iris_launcher(Sized):
    _fields_ = [("size", c_size_t), ("rank", c_int32), ("n_ranks", c_int32), ("local_rank", c_int32),
                ("reserved", c_int32), ("name", c_char * 32), ("job", c_char * 160)]


class iris_context_options(Sized):
    _fields_ = [("size", c_size_t), ("header_version", c_uint32), ("device_abi", c_uint32), ("kernels", c_char_p),
                ("job", c_char_p), ("rank", c_int32), ("n_ranks", c_int32), ("local_rank", c_int32),
                ("prealloc", c_int32), ("heap_bytes", c_uint64), ("max_heap_bytes", c_uint64),
                ("device_uuid", c_char_p), ("runtime_dir", c_char_p), ("join_timeout_ns", c_int64),
                ("timeout_ns", c_int64), ("connect_timeout_ns", c_int64)]


class iris_context_info(Sized):
    _fields_ = [("size", c_size_t), ("rank", c_uint32), ("n_ranks", c_uint32), ("job_id", c_uint64),
                ("epoch", c_uint64), ("device_index", c_uint32), ("ranks_per_device", c_uint32),
                ("heap_bytes", c_uint64), ("stride_bytes", c_uint64), ("base", c_uint64), ("same_address", c_int32),
                ("reserved", c_uint32), ("job", c_char_p), ("device_uuid", c_char_p), ("backend", c_char_p)]


class iris_create_timings(Sized):
    _fields_ = [("size", c_size_t), ("connect_ns", c_int64), ("device_ns", c_int64), ("join_ns", c_int64),
                ("create_ns", c_int64), ("export_ns", c_int64), ("map_ns", c_int64), ("import_ns", c_int64),
                ("map_memory_ns", c_int64), ("set_access_ns", c_int64), ("commit_ns", c_int64)]


class iris_team_info(Sized):
    _fields_ = [("size", c_size_t), ("id", c_uint32), ("index", c_int32), ("n_ranks", c_uint32),
                ("reserved", c_uint32), ("ranks", POINTER(c_uint32))]


class iris_allocate_options(Sized):
    _fields_ = [("size", c_size_t), ("bytes", c_uint64), ("alignment_bytes", c_uint64), ("name", c_char_p),
                ("dtype", c_int32), ("n_dims", c_uint32), ("shape", POINTER(c_uint64))]


class iris_allocation(Sized):
    _fields_ = [("size", c_size_t), ("offset_bytes", c_uint64), ("bytes", c_uint64), ("address", c_void_p),
                ("team_id", c_uint32), ("reserved", c_uint32)]


class iris_opened(Sized):
    _fields_ = [("size", c_size_t), ("offset_bytes", c_uint64), ("bytes", c_uint64), ("address", c_void_p),
                ("symmetric", c_void_p), ("rank", c_uint32), ("dtype", c_int32)]


class iris_rows(Sized):
    _fields_ = [("size", c_size_t), ("rows", c_uint64), ("row_bytes", c_uint64), ("dst_pitch_bytes", c_uint64),
                ("src_pitch_bytes", c_uint64)]


class iris_signal(Sized):
    _fields_ = [("size", c_size_t), ("word", POINTER(c_uint64)), ("value", c_uint64), ("op", c_int32),
                ("reserved", c_uint32)]


class iris_comm_options(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("blocks", c_uint32), ("block_threads", c_uint32),
                ("max_blocks", c_uint32), ("packet_blocks", c_uint32), ("packet_bytes", c_uint64),
                ("stage_bytes", c_uint64), ("timeout_ns", c_int64), ("check_calls", c_int32), ("symmetric", c_int32),
                ("rules", c_char_p), ("matmul_bytes", c_uint64)]


class iris_matmul(Sized):
    _fields_ = [("size", c_size_t), ("operation", c_int32), ("variant", c_int32), ("m", c_uint64), ("n", c_uint64),
                ("k", c_uint64), ("in_dtype", c_int32), ("out_dtype", c_int32), ("bias_dtype", c_int32),
                ("transposed_b", c_int32), ("activation", c_int32), ("reserved", c_int32), ("a", c_void_p),
                ("lda", c_uint64), ("b", c_void_p), ("ldb", c_uint64), ("bias", c_void_p), ("d", c_void_p),
                ("ldd", c_uint64)]


class iris_matmul_plan(Sized):
    _fields_ = [("size", c_size_t), ("variant", c_int32), ("blocks", c_uint32), ("threads", c_uint32),
                ("tile_rows", c_uint32), ("tile_columns", c_uint32), ("reserved", c_uint32),
                ("matmul_bytes", c_uint64), ("multiplier", c_char * 32)]


class iris_moe_config(Sized):
    _fields_ = [("size", c_size_t), ("n_experts", c_uint32), ("top_k", c_uint32), ("hidden", c_uint32),
                ("max_tokens", c_uint32), ("capacity", c_uint32), ("in_dtype", c_int32), ("row_dtype", c_int32),
                ("partial_dtype", c_int32)]


class iris_moe_sizes(Sized):
    _fields_ = [("size", c_size_t), ("workspace_bytes", c_uint64), ("max_rows", c_uint64), ("first_expert", c_uint32),
                ("local_experts", c_uint32), ("scale_columns", c_uint64), ("rows_at_bytes", c_uint64),
                ("row_stride_bytes", c_uint64), ("scales_at_bytes", c_uint64)]


class iris_moe_dispatch_call(Sized):
    _fields_ = [("size", c_size_t), ("workspace", c_void_p), ("tokens", c_uint32), ("id_dtype", c_int32),
                ("x", c_void_p), ("x_scales", c_void_p), ("ids", c_void_p), ("weights", c_void_p), ("rows", c_void_p),
                ("scales", c_void_p), ("counts", c_void_p), ("offsets", c_void_p), ("dropped", c_void_p),
                ("sources", c_void_p)]


class iris_moe_combine_call(Sized):
    _fields_ = [("size", c_size_t), ("workspace", c_void_p), ("tokens", c_uint32), ("y_dtype", c_int32),
                ("out_dtype", c_int32), ("reserved", c_int32), ("y", c_void_p), ("out", c_void_p)]


class iris_norm(Sized):
    _fields_ = [("size", c_size_t), ("operation", c_int32), ("variant", c_int32), ("rows", c_uint64),
                ("hidden", c_uint64), ("in_dtype", c_int32), ("out_dtype", c_int32), ("weight_dtype", c_int32),
                ("scaling", c_int32), ("epsilon", c_float), ("weight_offset", c_float), ("has_residual", c_int32),
                ("reserved", c_int32), ("in", c_void_p), ("residual", c_void_p), ("residual_out", c_void_p),
                ("weight", c_void_p), ("out", c_void_p), ("scale", c_void_p), ("scales", c_void_p),
                ("in_stride", c_uint64), ("residual_stride", c_uint64), ("residual_out_stride", c_uint64),
                ("out_stride", c_uint64)]


class iris_norm_plan(Sized):
    _fields_ = [("size", c_size_t), ("variant", c_int32), ("blocks", c_uint32), ("threads", c_uint32),
                ("parts", c_uint32)]


class iris_fill_options(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_int32), ("dtype", c_int32), ("first", c_uint64), ("count", c_uint64),
                ("start", c_double), ("end", c_double), ("step", c_double), ("whole_start", c_int64),
                ("whole_end", c_int64), ("whole_step", c_int64), ("steps", c_uint64), ("seed", c_uint64),
                ("call", c_uint64), ("n_dims", c_uint32), ("reserved", c_uint32), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64))]


class iris_tensor_options(Sized):
    _fields_ = [("size", c_size_t), ("dtype", c_int32), ("n_dims", c_uint32), ("shape", POINTER(c_int64)),
                ("name", c_char_p), ("fill", POINTER(iris_fill_options)), ("stream", c_void_p)]


class iris_tensor_info(Sized):
    _fields_ = [("size", c_size_t), ("dtype", c_int32), ("n_dims", c_uint32), ("shape", c_int64 * 8),
                ("strides", c_int64 * 8), ("n_elements", c_uint64), ("bytes", c_uint64), ("address", c_void_p),
                ("offset_bytes", c_uint64), ("rank", c_uint32), ("team_id", c_uint32), ("contiguous", c_int32),
                ("symmetric", c_int32), ("name", c_char_p)]


# What C returns, and what it takes. Handles and memory are c_void_p; CODE makes exceptions of errors.
CODE = "iris_code"
_HANDLE, _OUT = c_void_p, POINTER(c_void_p)
_COLLECTIVE = [_HANDLE, c_void_p, c_void_p, c_uint64, c_int32]  # comm, in, out, count, dtype
_COPY_ROWS = [_HANDLE, c_void_p, c_void_p, POINTER(iris_rows), c_uint32, _HANDLE, POINTER(iris_signal)]
_COPY = [_HANDLE, c_void_p, c_void_p, c_uint64, c_uint32, _HANDLE, POINTER(iris_signal)]

FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "iris_error_message": (c_char_p, []),
    "iris_code_name": (c_char_p, [c_int32]),
    "iris_version": (c_uint32, []),
    "iris_version_string": (c_char_p, []),
    "iris_launcher_read": (CODE, [POINTER(iris_launcher)]),
    "iris_context_options_init_sized": (None, [POINTER(iris_context_options), c_size_t]),
    "iris_context_create": (CODE, [POINTER(iris_context_options), _OUT]),
    "iris_context_destroy": (CODE, [_HANDLE]),
    "iris_context_leave": (CODE, [_HANDLE]),
    "iris_context_get_info": (CODE, [_HANDLE, POINTER(iris_context_info)]),
    "iris_context_get_timings": (CODE, [_HANDLE, POINTER(iris_create_timings)]),
    "iris_context_health": (CODE, [_HANDLE]),
    "iris_context_peer_pid": (CODE, [_HANDLE, c_uint32, POINTER(c_int64)]),
    "iris_context_get_device": (CODE, [_HANDLE, c_void_p, c_size_t]),
    "iris_locate": (CODE, [_HANDLE, c_void_p, POINTER(c_uint32), POINTER(c_uint64)]),
    "iris_team_get_info": (CODE, [_HANDLE, _HANDLE, POINTER(iris_team_info)]),
    "iris_team_get_device": (CODE, [_HANDLE, _HANDLE, c_void_p, c_size_t]),
    "iris_team_create": (CODE, [_HANDLE, _HANDLE, POINTER(c_uint32), c_uint32, _OUT]),
    "iris_team_split": (CODE, [_HANDLE, _HANDLE, c_int32, c_int32, _OUT]),
    "iris_team_destroy": (CODE, [_HANDLE, _HANDLE]),
    "iris_allocate": (CODE, [_HANDLE, _HANDLE, POINTER(iris_allocate_options), POINTER(iris_allocation)]),
    "iris_free": (CODE, [_HANDLE, POINTER(iris_allocation)]),
    "iris_grow": (CODE, [_HANDLE, c_uint64]),
    "iris_allocate_local": (CODE, [_HANDLE, POINTER(iris_allocate_options), POINTER(iris_allocation)]),
    "iris_register": (CODE, [_HANDLE, c_void_p, POINTER(iris_allocate_options), POINTER(iris_allocation)]),
    "iris_register_symmetric": (CODE, [_HANDLE, _HANDLE, c_void_p, POINTER(iris_allocate_options),
                                       POINTER(iris_allocation)]),
    "iris_is_symmetric": (CODE, [_HANDLE, c_void_p, c_uint64, POINTER(c_int32)]),
    "iris_torch_use": (CODE, [_HANDLE, c_int32]),
    "iris_torch_malloc": (c_void_p, [c_int64, c_int32, c_void_p]),
    "iris_torch_free": (None, [c_void_p, c_int64, c_int32, c_void_p]),
    "iris_publish_local": (CODE, [_HANDLE, POINTER(iris_allocation), c_char_p]),
    "iris_open_local": (CODE, [_HANDLE, c_uint32, c_char_p, c_int64, POINTER(iris_opened)]),
    "iris_close_local": (CODE, [_HANDLE, POINTER(iris_opened)]),
    "iris_barrier": (CODE, [_HANDLE, _HANDLE, c_int64]),
    "iris_broadcast_bytes": (CODE, [_HANDLE, _HANDLE, c_void_p, c_size_t, c_uint32, _OUT, POINTER(c_size_t)]),
    "iris_stream_create": (CODE, [_HANDLE, _OUT]),
    "iris_stream_wrap": (CODE, [_HANDLE, c_void_p, _OUT]),
    "iris_stream_destroy": (CODE, [_HANDLE]),
    "iris_stream_synchronize": (CODE, [_HANDLE]),
    "iris_stream_idle": (CODE, [_HANDLE, POINTER(c_int32)]),
    "iris_stream_native": (CODE, [_HANDLE, _OUT, POINTER(c_int32)]),
    "iris_copy_async": (CODE, [c_void_p, c_void_p, c_uint64, _HANDLE]),
    "iris_fill_async": (CODE, [c_void_p, c_int32, c_uint64, _HANDLE]),
    "iris_capture_begin": (CODE, [_HANDLE]),
    "iris_capture_end": (CODE, [_HANDLE, _OUT]),
    "iris_graph_launch": (CODE, [_HANDLE, _HANDLE]),
    "iris_graph_destroy": (CODE, [_HANDLE]),
    "iris_event_create": (CODE, [_HANDLE, _OUT]),
    "iris_event_destroy": (CODE, [_HANDLE]),
    "iris_event_record": (CODE, [_HANDLE, _HANDLE]),
    "iris_event_wait": (CODE, [_HANDLE, _HANDLE]),
    "iris_event_elapsed": (CODE, [_HANDLE, _HANDLE, POINTER(c_uint64)]),
    "iris_malloc_device": (CODE, [_HANDLE, c_uint64, _OUT]),
    "iris_free_device": (CODE, [_HANDLE, c_void_p]),
    "iris_malloc_host": (CODE, [_HANDLE, c_uint64, _OUT]),
    "iris_free_host": (CODE, [_HANDLE, c_void_p]),
    "iris_put_async": (CODE, _COPY),
    "iris_get_async": (CODE, _COPY),
    "iris_put_rows_async": (CODE, _COPY_ROWS),
    "iris_get_rows_async": (CODE, _COPY_ROWS),
    "iris_prepare_signals": (CODE, [_HANDLE]),
    "iris_comm_create": (CODE, [_HANDLE, _HANDLE, POINTER(iris_comm_options), _OUT]),
    "iris_comm_release": (CODE, [_HANDLE]),
    "iris_comm_destroy": (CODE, [_HANDLE]),
    "iris_all_reduce": (CODE, _COLLECTIVE + [c_int32, _HANDLE, c_int32]),
    "iris_reduce_scatter": (CODE, _COLLECTIVE + [c_int32, _HANDLE, c_int32]),
    "iris_reduce": (CODE, _COLLECTIVE + [c_int32, c_uint32, _HANDLE, c_int32]),
    "iris_all_gather": (CODE, _COLLECTIVE + [_HANDLE, c_int32]),
    "iris_gather": (CODE, _COLLECTIVE + [c_uint32, _HANDLE, c_int32]),
    "iris_scatter": (CODE, _COLLECTIVE + [c_uint32, _HANDLE, c_int32]),
    "iris_all_to_all": (CODE, _COLLECTIVE + [_HANDLE, c_int32]),
    "iris_all_to_all_v": (CODE, [_HANDLE, c_void_p, POINTER(c_uint64), POINTER(c_uint64), c_void_p, POINTER(c_uint64),
                                 POINTER(c_uint64), c_uint32, c_int32, _HANDLE]),
    "iris_broadcast": (CODE, _COLLECTIVE + [c_uint32, _HANDLE, c_int32]),
    "iris_send": (CODE, [_HANDLE, c_void_p, c_uint64, c_int32, c_uint32, _HANDLE]),
    "iris_recv": (CODE, [_HANDLE, c_void_p, c_uint64, c_int32, c_uint32, _HANDLE]),
    "iris_send_recv": (CODE, [_HANDLE, c_void_p, c_uint64, c_uint32, c_void_p, c_uint64, c_uint32, c_int32, _HANDLE]),
    "iris_group_start": (CODE, [_HANDLE]),
    "iris_group_end": (CODE, [_HANDLE]),
    "iris_comm_barrier": (CODE, [_HANDLE, _HANDLE]),
    "iris_comm_check": (CODE, [_HANDLE]),
    "iris_comm_error_word": (CODE, [_HANDLE, POINTER(POINTER(c_uint64))]),
    "iris_comm_synchronize": (CODE, [_HANDLE, _HANDLE]),
    "iris_comm_reset": (CODE, [_HANDLE]),
    "iris_trace_start": (CODE, [_HANDLE, c_int64]),
    "iris_trace_stop": (CODE, [_HANDLE]),
    "iris_trace_write": (CODE, [_HANDLE, c_char_p]),
    "iris_trace_span_begin": (CODE, [_HANDLE, POINTER(c_uint64)]),
    "iris_trace_span_end": (CODE, [_HANDLE, c_uint64, c_char_p]),
    "iris_trace_merge": (CODE, [POINTER(POINTER(c_char)), c_size_t, c_char_p]),
    "iris_matmul_bytes": (CODE, [_HANDLE, c_uint32, POINTER(iris_comm_options), POINTER(iris_matmul),
                                 POINTER(c_uint64)]),
    "iris_matmul_choose": (CODE, [_HANDLE, POINTER(iris_matmul), POINTER(iris_matmul_plan)]),
    "iris_matmul_launch": (CODE, [_HANDLE, POINTER(iris_matmul), _HANDLE]),
    "iris_moe_get_sizes": (CODE, [_HANDLE, c_uint32, c_uint32, POINTER(iris_moe_config), POINTER(iris_moe_sizes)]),
    "iris_moe_prepare": (CODE, [_HANDLE]),
    "iris_moe_dispatch": (CODE, [_HANDLE, POINTER(iris_moe_config), POINTER(iris_moe_dispatch_call), _HANDLE]),
    "iris_moe_combine": (CODE, [_HANDLE, POINTER(iris_moe_config), POINTER(iris_moe_combine_call), _HANDLE]),
    "iris_norm_choose": (CODE, [_HANDLE, POINTER(iris_norm), POINTER(iris_norm_plan)]),
    "iris_norm_launch": (CODE, [_HANDLE, POINTER(iris_norm), _HANDLE]),
    "iris_fill": (CODE, [_HANDLE, c_void_p, POINTER(iris_fill_options), _HANDLE]),
    "iris_tensor_create": (CODE, [_HANDLE, _HANDLE, POINTER(iris_tensor_options), _OUT]),
    "iris_tensor_get_info": (CODE, [_HANDLE, POINTER(iris_tensor_info)]),
    "iris_tensor_free": (CODE, [_HANDLE]),
    "iris_tensor_destroy": (CODE, [_HANDLE]),
    "iris_tensor_at": (CODE, [_HANDLE, c_uint32, _OUT]),
    "iris_tensor_slice": (CODE, [_HANDLE, c_uint32, c_int64, c_int64, c_int64, _OUT]),
    "iris_tensor_select": (CODE, [_HANDLE, c_uint32, c_int64, _OUT]),
    "iris_tensor_reshape": (CODE, [_HANDLE, c_uint32, POINTER(c_int64), _OUT]),
    "iris_tensor_permute": (CODE, [_HANDLE, c_uint32, POINTER(c_uint32), _OUT]),
    "iris_tensor_fill": (CODE, [_HANDLE, POINTER(iris_fill_options), _HANDLE]),
    "iris_tensor_from_host": (CODE, [_HANDLE, c_void_p, c_uint64, c_int32, _HANDLE]),
    "iris_tensor_to_host": (CODE, [_HANDLE, c_void_p, c_uint64, c_int32, _HANDLE]),
    "iris_tensor_copy": (CODE, [_HANDLE, _HANDLE, _HANDLE]),
    "iris_tensor_to_dlpack": (CODE, [_HANDLE, _OUT]),
    "iris_tensor_from_dlpack": (CODE, [_HANDLE, c_void_p, c_int32, _OUT]),
}

# Counts the forks that lead to this process, so that what was made before the last one is known. Cheaper than its pid.
generation = 0


def _forked() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)

_mutex = threading.Lock()
_library: Optional[ctypes.CDLL] = None


def candidates() -> List[str]:
    """Where the library is looked for, in this order: IRIS_LIBRARY alone if it is set; else inside the package, as
    the wheel has it, or above it, as the bundle has it; else by the loader's own rules."""
    named = os.environ.get("IRIS_LIBRARY")
    if named:
        return [named]
    package = os.path.dirname(os.path.abspath(__file__))
    beside = [os.path.join(package, "_bundle", "lib", "libiris.so"),
              os.path.join(os.path.dirname(os.path.dirname(package)), "libiris.so")]
    return [path for path in beside if os.path.exists(path)] + ["libiris.so.0", "libiris.so"]


def in_python(message: str) -> str:
    """A text of the library with the calls by their names here: reset() for iris_comm_reset()."""
    return re.sub(r"\biris_(?:comm_)?([a-z_]+)\(\)", r"\1()", message)


def _open() -> ctypes.CDLL:
    failures = []
    for path in candidates():
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


def library() -> Any:
    """The library, opened once. UnavailableError: it is nowhere. UnimplementedError: it is too old."""
    global _library
    if _library is None:
        with _mutex:
            if _library is None:
                _library = _open()
    return _library


def text(value: Optional[str]) -> Optional[bytes]:
    """A string for C; None stays what is left out."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"a string is wanted here, and not {type(value).__name__}")
    if "\0" in value:
        raise error_of(3, f"a string for Iris must not have a zero byte in it: {value!r}")
    return value.encode("utf-8")
