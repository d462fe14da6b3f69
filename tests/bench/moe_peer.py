#!/usr/bin/env python3
"""The peer of `iris_bench moe`: torch's all_to_all_single with permutations, for the same choices. On GPUs (torch 2.6
or newer) bfloat16 with the vendor's library of collectives; without them float32 with gloo, which shows that it works.

    iris-run -n 4 -- iris_bench moe --moe-peers-command 'python3 tests/bench/moe_peer.py --ranks {ranks}'
    python3 tests/bench/moe_peer.py --ranks 4 [--tokens 4096 --hidden 7168 --experts 64 --top-k 8]
    torchrun --nproc-per-node 4 tests/bench/moe_peer.py

Dispatch: sort the choices by expert, exchange their counts, permute the rows, exchange the rows, and permute what came
into the order of local experts. Combine: the same backwards, then the weighted sum. Prints lines of JSON with the
microseconds of the slowest rank, without the exchange of counts, which the host has to wait for, and with it
("with counts").
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

# None in older versions of torch, and where there is no GPU.
ACCELERATOR = getattr(torch, "accelerator", None)
if ACCELERATOR is not None and not ACCELERATOR.is_available():
    ACCELERATOR = None


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
    return torch.tensor(ids, dtype=torch.int64)


class Peer:
    """What a layer does in each step."""

    def __init__(self, arguments, device):
        self.n, self.rank, self.device = dist.get_world_size(), dist.get_rank(), device
        self.tokens, self.hidden, self.experts, self.top_k = (arguments.tokens, arguments.hidden, arguments.experts,
                                                              arguments.top_k)
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self.x = torch.randn(self.tokens, self.hidden, device=device).to(dtype)
        self.ids = choices(self.rank, self.tokens, self.experts, self.top_k).to(device)
        self.weights = torch.full((self.tokens, self.top_k), 1 / self.top_k, device=device, dtype=dtype)
        self.plan()

    def plan(self):
        """The counts, which the host needs for the sizes of the exchange."""
        self.order = torch.sort(self.ids.flatten(), stable=True).indices
        mine = torch.bincount(self.ids.flatten(), minlength=self.experts)
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine)
        local = self.experts // self.n
        self.to = mine.view(self.n, local).sum(1).tolist()
        self.back = theirs.view(self.n, local).sum(1).tolist()
        # Of what comes, by member and then by expert: the order by expert and then by member.
        experts = torch.arange(local, device=self.device).repeat(self.n).repeat_interleave(theirs)
        self.by_expert = torch.sort(experts, stable=True).indices

    def dispatch(self):
        sent = self.x[torch.div(self.order, self.top_k, rounding_mode="floor")]
        came = torch.empty(sum(self.back), self.hidden, device=self.device, dtype=self.x.dtype)
        dist.all_to_all_single(came, sent, self.back, self.to)
        self.rows = came[self.by_expert]

    def combine(self):
        sent = torch.empty_like(self.rows)
        sent[self.by_expert] = self.rows
        came = torch.empty(sum(self.to), self.hidden, device=self.device, dtype=self.x.dtype)
        dist.all_to_all_single(came, sent, self.to, self.back)
        rows = torch.empty_like(came)
        rows[self.order] = came
        return (rows.view(self.tokens, self.top_k, self.hidden) * self.weights[..., None]).sum(1)

    def both(self):
        self.dispatch()
        return self.combine()

    def whole(self):
        self.plan()
        return self.both()


def microseconds(device, call):
    """How long it takes on this rank."""
    if device.type == "cpu":
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6
    start, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
    start.record()
    call()
    end.record()
    ACCELERATOR.synchronize()
    return start.elapsed_time(end) * 1e3


def measure(peer, operation, variant, call, samples):
    times = []
    for i in range(samples + 3):
        dist.barrier()
        took = torch.tensor([microseconds(peer.device, call)], device=peer.device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        if i >= 3:
            times.append(took.item())
    if peer.rank == 0:
        print(json.dumps({"lib": "torch", "op": operation, "variant": variant, "n": peer.n,
                          "shape": [peer.tokens, peer.hidden, peer.top_k], "us": round(statistics.median(times), 1),
                          "min": round(min(times), 1), "max": round(max(times), 1)}), flush=True)


def run(rank, arguments, place):
    """One rank. `place`: a file where the ranks meet; None: as torchrun says."""
    device = torch.device("cpu")
    if ACCELERATOR is not None:
        device = torch.device(ACCELERATOR.current_accelerator().type, int(os.environ.get("LOCAL_RANK", rank)))
        ACCELERATOR.set_device_index(device.index)
    where = {} if place is None else {"init_method": "file://" + place, "rank": rank, "world_size": arguments.ranks}
    dist.init_process_group("gloo" if ACCELERATOR is None else dist.get_default_backend_for_device(device), **where)
    try:
        if arguments.experts % dist.get_world_size() != 0:
            raise SystemExit("--experts must be a multiple of the number of ranks")
        peer = Peer(arguments, device)
        # The experts do nothing and the weights add up to one: what comes back is x.
        torch.testing.assert_close(peer.both().float(), peer.x.float(), atol=2e-2, rtol=2e-2)
        measure(peer, "moe_dispatch", "", peer.dispatch, arguments.samples)
        measure(peer, "moe_combine", "", peer.combine, arguments.samples)
        measure(peer, "moe_dispatch_combine", "", peer.both, arguments.samples)
        measure(peer, "moe_dispatch_combine", "with counts", peer.whole, arguments.samples)
    finally:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="processes that this one starts [torchrun has started them]")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--samples", type=int, default=20)
    arguments = parser.parse_args()
    for name in ("tokens", "hidden", "experts", "samples"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is at least 1")
    if not 1 <= arguments.top_k <= arguments.experts:
        parser.error("--top-k is 1 to --experts: a token's experts are different ones")
    if arguments.ranks is None:
        if "RANK" not in os.environ:
            parser.error("--ranks says how many processes to start, where torchrun has started none")
        run(int(os.environ["RANK"]), arguments, None)
        return
    gpus = None if ACCELERATOR is None else ACCELERATOR.device_count()
    if arguments.ranks < 1 or (gpus is not None and arguments.ranks > gpus):
        parser.error("--ranks is 1 or more" + ("" if gpus is None else f", a GPU for each: there are {gpus}"))
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (arguments, os.path.join(folder, "meet")), arguments.ranks)


if __name__ == "__main__":
    main()
