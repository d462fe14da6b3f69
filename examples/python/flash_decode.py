#!/usr/bin/env python3
"""Flash decode: attention of one token to a cache of keys and values that is split over the ranks.

    python3 -m iris.run -n 4 flash_decode.py --tokens 65536

      rank r:  its tokens of the cache
                  |  decode: a program for each head and split of the tokens
                  v
               (o, m, l): what its tokens give, the largest score, the sum of exp(score - m)
                  |  stored into all ranks' slots, with a signal each
                  v
               combine: a program for each head waits for the signals, and adds all parts in one order

examples/15_flash_decode.cc is the same in C++. The output is compared with sums in double on every rank. The last line
is `result ok figure VALUE us`.
"""

import argparse
import sys

import torch
import triton
import triton.language as tl

import iris


@triton.jit
def decode(q, k, v, parts, scores, ready, turn, own, splits, heap_bases, rank, n_ranks, scale, dim: tl.constexpr,
           keys: tl.constexpr):
    head = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    d = tl.arange(0, dim)
    query = tl.load(q + head * dim + d).to(tl.float32) * scale
    end = own * (split + 1) // splits
    m = -1e30
    l = 0.0  # noqa: E741
    o = tl.zeros((dim,), tl.float32)
    for first in range(own * split // splits, end, keys):
        token = first + tl.arange(0, keys)
        line = (head.to(tl.int64) * own + token)[:, None] * dim + d[None, :]
        mask = token < end
        key = tl.load(k + line, mask=mask[:, None], other=0).to(tl.float32)
        value = tl.load(v + line, mask=mask[:, None], other=0).to(tl.float32)
        score = tl.where(mask, tl.sum(key * query[None, :], 1), -1e30)
        most = tl.maximum(m, tl.max(score, 0))
        weight = tl.where(mask, tl.exp(score - most), 0)
        l = l * tl.exp(m - most) + tl.sum(weight, 0)  # noqa: E741
        o = o * tl.exp(m - most) + tl.sum(weight[:, None] * value, 0)
        m = most
    slot = (head * n_ranks + rank) * splits + split
    for i in range(n_ranks):
        peer = (rank + i) % n_ranks
        iris.store(parts + slot * dim + d, o, rank, peer, heap_bases)
        iris.store(scores + slot * 2, m, rank, peer, heap_bases)
        iris.store(scores + slot * 2 + 1, l, rank, peer, heap_bases)
        iris.signal(ready + slot, turn, rank, peer, heap_bases)


@triton.jit
def combine(parts, scores, ready, output, missing, turn, n_parts, dim: tl.constexpr):
    first = tl.program_id(0) * n_parts
    d = tl.arange(0, dim)
    m = -1e30
    l = 0.0  # noqa: E741
    o = tl.zeros((dim,), tl.float32)
    for slot in range(first, first + n_parts):
        if iris.wait_until(ready + slot, turn) == 0:
            tl.atomic_add(missing, 1)
        score = tl.load(scores + slot * 2, cache_modifier=".cg")
        most = tl.maximum(m, score)
        weight = tl.exp(score - most)
        l = l * tl.exp(m - most) + tl.load(scores + slot * 2 + 1, cache_modifier=".cg") * weight  # noqa: E741
        o = o * tl.exp(m - most) + tl.load(parts + slot * dim + d, cache_modifier=".cg") * weight
        m = most
    tl.store(output + tl.program_id(0) * dim + d, o / l)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, help="in the cache, all ranks together")
    parser.add_argument("--heads", type=int, help="of 128")
    parser.add_argument("--splits", type=int, help="programs for a head on each rank")
    options = parser.parse_args()
    ctx = iris.iris(1 << 28)
    rank, n = ctx.get_rank(), ctx.get_num_ranks()
    on_gpu = ctx.get_device().type != "cpu"
    heads = options.heads or (32 if on_gpu else 2)
    tokens = options.tokens or (65536 if on_gpu else 150)
    splits = options.splits or (16 if on_gpu else 2)
    dim, keys = 128, 32
    if min(heads, tokens, splits) < 1 or heads * n * splits > 1 << 15:
        sys.exit("--tokens, --heads and --splits are at least 1, and heads * ranks * splits at most 32768")
    first, end = tokens * rank // n, tokens * (rank + 1) // n
    parts = ctx.zeros(2, heads * n * splits * dim, dtype=torch.float32)
    scores = ctx.zeros(2, heads * n * splits * 2, dtype=torch.float32)
    ready = ctx.zeros(2, heads * n * splits, dtype=torch.int64)
    output = ctx.zeros(heads, dim, dtype=torch.float32)
    missing = ctx.zeros(1, dtype=torch.int32)
    bases = ctx.get_heap_bases()

    generator = torch.Generator().manual_seed(7)  # the same on all ranks
    q = (torch.randn(heads, dim, generator=generator) * 2).half()
    k, v = (torch.randn(heads, tokens, dim, generator=generator).half() for _ in range(2))
    mine = [each.contiguous().to(output.device) for each in (q, k[:, first:end], v[:, first:end])]
    turn = 0
    ctx.barrier()

    def once():
        nonlocal turn
        turn += 1
        at = parts[turn % 2], scores[turn % 2], ready[turn % 2]
        decode[(heads * splits,)](*mine, *at, turn, end - first, splits, bases, rank, n, dim**-0.5, dim, keys)
        combine[(heads,)](*at, output, missing, turn, n * splits, dim)

    milliseconds = ctx.do_bench(once, n_warmup=2 if on_gpu else 0, n_repeat=20 if on_gpu else 2, return_mode="median")
    error = 0.0
    for head in range(heads):
        weights = torch.softmax(k[head].double() @ q[head].double() * dim**-0.5, 0)
        wanted = weights @ v[head].double()
        error = max(error, (output[head].cpu().double() - wanted).abs().max().item())
    if missing.item() or not error < 1e-4:
        print(f"result failed rank {rank}: {missing.item()} parts did not come, the largest error is {error}")
        sys.exit(1)
    ctx.barrier()
    if rank == 0:
        print(f"{heads} heads of {dim}, {tokens} tokens on {n} ranks, largest error {error:.1e}")
        print(f"result ok figure {milliseconds * 1e3:.1f} us", flush=True)
    ctx.barrier()


if __name__ == "__main__":
    main()
