"""Programs as users of the reference write them, with its names alone: `reference_programs_ranks.py CASE`, or
`all_cases` or `gpus` for all of them.

    readme            a kernel stores into another rank's new buffer
    message_passing   a kernel sends blocks with a flag for each, another one waits for the flags
    gemm_all_scatter  a persistent GEMM whose tiles are stored to all ranks as they are made
    flash_decode      attention to a cache that is split over the ranks, whose parts are put to all with flags

On emulated devices kernels run in Triton's interpreter, which ends one program of the grid before the next one begins.
"""

import os
import sys

import torch

import iris

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if not hasattr(torch.Tensor, "untyped_storage"):  # of torch 1, which the interpreter does not know any more
        torch.Tensor.untyped_storage = torch.Tensor.storage
sys.path.append("/usr/local/lib/iris/triton")

# pylint: disable=wrong-import-position
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

HEAP = 1 << 26


def right(name, got, wanted, tolerance=0.0):
    """Ends the program with what is wrong unless the tensors are equal, or within the tolerance."""
    got, wanted = got.detach().cpu().double(), wanted.detach().cpu().double()
    difference = (got - wanted).abs().max().item()
    if not difference <= tolerance:
        sys.exit(f"{name}: {difference} is the largest difference, at {int((got - wanted).abs().argmax())}")


@triton.jit
def store_ones(buffer, buffer_size: tl.constexpr, block_size: tl.constexpr, heap_bases):
    offsets = tl.program_id(0) * block_size + tl.arange(0, block_size)
    iris.store(buffer + offsets, 1, 0, 1, heap_bases, mask=offsets < buffer_size)


def readme(shmem):
    """Rank 0 stores right after its own zeros() has returned. The values are never lost in rank 1's zeros()."""
    n_elements = 1000
    for _ in range(20):
        buffer = shmem.zeros(n_elements, device="cuda", dtype=torch.float32)
        if shmem.get_rank() == 0:
            store_ones[lambda meta: (triton.cdiv(n_elements, meta["block_size"]),)](
                buffer, n_elements, 256, shmem.get_heap_bases())
        shmem.barrier()
        right("readme", buffer, torch.full((n_elements,), float(shmem.get_rank() == 1)))
        shmem.barrier()


@triton.jit
def produce(source, target, flags, n_elements, producer: tl.constexpr, consumer: tl.constexpr, BLOCK: tl.constexpr,
            heap_bases):
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    values = iris.load(source + offsets, producer, producer, heap_bases, mask=mask)
    iris.store(target + offsets, values, producer, consumer, heap_bases, mask=mask)
    tl.debug_barrier()  # all threads of the program have stored
    iris.atomic_cas(flags + pid, 0, 1, producer, consumer, heap_bases, sem="release", scope="sys")


@triton.jit
def put(source, target, flags, n_elements, producer: tl.constexpr, consumer: tl.constexpr, BLOCK: tl.constexpr,
        heap_bases):
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    iris.put(source + offsets, target + offsets, producer, consumer, heap_bases, mask=offsets < n_elements)
    tl.debug_barrier()
    iris.atomic_xchg(flags + pid, 1, producer, consumer, heap_bases, sem="release", scope="sys")


@triton.jit
def put_by_context(source, target, flags, n_elements, producer: tl.constexpr, consumer: tl.constexpr,
                   BLOCK: tl.constexpr, context_tensor, world_size: tl.constexpr):
    ctx = iris.DeviceContext.initialize(context_tensor, producer, world_size)
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    ctx.put(source + offsets, target + offsets, consumer, mask=offsets < n_elements)
    tl.debug_barrier()
    ctx.atomic_add(flags + pid, 1, consumer, sem="release", scope="sys")


@triton.jit
def consume(buffer, flags, n_elements, consumer: tl.constexpr, BLOCK: tl.constexpr, heap_bases):
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    done = 0
    while done == 0:
        done = iris.atomic_cas(flags + pid, 1, 0, consumer, consumer, heap_bases, sem="acquire", scope="sys")
    values = iris.load(buffer + offsets, consumer, consumer, heap_bases, mask=mask)
    iris.store(buffer + offsets, values * 2, consumer, consumer, heap_bases, mask=mask)


