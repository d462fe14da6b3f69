"""A rank that calls devices as the reference's programs do: by a vendor's name. Started as ranks.py is."""

import ctypes
import gc
import os
import sys
import types

import torch

import iris
from iris import _foreign, _ref_tensors
from ranks import HEAP, raises


def reference():
    """The host side of the reference's README, word for word but for its kernel."""
    heap_size = HEAP
    iris_ctx = iris.iris(heap_size, allocator_type="torch")
    cur_rank = iris_ctx.get_rank()
    buffer_size = 4096
    buffer = iris_ctx.zeros(buffer_size, device="cuda", dtype=torch.float32)
    iris_ctx.barrier()
    n = iris_ctx.get_num_ranks()
    assert isinstance(buffer, torch.Tensor) and buffer.shape == (4096,) and iris_ctx.is_symmetric(buffer)
    assert not iris_ctx.is_symmetric(torch.zeros(3))
    assert iris_ctx.cur_rank == cur_rank and iris_ctx.num_ranks == n and iris_ctx.heap_size == heap_size
    bases = iris_ctx.get_heap_bases()
    assert iris_ctx.get_heap_bases() is bases and iris_ctx.get_device_context().tolist()[2:2 + n] == bases.tolist()
    assert iris_ctx.get_device_context().tolist()[:2] == [cur_rank, n]
    assert iris_ctx.do_bench(lambda: None, n_warmup=0, n_repeat=1, flushed_bytes=0) >= 0
    assert bases.shape == (n,) and iris_ctx.get_cu_count() > 0 and iris_ctx.get_device() == torch.device("cpu")
    # What the kernel does: rank 0 stores 1 in rank 1's copy.
    if cur_rank == 0:
        place = buffer.data_ptr() - int(bases[0]) + int(bases[min(1, n - 1)])
        (ctypes.c_float * buffer_size).from_address(place)[:] = [1.0] * buffer_size
    iris_ctx.barrier()
    assert buffer.sum() == (buffer_size if cur_rank == min(1, n - 1) else 0)
    for value in (5, 2.5, "text", None, ["a", 2]):
        assert iris_ctx.broadcast(value if cur_rank == 0 else None, 0) == value
    assert iris_ctx.broadcast(torch.full((3,), float(cur_rank)), n - 1).tolist() == [n - 1] * 3
    assert iris_ctx.arange(5).tolist() == [0, 1, 2, 3, 4] and iris_ctx.linspace(0, 1, 3).tolist() == [0, 0.5, 1]
    assert iris_ctx.full((2,), 7).tolist() == [7, 7] and iris_ctx.randint(0, 9, (3,)).max() < 9
    assert iris_ctx.ones(2, 2, requires_grad=True).requires_grad
    for name in ("rand", "randn", "empty"):
        assert getattr(iris_ctx, name)(3, 2).shape == (3, 2)
    assert iris_ctx.uniform((3,), 1.0, 2.0).min() >= 1 and iris_ctx.zeros_like(buffer).dtype == torch.float32
    out = iris_ctx.empty(8)
    iris_ctx.zeros(2, 4, out=out)
    assert not out.any()
    given = iris_ctx.full((8,), float(cur_rank))
    iris_ctx.ccl.all_reduce(out, given)
    assert out.tolist() == [n * (n - 1) / 2] * 8
    wide = iris_ctx.empty(8 * n)
    iris_ctx.ccl.all_gather(wide, given)
    assert wide.tolist() == [float(m) for m in range(n) for _ in range(8)]
    iris_ctx.device_barrier()
    raises(iris.InvalidArgumentError, lambda: iris_ctx.zeros(3, layout=torch.sparse_coo), "strided")
    outside = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    inside = iris_ctx.as_symmetric(outside)
    assert iris_ctx.is_symmetric(inside) and torch.equal(inside, outside) and inside.dtype == torch.bfloat16
    raises(TypeError, lambda: iris_ctx.barrier(group=5), "group")
    iris_ctx.debug("hidden")
    iris_ctx.info("shown")
    iris_ctx.warning(f"of {cur_rank}")
    iris_ctx.error("bad")
    iris_ctx.close()


def devices():
    """The rank's device is known by its name, and others are refused."""
    with iris.Context(HEAP) as c:
        for device in (None, "cpu", "cuda", torch.device("cpu")):
            assert c.zeros(2, device=device).device == "cpu"
        raises(iris.InvalidArgumentError, lambda: c.zeros(2, device="xpu"), "device=xpu", "cpu")
        raises(AttributeError, lambda: c.zeros(2).__cuda_array_interface__, "memory of the host")
        c.barrier()
    gpu = torch.device("cuda", 1)
    for device in (None, "cuda", "cuda:1", gpu):
        assert _ref_tensors.is_valid_device(device, gpu)
        _ref_tensors.throw_if_invalid_device(device, gpu)
    for device in ("cuda:0", "cpu", "xpu"):
        assert not _ref_tensors.is_valid_device(device, gpu)
        raises(RuntimeError, lambda wrong=device: _ref_tensors.throw_if_invalid_device(wrong, gpu), "cuda:1", device)
    assert _ref_tensors.is_valid_device("cuda:3", torch.device("cpu"))
    memory = (ctypes.c_float * 4)(0, 1, 2, 3)
    view = _foreign.tensor_from_ptr(ctypes.addressof(memory), 16, device="cpu", shape=(2, 2))
    assert view.tolist() == [[0, 1], [2, 3]]
    view[1, 1] = 5
    assert memory[3] == 5
    array = _foreign.CUDAArrayInterface(4096, 64, torch.float64)
    assert array.__cuda_array_interface__ == {"shape": (8,), "typestr": "<f8", "data": (4096, False), "version": 3}
    raises(ValueError, lambda: _foreign.CUDAArrayInterface(4096, 64, torch.complex64), "complex64")


