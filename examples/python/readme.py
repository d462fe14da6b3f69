#!/usr/bin/env python3
"""The first example of ROCm/iris, a kernel that stores into another GPU's memory, as a program of that library is:
nothing in it is Iris's own, and its import line is the same. It checks what arrived, and starts its two ranks itself:

    irisd &
    python3 readme.py
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import triton
import triton.language as tl

import iris


@triton.jit
def kernel(buffer, buffer_size: tl.constexpr, block_size: tl.constexpr, heap_bases_ptr):
    offsets = tl.program_id(0) * block_size + tl.arange(0, block_size)
    mask = offsets < buffer_size
    # From rank 0, whose pointers these are, to the same place in rank 1's heap.
    iris.store(buffer + offsets, 1, 0, 1, heap_bases_ptr, mask=mask)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def worker(rank, world_size, port):
    device = torch.device(f"cuda:{rank % torch.cuda.device_count()}")
    dist.init_process_group(backend="nccl" if torch.cuda.device_count() >= world_size else "gloo", rank=rank,
                            world_size=world_size, init_method=f"tcp://127.0.0.1:{port}",
                            device_id=device if torch.cuda.device_count() >= world_size else None)
    iris_ctx = iris.iris(2**28)  # bytes of each rank's heap
    cur_rank = iris_ctx.get_rank()

    buffer_size = 4096
    buffer = iris_ctx.zeros(buffer_size, device="cuda", dtype=torch.float32)
    iris_ctx.barrier()  # rank 1 has its zeros

    if cur_rank == 0:
        grid = lambda meta: (triton.cdiv(buffer_size, meta["block_size"]),)  # noqa: E731
        kernel[grid](buffer, buffer_size, 1024, iris_ctx.get_heap_bases())
    iris_ctx.barrier()

    wanted = buffer_size if cur_rank == 1 else 0
    if buffer.sum().item() != wanted:
        sys.exit(f"rank {cur_rank}: the sum of the buffer is {buffer.sum().item()}, and not {wanted}")
    print(f"rank {cur_rank} of {iris_ctx.get_num_ranks()} on {buffer.device}: the sum of the buffer is {wanted}",
          flush=True)
    iris_ctx.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, int(os.environ.get("MASTER_PORT") or free_port())), nprocs=2, join=True)
