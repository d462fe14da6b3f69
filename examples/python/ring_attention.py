#!/usr/bin/env python3
"""Ring attention: the sequence is split over the ranks; keys and values travel around the ring while every rank
computes with those that it has.

    python3 -m iris.run -n 4 ring_attention.py --tokens 32768 --causal

    step s on rank r, whose queries stay:

      rank r - 1                  rank r                       rank r + 1
      K, V of r - 1 - s  ----->  K, V of r - s  ------------>  K, V of r + 1 - s
                 put + signal         |       put + signal
                 into ring[s % 2]     v       into ring[s % 2]
                                 attend: the first programs send, all others add to (o, m, l) of their queries

begin(), one program before each step, tells rank r - 1 that step s - 1 is over here, and waits for what rank r - 1 has
put in it: so no program that computes ever waits. Token t belongs to rank t % n: with --causal, every rank then has
about half of the pairs in every step. examples/16_ring_attention.cc is the same in C++. The output is compared with
sums in double. The last line is `result ok figure VALUE us`.
"""

import argparse
import sys

import torch
import triton
import triton.language as tl

import iris

SENDERS = 8
ROWS = 64


@triton.jit
def begin(begun, came, missing, step, puts, heap_bases, rank, n_ranks):
    iris.signal(begun, step + 1, rank, (rank + n_ranks - 1) % n_ranks, heap_bases)
    if iris.wait_until(came, puts) == 0:
        tl.atomic_add(missing, 1)


@triton.jit
def send(present, ring, begun, came, missing, step, count, heap_bases, rank, n_ranks, senders, size: tl.constexpr):
    peer = (rank + 1) % n_ranks
    if iris.wait_until(begun, step + 1):
        for first in range(tl.program_id(0) * size, count, senders * size):
            at = first + tl.arange(0, size)
            iris.put(present + at, ring + at, rank, peer, heap_bases, mask=at < count)
        iris.signal(came, 1, rank, peer, heap_bases, op="add")
    else:
        tl.atomic_add(missing, 1)


