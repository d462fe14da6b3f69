#!/usr/bin/env python3
"""Ring attention: keys and values of a sequence that is split over the ranks travel around while all compute.

    python3 -m iris.run -n 4 ring_attention.py --tokens 32768 --causal

    step s on rank r, whose queries stay:

      rank r - 1                       rank r                           rank r + 1
      K, V of r - 1 - s  ----------->  K, V of r - s  --------------->  K, V of r + 1 - s
          put + signal, into ring[s % 2]    |    put + signal, into ring[s % 2]
                                            v
                          attend: the first programs send, all others add to (o, m, l) of their queries

begin(), one program before each step, tells rank r - 1 that step s - 1 is over here, and waits for what rank r - 1 has
put in it: so no program that computes ever waits. Token t belongs to rank t % n: with --causal, every rank then has
about half of the pairs in every step. The output is compared with sums in double. The last line is `result ok figure
VALUE us`. examples/16_ring_attention.cc is the same in C++.
"""

import argparse
import itertools
import sys

import torch
import triton
import triton.language as tl

import iris

SENDERS, ROWS, KEYS, DIM = 8, 64, 32, 64  # programs; of a tile of queries, and of keys; of a head


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
        tiles, d = tl.cdiv(tokens, rows), tl.arange(0, dim)
        head, tile = (tl.program_id(0) - senders) // tiles, (tl.program_id(0) - senders) % tiles
        row = tile * rows + tl.arange(0, rows)
        exists = row < tokens
        mine = head * tokens + row
        at_mine = mine[:, None] * dim + d[None, :]
        query = tl.load(q + at_mine, mask=exists[:, None], other=0)
        most = tl.full((rows,), -1e30, tl.float32)
        total = tl.zeros((rows,), tl.float32)
        out = tl.zeros((rows, dim), tl.float32)
        if not fresh:
            most = tl.load(m + mine, mask=exists, other=0)
            total = tl.load(m + heads * tokens + mine, mask=exists, other=1)
            out = tl.load(o + at_mine, mask=exists[:, None], other=0)
        end = row * 0 + tokens  # of the keys that a query sees
        if causal:  # query i of this rank sees key j of the owner if j <= i, or j < i of a later rank
            end = tl.minimum(end, row + (owner <= rank).to(tl.int32))
        for at in range(0, tl.max(end, 0), keys):
            key_at = at + tl.arange(0, keys)
            line = (head * tokens + key_at)[:, None] * dim + d[None, :]
            # Not from a cache that may have what an earlier step left here.
            key = tl.load(present + line, mask=(key_at < tokens)[:, None], other=0, cache_modifier=".cg")
            value = tl.load(present + count + line, mask=(key_at < tokens)[:, None], other=0, cache_modifier=".cg")
            seen = key_at[None, :] < end[:, None]
            score = tl.where(seen, tl.dot(query, tl.trans(key)) * scale, -1e30)
            larger = tl.maximum(most, tl.max(score, 1))
            weight = tl.where(seen, tl.exp(score - larger[:, None]), 0).to(query.dtype)
            before = tl.exp(most - larger)
            total = total * before + tl.sum(weight.to(tl.float32), 1)
            out = out * before[:, None] + tl.dot(weight, value)
            most = larger
        tl.store(o + at_mine, out / total[:, None] if final else out, mask=exists[:, None])
        tl.store(m + mine, most, mask=exists)
        tl.store(m + heads * tokens + mine, total, mask=exists)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, help="of all ranks together, which divide it")
    parser.add_argument("--heads", type=int, help="of 64")
    parser.add_argument("--causal", action="store_true", help="no token sees a later one")
    options = parser.parse_args()
    ctx = iris.iris(1 << 30)
    rank, n, bases = ctx.get_rank(), ctx.get_num_ranks(), ctx.get_heap_bases()
    on_gpu = ctx.get_device().type != "cpu"
    heads = options.heads or (32 if on_gpu else 1)
    tokens = (options.tokens or (32768 if on_gpu else 72)) // n
    if tokens < 1 or (options.tokens or 0) % n != 0 or heads * tokens * n >= 1 << 24:
        sys.exit(f"--tokens must be a multiple of the {n} ranks, and --heads times --tokens below 2^24")
    ring = ctx.zeros(2, 2 * heads * tokens * DIM, dtype=torch.float16)
    begun, came, missing = ctx.zeros(3, 1, dtype=torch.int64)

    generator = torch.Generator().manual_seed(11)  # the same on all ranks
    q, k, v = (torch.randn(heads, tokens * n, DIM, generator=generator).half() for _ in range(3))
    query = q[:, rank::n].contiguous().to(ring.device)
    home = torch.stack((k[:, rank::n], v[:, rank::n])).contiguous().to(ring.device)
    o = torch.empty(heads, tokens, DIM, dtype=torch.float32, device=ring.device)
    m = torch.empty(2, heads, tokens, dtype=torch.float32, device=ring.device)
    steps = itertools.count()
    ctx.barrier()

    def once():
        for s in range(n):
            step = next(steps)
            begin[(1,)](begun, came, missing, step, (step // n * (n - 1) + s) * SENDERS, bases, rank, n)
            senders = SENDERS if s + 1 < n else 0
            present = home if s == 0 else ring[(s - 1) % 2]
            attend[(senders + heads * triton.cdiv(tokens, ROWS),)](
                query, present, ring[s % 2], o, m, begun, came, missing, step, heads, tokens, senders, (rank - s) % n,
                bases, rank, n, DIM**-0.5, options.causal, s == 0, s + 1 == n, ROWS, KEYS, DIM)

    milliseconds = ctx.do_bench(once, n_warmup=1 if on_gpu else 0, n_repeat=5 if on_gpu else 1, return_mode="median")
    error = 0.0
    for i in range(0, tokens, max(1, tokens // 32)):  # of some rows; all of a small problem
        end = i * n + rank + 1 if options.causal else tokens * n
        scores = torch.einsum("hd,htd->ht", q[:, i * n + rank].double(), k[:, :end].double()) * DIM**-0.5
        wanted = torch.einsum("ht,htd->hd", torch.softmax(scores, 1), v[:, :end].double())
        error = max(error, (o[:, i].cpu().double() - wanted).abs().max().item())
    if missing.item() or not error < 5e-3:  # weights are rounded to f16
        print(f"result failed rank {rank}: {missing.item()} waits in vain, the largest error is {error}")
        sys.exit(1)
    ctx.barrier()
    if rank == 0:
        print(f"{heads} heads of {DIM}, {tokens * n} tokens{', causal,' if options.causal else ''} on {n} ranks, "
              f"largest error {error:.1e}")
        print(f"result ok figure {milliseconds * 1e3:.1f} us")


if __name__ == "__main__":
    main()