def message_passing(shmem):
    """Each rank sends to the next one around the ring, right after its allocations, and doubles what it gets."""
    rank, world_size = shmem.get_rank(), shmem.get_num_ranks()
    block = 256
    for send, dtype, n_elements in ((produce, torch.float32, 1000), (put, torch.int32, 1024),
                                    (put_by_context, torch.float16, 100)):
        source = shmem.full((n_elements,), rank + 1, dtype=dtype, device="cuda")
        buffer = shmem.zeros(n_elements, dtype=dtype, device="cuda")
        n_blocks = triton.cdiv(n_elements, block)
        flags = shmem.zeros((n_blocks,), dtype=torch.int32, device="cuda")
        ends = (shmem.get_device_context(), world_size) if send is put_by_context else (shmem.get_heap_bases(),)
        send[(n_blocks,)](source, buffer, flags, n_elements, rank, (rank + 1) % world_size, block, *ends)
        consume[(n_blocks,)](buffer, flags, n_elements, rank, block, shmem.get_heap_bases())
        shmem.barrier()
        before = (rank - 1) % world_size
        right("message_passing", buffer, torch.full((n_elements,), 2.0 * (before + 1)))
        right("the flags", flags, torch.zeros(n_blocks))
        shmem.barrier()


@triton.jit
def gemm(A, B, C, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, NUM_SMS: tl.constexpr,
         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, heap_bases, cur_rank: tl.constexpr,
         world_size: tl.constexpr):
    tiles_n = tl.cdiv(N, BLOCK_N)
    for tile_id in range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tiles_n, NUM_SMS):
        rows = tile_id // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = tile_id % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for first in range(0, K, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            a = tl.load(A + rows[:, None] * stride_am + k[None, :] * stride_ak,
                        mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0)
            b = tl.load(B + k[:, None] * stride_bk + columns[None, :] * stride_bn,
                        mask=(k[:, None] < K) & (columns[None, :] < N), other=0.0)
            acc += tl.dot(a, b)
        c = acc.to(C.type.element_ty)
        # The rank's columns lie side by side with those of the others in every rank's C.
        there = C + rows[:, None] * stride_cm + (columns + cur_rank * N)[None, :] * stride_cn
        mask = (rows[:, None] < M) & (columns[None, :] < N)
        for remote_rank in range(world_size):
            if remote_rank == cur_rank:
                tl.store(there, c, mask=mask)
            else:
                iris.store(there, c, cur_rank, remote_rank, heap_bases, mask=mask)


def gemm_all_scatter(shmem):
    """C = A @ B, with the columns of B on the ranks and C on all of them. B is the transpose of what is in the heap."""
    rank, world_size = shmem.get_rank(), shmem.get_num_ranks()
    m, n, k = 80, 48, 100
    torch.manual_seed(3)
    whole_a, whole_b = torch.randn(m, k), torch.randn(k, n * world_size)
    A = shmem.zeros((m, k), dtype=torch.float16, device="cuda")
    B = shmem.zeros((n, k), dtype=torch.float16, device="cuda").T
    A.copy_(whole_a)
    B.copy_(whole_b[:, rank * n:(rank + 1) * n])
    C = shmem.zeros((m, n * world_size), dtype=torch.float32, device="cuda")
    gemm[(4,)](A, B, C, m, n, k, *A.stride(), *B.stride(), *C.stride(), 4, 32, 32, 32, shmem.get_heap_bases(), rank,
               world_size)
    shmem.barrier()
    right("gemm_all_scatter", C, whole_a.half().double() @ whole_b.half().double(), 1e-2)
    shmem.barrier()


