#!/usr/bin/env python3
"""Messages between kernels of Triton, around a ring: data, then a flag that says that they are there.

    python3 -m iris.run -n 4 message_passing.py

First with a store and an atomic on a flag for each block, then with put_signal. Each block of each message is checked.
Last, ranks 0 and 1 send a word to and fro.
"""

import argparse
import sys

import torch
import triton
import triton.language as tl

import iris


@triton.jit
def send_by_flags(data, inbox, flags, turn, heap_bases, rank, peer, size: tl.constexpr):
    block = tl.program_id(0)
    at = block * size + tl.arange(0, size)
    iris.store(inbox + at, tl.load(data + at), rank, peer, heap_bases)
    # Releases what all threads of the block have stored.
    iris.signal(flags + block, turn, rank, peer, heap_bases)


@triton.jit
def send_by_put_signal(data, inbox, flags, turn, heap_bases, rank, peer, size: tl.constexpr):
    block = tl.program_id(0)
    at = block * size + tl.arange(0, size)
    iris.put_signal(data + at, inbox + at, flags + block, turn, rank, peer, heap_bases)


@triton.jit
def receive(inbox, flags, output, missing, turn, size: tl.constexpr):
    block = tl.program_id(0)
    at = block * size + tl.arange(0, size)
    if iris.wait_until(flags + block, turn):
        tl.store(output + at, tl.load(inbox + at) + 1)
    else:
        tl.atomic_add(missing, 1)


@triton.jit
def ping_pong(word, missing, first, rounds, heap_bases, rank, peer, begins: tl.constexpr):
    for i in range(rounds):
        if begins:
            iris.signal(word, first + i, rank, peer, heap_bases)
        came = iris.wait_until(word, first + i)
        if came == 0:
            tl.atomic_add(missing, 1)
        if not begins:
            iris.signal(word, first + i, rank, peer, heap_bases)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, help="of a message, each of 2048 numbers of 4 bytes")
    parser.add_argument("--rounds", type=int, help="of the word that goes to and fro")
    options = parser.parse_args()

    ctx = iris.iris(1 << 28)
    rank, n = ctx.get_rank(), ctx.get_num_ranks()
    on_gpu = ctx.get_device().type != "cpu"
    blocks = options.blocks or (2048 if on_gpu else 4)
    rounds = options.rounds or (1000 if on_gpu else 20)
    size = 2048
    peer = (rank + 1) % n
    bases = ctx.get_heap_bases()

    data = ctx.zeros(blocks * size, dtype=torch.int32)
    inbox = ctx.zeros(blocks * size, dtype=torch.int32)
    output = ctx.zeros(blocks * size, dtype=torch.int32)
    flags = ctx.zeros(blocks, dtype=torch.int64)
    missing = ctx.zeros(1, dtype=torch.int32)
    turn = 0
    ctx.barrier()

    for name, send in (("store and flag", send_by_flags), ("put_signal", send_by_put_signal)):
        def prepare():
            data.copy_(torch.arange(blocks * size, dtype=torch.int32, device=data.device) + 1000 * turn + rank)

        def once():
            nonlocal turn
            turn += 1
            send[(blocks,)](data, inbox, flags, turn, bases, rank, peer, size)
            receive[(blocks,)](inbox, flags, output, missing, turn, size)

        milliseconds = ctx.do_bench(once, preamble_fn=prepare, n_warmup=3, n_repeat=20 if on_gpu else 2,
                                    return_mode="median")
        wanted = torch.arange(blocks * size, dtype=torch.int32, device=data.device) + (
            1000 * (turn - 1) + (rank - 1) % n + 1)
        wrong = int((output != wanted).sum().item())
        if wrong or missing.item():
            sys.exit(f"rank {rank}, {name}: {wrong} numbers are wrong, {missing.item()} flags did not come")
        ctx.barrier()
        if rank == 0:
            print(f"message passing by {name}: {blocks * size * 4} bytes in {milliseconds * 1e3:.1f} us, "
                  f"{blocks * size * 4 / milliseconds / 1e6:.1f} GB/s, every number right", flush=True)

    if n >= 2:
        word = ctx.zeros(1, dtype=torch.int64)
        ctx.barrier()
        first = 1

        def to_and_fro():
            nonlocal first
            if rank < 2:
                ping_pong[(1,)](word, missing, first, rounds, bases, rank, 1 - rank, rank == 0)
            first += rounds

        milliseconds = ctx.do_bench(to_and_fro, n_warmup=2, n_repeat=5 if on_gpu else 1, return_mode="median")
        ctx.barrier()
        if rank < 2 and (word.item() != first - 1 or missing.item()):
            sys.exit(f"rank {rank}: the word is {word.item()}, and not {first - 1}; {missing.item()} did not come")
        if rank == 0:
            print(f"to and fro between ranks 0 and 1: {milliseconds * 1e3 / rounds:.2f} us", flush=True)
    ctx.barrier()


if __name__ == "__main__":
    main()
