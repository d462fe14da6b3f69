"""A rank in Python, through the C API alone: joins, allocates, and sums over the ranks.

    python_job.py LIBIRIS before|after MODULE@FOLDER...

The modules, each of which lies below its folder, bring a gRPC, a protobuf, an abseil and the threads of torch into the
process, before libiris.so or after it, and work beside it.
"""

import ctypes
import importlib
import sys

LIBRARY, WHEN, MODULES = sys.argv[1], sys.argv[2], sys.argv[3:]
F32, SUM = 1, 0


class ContextOptions(ctypes.Structure):
    # As of 0.2; what it knows of the struct is said by its size.
    _fields_ = [("size", ctypes.c_size_t), ("header_version", ctypes.c_uint32), ("device_abi", ctypes.c_uint32),
                ("kernels", ctypes.c_char_p), ("job", ctypes.c_char_p), ("rank", ctypes.c_int32),
                ("n_ranks", ctypes.c_int32), ("local_rank", ctypes.c_int32), ("prealloc", ctypes.c_int32),
                ("heap_bytes", ctypes.c_uint64), ("max_heap_bytes", ctypes.c_uint64),
                ("device_uuid", ctypes.c_char_p), ("runtime_dir", ctypes.c_char_p),
                ("join_timeout_ns", ctypes.c_int64), ("timeout_ns", ctypes.c_int64),
                ("connect_timeout_ns", ctypes.c_int64)]


class AllocateOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("bytes", ctypes.c_uint64), ("alignment_bytes", ctypes.c_uint64),
                ("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("n_dims", ctypes.c_uint32),
                ("shape", ctypes.POINTER(ctypes.c_uint64))]


class Allocation(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("offset_bytes", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
                ("address", ctypes.c_void_p), ("team_id", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


def use_modules():
    for module in MODULES:
        name, _, folder = module.partition("@")
        path = importlib.import_module(name).__file__
        assert path.startswith(folder), f"{path} is not below {folder}"
    if "grpc" in sys.modules:
        sys.modules["grpc"].insecure_channel("unix:/nowhere").close()
    if "google.protobuf" in sys.modules:
        struct = importlib.import_module("google.protobuf.struct_pb2").Struct()
        struct["x"] = 1.0
        assert type(struct).FromString(struct.SerializeToString())["x"] == 1.0
    if "torch" in sys.modules:
        ones = sys.modules["torch"].ones(256, 256)
        assert (ones @ ones).sum() == 256**3


def numbers():
    """0 to 999 in memory of torch's, if it is there; what keeps it, its address and how to read the last."""
    if "torch" in sys.modules:
        tensor = sys.modules["torch"].arange(1000, dtype=sys.modules["torch"].float32)
        return tensor, ctypes.c_void_p(tensor.data_ptr()), lambda: float(tensor[999])
    values = (ctypes.c_float * 1000)(*range(1000))
    return values, values, lambda: values[999]


def main():
    if WHEN == "before":
        use_modules()
    iris = ctypes.CDLL(LIBRARY)
    iris.iris_error_message.restype = ctypes.c_char_p

    def check(code):
        if code != 0:
            sys.exit(iris.iris_error_message().decode())

    options = ContextOptions()
    iris.iris_context_options_init_sized(ctypes.byref(options), ctypes.sizeof(options))
    options.heap_bytes = 64 << 20
    context, stream, comm = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(iris.iris_context_create(ctypes.byref(options), ctypes.byref(context)))
    if WHEN == "after":
        use_modules()
    check(iris.iris_stream_create(context, ctypes.byref(stream)))
    check(iris.iris_comm_create(context, None, None, ctypes.byref(comm)))
    wanted = AllocateOptions(size=ctypes.sizeof(AllocateOptions), bytes=4 * 1000, name=b"x", dtype=F32)
    x = Allocation(size=ctypes.sizeof(Allocation))
    check(iris.iris_allocate(context, None, ctypes.byref(wanted), ctypes.byref(x)))
    kept, values, last = numbers()
    nbytes = ctypes.c_uint64(4 * 1000)
    address = ctypes.c_void_p(x.address)
    check(iris.iris_copy_async(address, values, nbytes, stream))
    check(iris.iris_all_reduce(comm, address, address, ctypes.c_uint64(1000), F32, SUM, stream, 0))
    check(iris.iris_copy_async(values, address, nbytes, stream))
    check(iris.iris_comm_synchronize(comm, stream))
    use_modules()
    print("sum of the last", last())
    del kept
    check(iris.iris_barrier(context, None, ctypes.c_int64(0)))
    check(iris.iris_context_destroy(context))


main()