@triton.jit
def decode(q, keys, values, parts, flags, own, scale, DIM: tl.constexpr, BLOCK: tl.constexpr, heap_bases,
           cur_rank: tl.constexpr, world_size: tl.constexpr):
    head = tl.program_id(0)
    d = tl.arange(0, DIM)
    query = tl.load(q + head * DIM + d)
    most = -float("inf")
    total = 0.0
    acc = tl.zeros((DIM,), dtype=tl.float32)
    for first in range(0, own, BLOCK):
        token = first + tl.arange(0, BLOCK)
        at = (head * own + token)[:, None] * DIM + d[None, :]
        mask = token < own
        key = tl.load(keys + at, mask=mask[:, None], other=0.0)
        value = tl.load(values + at, mask=mask[:, None], other=0.0)
        score = tl.where(mask, tl.sum(key * query[None, :], 1) * scale, -float("inf"))
        now = tl.maximum(most, tl.max(score, 0))
        weight = tl.exp(score - now)
        total = total * tl.exp(most - now) + tl.sum(weight, 0)
        acc = acc * tl.exp(most - now) + tl.sum(weight[:, None] * value, 0)
        most = now
    # A part is the output of the rank's tokens, and the logarithm of the sum of their weights.
    part = parts + (head * world_size + cur_rank) * (DIM + 1)
    for rank in range(world_size):
        iris.store(part + d, acc / total, cur_rank, rank, heap_bases)
        iris.store(part + DIM, most + tl.log(total), cur_rank, rank, heap_bases)
        tl.debug_barrier()
        iris.atomic_xchg(flags + head * world_size + cur_rank, 1, cur_rank, rank, heap_bases, sem="release",
                         scope="sys")


@triton.jit
def combine(output, parts, flags, DIM: tl.constexpr, world_size: tl.constexpr):
    head = tl.program_id(0)
    d = tl.arange(0, DIM)
    most = -float("inf")
    total = 0.0
    acc = tl.zeros((DIM,), dtype=tl.float32)
    for rank in range(world_size):
        while tl.atomic_cas(flags + head * world_size + rank, 0, 0, sem="acquire", scope="sys") == 0:
            pass
        part = parts + (head * world_size + rank) * (DIM + 1)
        logarithm = tl.load(part + DIM)
        now = tl.maximum(most, logarithm)
        acc = acc * tl.exp(most - now) + tl.exp(logarithm - now) * tl.load(part + d)
        total = total * tl.exp(most - now) + tl.exp(logarithm - now)
        most = now
    tl.store(output + head * DIM + d, acc / total)


def flash_decode(shmem):
    """One token attends to the tokens of all ranks. The output is the same on all of them."""
    rank, world_size = shmem.get_rank(), shmem.get_num_ranks()
    heads, own, dim = 3, 50, 32
    torch.manual_seed(4)
    q = torch.randn(heads, dim)
    keys, values = (torch.randn(heads, world_size, own, dim) for _ in range(2))
    place = shmem.get_device()
    parts = shmem.empty((heads, world_size, dim + 1), dtype=torch.float32)
    flags = shmem.zeros((heads, world_size), dtype=torch.int32)
    output = torch.empty((heads, dim), device=place)
    decode[(heads,)](q.to(place), keys[:, rank].contiguous().to(place), values[:, rank].contiguous().to(place), parts,
                     flags, own, dim ** -0.5, dim, 16, shmem.get_heap_bases(), rank, world_size)
    combine[(heads,)](output, parts, flags, dim, world_size)
    shmem.barrier()
    scores = torch.einsum("hd,hrtd->hrt", q.double(), keys.double()).reshape(heads, -1) * dim ** -0.5
    wanted = torch.einsum("ht,htd->hd", scores.softmax(1), values.double().reshape(heads, -1, dim))
    right("flash_decode", output, wanted, 1e-5)
    shmem.barrier()


if __name__ == "__main__":
    shmem_of_all = iris.iris(HEAP)
    for case in (readme, message_passing, gemm_all_scatter, flash_decode):
        if sys.argv[1] in (case.__name__, "all_cases", "gpus"):
            case(shmem_of_all)
    shmem_of_all.barrier()
