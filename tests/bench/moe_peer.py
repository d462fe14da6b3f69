#!/usr/bin/env python3
"""The peer of `iris_bench moe`: torch's all_to_all_single with permutations, for the same choices. Needs GPUs and torch
2.6 or newer; it was written for them and has not been run yet.

    torchrun --nproc-per-node 4 tests/bench/moe_peer.py [--tokens 4096 --hidden 7168 --experts 64 --top-k 8]

Dispatch: sort the choices by expert, exchange their counts, permute the rows, exchange the rows, and permute what came
into the order of local experts. Combine: the same backwards, then the weighted sum. Prints microseconds of the slowest
rank, with and without the exchange of counts, which the host has to wait for.
"""

import argparse
import os
import statistics

import torch
import torch.distributed as dist

DEVICE = torch.accelerator.current_accelerator()


def mix(x):
    x &= 0xffffffff
    x ^= x >> 16
    x = x * 0x7feb352d & 0xffffffff
    x ^= x >> 15
    x = x * 0x846ca68b & 0xffffffff
    return x ^ x >> 16


def choices(rank, tokens, n_experts, top_k):
    """As client/bench/moe.cc."""
    ids = []
    for t in range(tokens):
        every = list(range(n_experts))
        for j in range(top_k):
            at = j + mix(rank * 1000003 + t * 131 + j) % (n_experts - j)
            every[j], every[at] = every[at], every[j]
        ids.append(every[:top_k])
    return torch.tensor(ids, dtype=torch.int64, device=DEVICE)


class Peer:
    """What a layer does in each step."""

    def __init__(self, arguments):
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        self.tokens, self.hidden, self.experts, self.top_k = (arguments.tokens, arguments.hidden, arguments.experts,
                                                              arguments.top_k)
        self.x = torch.randn(self.tokens, self.hidden, device=DEVICE, dtype=torch.bfloat16)
        self.ids = choices(self.rank, self.tokens, self.experts, self.top_k)
        self.weights = torch.full((self.tokens, self.top_k), 1 / self.top_k, device=DEVICE)
        self.plan()

    def plan(self):
        """The counts, which the host needs for the sizes of the exchange."""
        self.order = self.ids.flatten().argsort(stable=True)
        mine = torch.bincount(self.ids.flatten(), minlength=self.experts)
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine)
        local = self.experts // self.n
        self.to = mine.view(self.n, local).sum(1).tolist()
        self.back = theirs.view(self.n, local).sum(1).tolist()
        # Of what comes, by member and then by expert: the order by expert and then by member.
        experts = torch.arange(local, device=DEVICE).repeat(self.n).repeat_interleave(theirs)
        self.by_expert = experts.argsort(stable=True)

    def dispatch(self):
        sent = self.x[self.order // self.top_k]
        came = torch.empty(sum(self.back), self.hidden, device=DEVICE, dtype=self.x.dtype)
        dist.all_to_all_single(came, sent, self.back, self.to)
        self.rows = came[self.by_expert]

    def combine(self):
        sent = torch.empty_like(self.rows)
        sent[self.by_expert] = self.rows
        came = torch.empty(sum(self.to), self.hidden, device=DEVICE, dtype=self.x.dtype)
        dist.all_to_all_single(came, sent, self.to, self.back)
        rows = torch.empty_like(came)
        rows[self.order] = came
        return (rows.view(self.tokens, self.top_k, self.hidden) * self.weights[..., None]).sum(1)


def measure(name, call, samples=20):
    times = []
    for i in range(samples + 3):
        dist.barrier()
        start, end = torch.Event(DEVICE, enable_timing=True), torch.Event(DEVICE, enable_timing=True)
        start.record()
        call()
        end.record()
        torch.accelerator.synchronize()
        took = torch.tensor([start.elapsed_time(end) * 1e3], device=DEVICE)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        if i >= 3:
            times.append(took.item())
    if dist.get_rank() == 0:
        print(f"{name:32} p50 {statistics.median(times):10.1f}  min {min(times):10.1f}  max {max(times):10.1f}  us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    arguments = parser.parse_args()
    if DEVICE is None:
        parser.error("torch finds no accelerator here")
    if not 1 <= arguments.top_k <= arguments.experts:
        parser.error("--top-k is 1 to --experts: a token's experts are different ones")
    torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group()
    if arguments.experts % dist.get_world_size() != 0:
        parser.error("--experts must be a multiple of the number of ranks")
    peer = Peer(arguments)
    peer.dispatch()
    torch.testing.assert_close(peer.combine(), peer.x, atol=2e-2, rtol=2e-2, check_dtype=False)

    def whole():
        peer.plan()
        peer.dispatch()
        peer.combine()

    def both():
        peer.dispatch()
        peer.combine()

    measure("dispatch", peer.dispatch)
    measure("combine", peer.combine)
    measure("dispatch + combine", both)
    measure("counts + dispatch + combine", whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
