"""A rank of a job on several nodes, for nodes_test.py: the GEMMs of ctx.ops, as the reference system has them, and
what is said of memory that is not mapped."""

import iris
import iris.symm_mem as symm_mem
import torch

M = N = K = 256


def product(a, b):
    return a.float() @ b.float()


def main():
    shmem = iris.iris(64 << 20)
    n, me = shmem.get_num_ranks(), shmem.get_rank()
    random = torch.Generator().manual_seed(5)
    all_a = [torch.randint(-3, 4, (M, K), generator=random).half() for _ in range(n)]
    all_b = [torch.randint(-1, 2, (K, N), generator=random).half() for _ in range(n)]
    first_b, bias = all_b[0], (torch.arange(M) % 7).half()
    total = sum(product(a, b) for a, b in zip(all_a, all_b))
    # Iris's own operations have no matrices of float32, and no bias of the rows.
    for dtype in (torch.float16, torch.float32):

        def heap(rows, columns, values=None):
            made = shmem.zeros((rows, columns), dtype=dtype)
            if values is not None:
                made.copy_(values)
            shmem.barrier()
            return made

        a = heap(M, K, all_a[me])
        c = heap(M, N)
        shmem.ops.matmul_all_reduce(c, a, all_b[me].to(dtype))
        assert torch.equal(c.float(), total), f"matmul_all_reduce of {dtype}"
        c = heap(M, N)
        shmem.ops.matmul_reduce_scatter(c, a, all_b[me].to(dtype))
        mine = c.float() == total
        assert torch.all(mine | (c == 0)) and mine.sum() >= M * N // n, f"matmul_reduce_scatter of {dtype}"
        part = heap(M, K // n, all_a[me][:, :K // n])
        whole = torch.cat([each[:, :K // n] for each in all_a], 1)
        shmem.ops.all_gather_matmul(c, part, first_b.to(dtype), bias.to(dtype))
        assert torch.equal(c.float(), product(whole, first_b) + bias.float()[:, None]), f"all_gather_matmul of {dtype}"
        for added in (None, bias):
            c = heap(n * M, N)
            shmem.ops.matmul_all_gather(c, a, first_b.to(dtype), None if added is None else added.to(dtype))
            more = 0 if added is None else added.float()[:, None]
            wanted = torch.cat([product(each, first_b) + more for each in all_a])
            assert torch.equal(c.float(), wanted), f"matmul_all_gather of {dtype}"
    context = shmem.context
    there = [rank for rank in range(n) if not context.reaches(rank)]
    tensor = context.zeros(n)
    for rank in there:
        assert context.heap_bases[rank] == 0
        context.put(tensor.at(rank)[me:me + 1], torch.full((1,), me + 1.0), rank)
        try:
            tensor.at(rank).to_host()
            raise AssertionError("a view of memory that is not mapped")
        except iris.UnimplementedError as error:
            assert f"rank {rank} is on another node" in str(error), error
    context.barrier()
    assert there and tensor.at(me).to_host().tolist() == [rank + 1 if rank in there else 0 for rank in range(n)]
    buffer = symm_mem.empty(4, dtype=torch.float32)
    handle = symm_mem.rendezvous(buffer, context.world)
    handle.put_signal((me + 1) % n)
    handle.wait_signal((me - 1) % n)
    shmem.barrier()
    print("gemms ok")


main()