def places():
    """Which GPU a rank of torch.distributed uses, which stream, and what kernels for each vendor's GPUs need."""
    def of(rank, current=0, count=8, bound=None, local=None):
        gpus = types.SimpleNamespace(is_available=lambda: count > 0, current_device=lambda: current,
                                     device_count=lambda: count)
        group = types.SimpleNamespace(WORLD=types.SimpleNamespace(bound_device_id=bound))
        os.environ.pop("LOCAL_RANK", None)
        if local is not None:
            os.environ["LOCAL_RANK"] = str(local)
        fake = types.SimpleNamespace(cuda=gpus, distributed=types.SimpleNamespace(group=group))
        return _foreign._local_rank(fake, rank)

    bound = types.SimpleNamespace(index=3)
    assert of(1, bound=bound) == 3 and of(1, bound=types.SimpleNamespace(index=None)) == 1
    assert of(9) == 1 and of(5, local=2) == 2 and of(5, current=4, local=2) == 4 and of(2, count=1) == 0
    assert of(5, count=0) == 5 and of(5, count=0, local=1) == 1
    target = types.SimpleNamespace(backend="hip", arch="gfx942")
    assert _foreign.store_fence(None) == "" == _foreign.store_fence(types.SimpleNamespace(backend="cuda", arch=90))
    assert _foreign.store_fence(target).splitlines()[1] == "buffer_wbl2 sc0 sc1"
    target.arch = "gfx1100"
    assert _foreign.store_fence(target).splitlines() == ["s_waitcnt vmcnt(0)", "v_mov_b32 $0, $1"]
    with iris.Context(HEAP) as c:
        native = c.stream().native
        c.raw_stream = lambda index: native  # torch's, where it uses the GPU
        first, waits = c.stream_for(None)
        assert first is c.stream_for(None)[0] and first is not c.own_stream and not waits
        c.raw_stream = None
        assert c.stream_for(None) == (c.own_stream, True)
        assert iris.DType.of(torch.float16) is iris.DType.F16 is iris.DType.of(torch.float16)
        raises(iris.InvalidArgumentError, lambda: iris.DType.of(torch.complex64), "complex64")
        c.barrier()


def in_the_heap(context):
    """A model whose tensors and gradients are of the heap, and collectives that use them where they lie."""
    pool = iris.mem_pool(context)
    device = f"cuda:{context.device_index}"
    outside = torch.ones(1000, device=device)
    with pool:
        model = torch.nn.Linear(300, 200, device=device)
        inputs = torch.full((16, 300), 1.0 + context.rank, device=device)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # a thread of torch's would make it elsewhere
        model(inputs).sum().backward()
    assert not context.is_symmetric(outside)
    for tensor in (model.weight.detach(), model.bias.detach(), model.weight.grad, inputs):
        assert context.is_symmetric(tensor), tensor.shape
    context.all_reduce(model.weight.grad)
    wanted = 16 * sum(1.0 + rank for rank in range(context.n_ranks))
    torch.testing.assert_close(model.weight.grad, torch.full((200, 300), wanted, device=device))
    assert not context.is_symmetric(torch.ones(1000, device=device))
    # Given back, and the heap has the room again.
    del model, inputs
    for _ in range(4):
        with pool:
            big = torch.empty(context.heap_bytes // 4, dtype=torch.uint8, device=device)
        assert context.is_symmetric(big)
        del big
        gc.collect()
    return pool


def registered_together(context):
    """torch's own memory at one offset on all ranks."""
    n, rank = context.n_ranks, context.rank
    own = torch.full((1 << 20,), float(rank), device=f"cuda:{context.device_index}")
    x = context.as_symmetric(own, name="x")
    view = x.torch()
    assert context.is_symmetric(x) and not context.is_symmetric(own) and view.data_ptr() != own.data_ptr()
    assert set(context.all_gather_object(x.offset_bytes)) == {x.offset_bytes}
    assert torch.equal(view, own)
    context.barrier()
    context.put(x[:100], torch.full((100,), 50.0 + rank, device=own.device), (rank + 1) % n)
    context.barrier()
    assert own[:101].tolist() == [50.0 + (rank - 1) % n] * 100 + [float(rank)]
    context.barrier()
    own.fill_(float(rank))
    context.barrier()
    context.all_reduce(x)
    torch.cuda.synchronize()
    assert own.unique().tolist() == [n * (n - 1) / 2]
    context.barrier()
    del view
    x.free()


def gpus():
    """torch's own memory on GPUs, with torch 2.5 or newer:

        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTHONPATH=BUNDLE/lib/python \\
            BUNDLE/bin/iris-run -n 2 -- python3 BUNDLE/libexec/iris/tests/python/foreign_ranks.py gpus

    iris-gpu-check does it.
    """
    with iris.Context(256 << 20, max_heap_bytes=4 << 30) as context:
        torch.cuda.set_device(context.device_index)
        pool = in_the_heap(context)
        print(f"rank {context.rank}: torch's tensors are in the heap", flush=True)
        context.barrier()
        try:
            registered_together(context)
            print(f"rank {context.rank}: torch's tensors are registered together", flush=True)
        except iris.InvalidArgumentError as error:
            # Without expandable segments: all ranks are told.
            assert "copy=True" in str(error), error
            print(f"rank {context.rank}: torch's tensors cannot be shared here: {error}", flush=True)
        context.barrier()
        del pool


if __name__ == "__main__":
    {"reference": reference, "devices": devices, "places": places, "gpus": gpus}[sys.argv[1]]()
