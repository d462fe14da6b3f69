#!/usr/bin/env python3
"""A mixture of experts with iris.moe: dispatch, experts, combine. Each rank has tokens and two of the experts.

    python3 -m iris.run -n 4 moe_layer.py

      x[tokens, hidden] --> dispatch --> rows, by expert --> y = expert(row) --> combine --> out[tokens, hidden]

It needs numpy, and runs where devices are emulated; with tensors of torch the calls are the same on GPUs. The output is
compared with what this rank computes by itself. The last line is `result ok figure VALUE us`.
"""

import sys
import time

import numpy

import iris

HIDDEN, TOP_K, EXPERTS_EACH = 64, 2, 2


def expert(number, rows):
    """What expert `number` makes of rows: another matrix each."""
    weights = numpy.random.default_rng(number).uniform(-0.1, 0.1, (HIDDEN, HIDDEN)).astype(numpy.float32)
    return numpy.maximum(rows @ weights, 0)


def main():
    with iris.Context(1 << 24) as context:
        rank, n_experts = context.rank, EXPERTS_EACH * context.n_ranks
        tokens = 20 + 3 * rank  # as many as a rank has
        exchange = iris.moe.Exchange(context, n_experts, TOP_K, HIDDEN, 20 + 3 * context.n_ranks, dtype="float32")
        random = numpy.random.default_rng(1000 + rank)
        x = random.uniform(-1, 1, (tokens, HIDDEN)).astype(numpy.float32)
        # A router's choices: different experts for a token, and weights whose sum is 1.
        ids = numpy.argsort(random.random((tokens, n_experts)), axis=1)[:, :TOP_K].astype(numpy.int32)
        weights = random.uniform(0.1, 1, (tokens, TOP_K)).astype(numpy.float32)
        weights /= weights.sum(axis=1, keepdims=True)
        y = numpy.zeros((exchange.max_rows, HIDDEN), numpy.float32)
        out = numpy.zeros_like(x)

        best = float("inf")
        for _ in range(3):
            context.barrier()
            start = time.perf_counter()
            got = exchange.dispatch(x, ids, weights)
            rows, offsets = got.rows.numpy(), got.offsets.numpy()
            for e in range(exchange.local_experts):
                mine = slice(offsets[e], offsets[e + 1])
                y[mine] = expert(exchange.first_expert + e, rows[mine])
            exchange.combine(y, out)
            context.barrier()
            best = min(best, time.perf_counter() - start)

        wanted = numpy.zeros_like(x)
        for t in range(tokens):
            for k in range(TOP_K):
                wanted[t] += weights[t, k] * expert(ids[t, k], x[t:t + 1])[0]
        error = numpy.abs(out - wanted).max()
        if not error < 1e-4:
            print(f"result failed rank {rank}: the largest error is {error}")
            sys.exit(1)
        context.barrier()
        exchange.release()
        if rank == 0:
            print(f"{n_experts} experts, largest error {error:.1e}")
            print(f"result ok figure {best * 1e6:.1f} us", flush=True)


if __name__ == "__main__":
    main()