@triton.jit
def attend(q, present, ring, o, m, begun, came, missing, step, heads, tokens, senders, owner, heap_bases, rank, n_ranks,
           scale, causal: tl.constexpr, fresh: tl.constexpr, final: tl.constexpr, rows: tl.constexpr,
           keys: tl.constexpr, dim: tl.constexpr):
    count = heads * tokens * dim  # of the keys, and of the values behind them
    if tl.program_id(0) < senders:
        send(present, ring, begun, came, missing, step, 2 * count, heap_bases, rank, n_ranks, senders, 2048)
    else:
        tiles = tl.cdiv(tokens, rows)
        head = (tl.program_id(0) - senders) // tiles
        row = (tl.program_id(0) - senders) % tiles * rows + tl.arange(0, rows)
        d = tl.arange(0, dim)
        exists = row < tokens
        mine = head * tokens + row
        query = tl.load(q + mine[:, None] * dim + d[None, :], mask=exists[:, None], other=0)
        if fresh:
            most = tl.full((rows,), -1e30, tl.float32)
            total = tl.zeros((rows,), tl.float32)
            out = tl.zeros((rows, dim), tl.float32)
        else:
            most = tl.load(m + mine, mask=exists, other=0)
            total = tl.load(m + heads * tokens + mine, mask=exists, other=1)
            out = tl.load(o + mine[:, None] * dim + d[None, :], mask=exists[:, None], other=0)
        shift = (owner > rank).to(tl.int32)  # query i of this rank sees key j of the owner: j + shift <= i
        end = tokens
        if causal:
            end = tl.minimum(tokens, ((tl.program_id(0) - senders) % tiles + 1) * rows - shift)
        for at in range(0, end, keys):
            key_at = at + tl.arange(0, keys)
            line = (head * tokens + key_at)[:, None] * dim + d[None, :]
            # Not from a cache that may have what an earlier step left here.
            key = tl.load(present + line, mask=(key_at < tokens)[:, None], other=0, cache_modifier=".cg")
            value = tl.load(present + count + line, mask=(key_at < tokens)[:, None], other=0, cache_modifier=".cg")
            seen = (key_at < tokens)[None, :] & (row >= 0)[:, None]
            if causal:
                seen = seen & (key_at[None, :] + shift <= row[:, None])
            score = tl.where(seen, tl.dot(query, tl.trans(key)) * scale, -1e30)
            larger = tl.maximum(most, tl.max(score, 1))
            weight = tl.where(seen, tl.exp(score - larger[:, None]), 0).to(query.dtype)
            before = tl.exp(most - larger)
            total = total * before + tl.sum(weight.to(tl.float32), 1)
            out = out * before[:, None] + tl.dot(weight, value)
            most = larger
        if final:
            out = out / total[:, None]
        tl.store(o + mine[:, None] * dim + d[None, :], out, mask=exists[:, None])
        tl.store(m + mine, most, mask=exists)
        tl.store(m + heads * tokens + mine, total, mask=exists)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, help="of all ranks together, which divide it")
    parser.add_argument("--heads", type=int, help="of 64")
    parser.add_argument("--causal", action="store_true", help="no token sees a later one")
    options = parser.parse_args()
    ctx = iris.iris(1 << 30)
    rank, n = ctx.get_rank(), ctx.get_num_ranks()
    on_gpu = ctx.get_device().type != "cpu"
    heads = options.heads or (32 if on_gpu else 1)
    tokens = (options.tokens or (32768 if on_gpu else 72)) // n
    if tokens < 1 or options.tokens is not None and options.tokens % n != 0:
        sys.exit(f"--tokens must be a multiple of the {n} ranks")
    dim, keys = 64, 32
    count = 2 * heads * tokens * dim
    if count * n >= 1 << 31:
        sys.exit("--heads and --tokens: keys and values have at most 2^31 elements")
    ring = ctx.zeros(2, count, dtype=torch.float16)
    begun, came = ctx.zeros(1, dtype=torch.int64), ctx.zeros(1, dtype=torch.int64)
    missing = ctx.zeros(1, dtype=torch.int32)
    bases = ctx.get_heap_bases()

    generator = torch.Generator().manual_seed(11)  # the same on all ranks
    q, k, v = (torch.randn(heads, tokens * n, dim, generator=generator).half() for _ in range(3))
    query = q[:, rank::n].contiguous().to(ring.device)
    home = torch.stack((k[:, rank::n], v[:, rank::n])).contiguous().to(ring.device)
    o = torch.empty(heads, tokens, dim, dtype=torch.float32, device=ring.device)
    m = torch.empty(2, heads, tokens, dtype=torch.float32, device=ring.device)
    rounds = 0
    ctx.barrier()

    def once():
        nonlocal rounds
        for s in range(n):
            step = rounds * n + s
            begin[(1,)](begun, came, missing, step, (rounds * (n - 1) + s) * SENDERS, bases, rank, n)
            senders = SENDERS if s + 1 < n else 0
            present = home if s == 0 else ring[(s - 1) % 2]
            attend[(senders + heads * triton.cdiv(tokens, ROWS),)](
                query, present, ring[s % 2], o, m, begun, came, missing, step, heads, tokens, senders, (rank - s) % n,
                bases, rank, n, dim**-0.5, options.causal, s == 0, s + 1 == n, ROWS, keys, dim)
        rounds += 1

    milliseconds = ctx.do_bench(once, n_warmup=1 if on_gpu else 0, n_repeat=5 if on_gpu else 1, return_mode="median")
    error = 0.0
    for i in range(0, tokens, max(1, tokens // 32)):  # of some rows; all of a small problem
        end = i * n + rank + 1 if options.causal else tokens * n
        scores = torch.einsum("hd,htd->ht", q[:, i * n + rank].double(), k[:, :end].double()) * dim**-0.5
        wanted = torch.einsum("ht,htd->hd", torch.softmax(scores, 1), v[:, :end].double())
        error = max(error, (o[:, i].cpu().double() - wanted).abs().max().item())
    if missing.item() or not error < 5e-3:  # weights are rounded to f16
        print(f"result failed rank {rank}: {missing.item()} waits in vain, the largest error is {error}")
        sys.exit(1)
    ctx.barrier()
    if rank == 0:
        print(f"{heads} heads of {dim}, {tokens * n} tokens{', causal,' if options.causal else ''} on {n} ranks, "
              f"largest error {error:.1e}")
        print(f"result ok figure {milliseconds * 1e3:.1f} us", flush=True)
    ctx.barrier()


if __name__ == "__main__":
    main()
