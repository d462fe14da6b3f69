#!/usr/bin/env python3
"""One rank of collectives on GPUs of several nodes, by Iris or by torch.distributed, on f32. Rank 0 prints
for each size the median microseconds of a call that is waited for, and of one of 20 in a row.

    iris-run --hosts a:1,b:1 --no-prefix -- python3 tests/bench/nodes_gpu.py iris
    iris-run --hosts a:1,b:1 -x MASTER_ADDR=a -x MASTER_PORT=5701 --no-prefix -- python3 tests/bench/nodes_gpu.py torch
"""

import os
import statistics
import sys
import time

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
IN_A_ROW = 20


class OfIris:

    def __init__(self):
        import iris
        self.context = iris.Context(1 << 29)
        self.rank, self.n_ranks = self.context.rank, self.context.n_ranks
        self.stream = self.context.own_stream

    def tensor(self, count):
        return self.context.ones(count, dtype="float32")

    def call(self, operation, source, target):
        getattr(self.context, operation)(source, target, stream=self.stream)

    def wait(self):
        self.stream.synchronize()

    def meet(self):
        self.context.barrier()

    def close(self):
        self.context.close()


class OfTorch:

    def __init__(self):
        import torch
        import torch.distributed as dist
        self.torch, self.dist = torch, dist
        self.rank, self.n_ranks = int(os.environ["IRIS_RANK"]), int(os.environ["IRIS_N_RANKS"])
        self.device = torch.device(torch.accelerator.current_accelerator().type, int(os.environ["IRIS_LOCAL_RANK"]))
        torch.accelerator.set_device_index(self.device.index)
        dist.init_process_group(rank=self.rank, world_size=self.n_ranks, device_id=self.device)

    def tensor(self, count):
        return self.torch.ones(count, dtype=self.torch.float32, device=self.device)

    def call(self, operation, source, target):
        if operation == "all_reduce":
            self.dist.all_reduce(target)
        elif operation == "all_gather":
            self.dist.all_gather_into_tensor(target, source)
        elif operation == "reduce_scatter":
            self.dist.reduce_scatter_tensor(target, source)
        else:
            self.dist.all_to_all_single(target, source)

    def wait(self):
        self.torch.accelerator.synchronize()

    def meet(self):
        self.dist.barrier()
        self.wait()

    def close(self):
        self.dist.destroy_process_group()


def micros(peer, calls, call):
    start = time.perf_counter()
    for _ in range(calls):
        call()
    peer.wait()
    return (time.perf_counter() - start) * 1e6 / calls


def main():
    peer = {"iris": OfIris, "torch": OfTorch}[sys.argv[1]]()
    for operation in OPERATIONS:
        for size in SIZES:
            count = max(size // 4, peer.n_ranks)
            part = count // peer.n_ranks
            source = peer.tensor(part if operation == "all_gather" else count)
            target = peer.tensor(part if operation == "reduce_scatter" else count)

            def call(operation=operation, source=source, target=target):
                peer.call(operation, source, target)

            micros(peer, 10, call)
            peer.meet()
            alone = statistics.median(micros(peer, 1, call) for _ in range(60 if size <= 1 << 20 else 16))
            rows = []
            for _ in range(5):
                peer.meet()
                rows.append(micros(peer, IN_A_ROW, call))
            if peer.rank == 0:
                row = statistics.median(rows)
                print(f"{operation:15} {size:9} B {alone:9.1f} us {row:9.1f} us in a row", flush=True)
            peer.meet()
    peer.close()


if __name__ == "__main__":
    main()
