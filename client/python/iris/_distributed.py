"""Helpers of the reference system around torch.distributed and file descriptors: its modules iris.host.distributed.
helpers and fd_passing.

Values go over torch's default process group, of any backend, or without one over the ranks of the context made last.
Functions raise RuntimeError if there is neither. All of them are collective over all ranks, or the given group.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy

from iris import _foreign
from iris.context import current_context
from iris.errors import InvalidArgumentError

_CONNECT_SECONDS = 10.0


def _torch_distributed() -> Any:
    """Returns torch.distributed if it has a default group."""
    distributed = getattr(_foreign.loaded_torch(), "distributed", None)
    return distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else (
        None)


def _place() -> Tuple[int, int]:
    """Returns this rank and the number of ranks."""
    distributed, context = _torch_distributed(), current_context()
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size()
    if context is None:
        raise RuntimeError("torch.distributed is not initialized and there is no context of Iris: call "
                           "torch.distributed.init_process_group() or iris.iris() first")
    return context.rank, context.n_ranks


def gather(value: Any) -> List[Any]:
    """Returns the values of all ranks."""
    _, n_ranks = _place()
    distributed, context = _torch_distributed(), current_context()
    if context is not None and (distributed is None or context.n_ranks == n_ranks):
        return context.all_gather_object(value)
    found = [None] * n_ranks
    distributed.all_gather_object(found, value)
    return found


def _on_host(value: Any) -> Any:
    return numpy.asarray(value.detach().cpu() if _foreign.is_torch_tensor(value) else value)


def distributed_allgather(data: Any) -> Any:
    """Returns the one-dimensional arrays of all ranks, equally long, as the rows of an array of numpy."""
    row = _on_host(data)
    if row.ndim != 1:
        raise AssertionError(f"distributed_allgather: the array has {row.ndim} dimensions, and must have 1: use "
                             "distributed_allgather_multidim()")
    return numpy.stack(gather(row))


def distributed_allgather_multidim(data: Any) -> Any:
    """Returns the arrays or tensors of all ranks, of one shape, flattened, as the rows of an array of numpy."""
    return numpy.stack([part.reshape(-1) for part in gather(_on_host(data))])


def _broadcast(value: Any, root: int) -> Any:
    rank, _ = _place()
    if rank == root and value is None:
        raise InvalidArgumentError(f"rank {root}, whose value all ranks get, must give one")
    return gather(value if rank == root else None)[root]


def distributed_broadcast_scalar(value: Any = None, root: int = 0) -> Any:
    """Returns the number, text or other value of rank `root`. Other ranks' values are not used."""
    value = _broadcast(value, root)
    return value.item() if hasattr(value, "item") else value


def distributed_broadcast_tensor(value_to_broadcast: Any = None, root: int = 0) -> Any:
    """Returns the tensor or array of rank `root` as an array of numpy. Other ranks' values are not used."""
    return _broadcast(None if value_to_broadcast is None else _on_host(value_to_broadcast), root)


def distributed_barrier(group: Any = None) -> None:
    """Waits on the host until all ranks of a group of torch, or all ranks, have come."""
    distributed = _torch_distributed()
    if distributed is not None:
        distributed.barrier(group=group)
    else:
        gather(None)


def distributed_device_barrier(flags: Any, group: Any, rank: int, num_ranks: int, heap_bases: Any) -> None:
    """Puts a barrier of the group's ranks on torch's current stream, which may be recorded in a graph. `flags` is a
    tensor of int32 on the symmetric heap with a word for each rank, zero before the first use, for this group alone."""
    from iris._groups import extract_group_info
    from iris._instruments import group_barrier
    _, rank, n_ranks, first, step = extract_group_info(group, rank, num_ranks)
    group_barrier[(1,)](flags, heap_bases, rank, n_ranks, first, step)


def init_distributed() -> Tuple[None, int, int]:
    """Returns None, this rank and the number of ranks."""
    return (None, *_place())


@contextlib.contextmanager
def managed_fd(fd: int) -> Iterator[int]:
    """Closes a file descriptor at the end of a `with` block."""
    try:
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def send_fd(sock: socket.socket, fd: int, payload: bytes = b"\x00") -> None:
    """Sends a file descriptor, with at least one byte, over a connected Unix socket."""
    if fd < 0:
        raise InvalidArgumentError(f"{fd} is no file descriptor: it must be 0 or more")
    socket.send_fds(sock, [payload], [fd])


def recv_fd(sock: socket.socket, payload_size: int = 1) -> Tuple[int, bytes]:
    """Returns the file descriptor and the bytes that send_fd() has sent. The caller closes it. Raises RuntimeError if
    a message without one came."""
    payload, fds, _, _ = socket.recv_fds(sock, payload_size, 1)
    if not fds:
        raise RuntimeError("a message without a file descriptor came")
    return fds[0], payload


def make_rank_sock_path(prefix: str, rank: int, instance_id: int = 0) -> str:
    """Returns the path of the socket of a rank of this process."""
    return f"/tmp/{prefix}-{os.getpid()}-{instance_id}-{rank}.sock"


def recv_exact(sock: socket.socket, n: int) -> bytes:
    """Receives n bytes. Raises ConnectionError if the socket is closed before."""
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            raise ConnectionError(f"the socket was closed after {len(data)} of {n} bytes")
        data += part
    return data


def setup_fd_mesh(rank: int, world_size: int, all_paths: Dict[int, str]) -> Dict[int, socket.socket]:
    """Connects this rank with all others, and returns the sockets by rank. A rank listens at its path and connects to
    the ranks before it. Raises TimeoutError if a rank is silent for ten seconds, and ConnectionError if something else
    connects."""
    sockets: Dict[int, socket.socket] = {}
    with contextlib.suppress(FileNotFoundError):
        os.unlink(all_paths[rank])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(all_paths[rank])
        listener.listen(world_size)
        for peer in range(rank):
            sockets[peer] = _connect(all_paths[peer], peer)
            sockets[peer].sendall(rank.to_bytes(4, "little"))
        listener.settimeout(_CONNECT_SECONDS)
        while len(sockets) < world_size - 1:
            peer_socket, _ = listener.accept()
            peer_socket.settimeout(_CONNECT_SECONDS)
            peer = int.from_bytes(recv_exact(peer_socket, 4), "little")
            if peer in sockets or not rank < peer < world_size:
                raise ConnectionError(f"what connected to {all_paths[rank]} says that it is rank {peer}, which is not "
                                      "awaited: another program uses this path")
            peer_socket.settimeout(None)
            sockets[peer] = peer_socket
    with contextlib.suppress(FileNotFoundError):
        os.unlink(all_paths[rank])
    return sockets


def _connect(path: str, peer: int) -> socket.socket:
    end = time.monotonic() + _CONNECT_SECONDS
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(path)
            return made
        except (FileNotFoundError, ConnectionRefusedError) as error:
            made.close()
            if time.monotonic() > end:
                raise TimeoutError(f"rank {peer} does not listen at {path} within {_CONNECT_SECONDS:.0f} s") from error
            time.sleep(0.01)


def setup_fd_infrastructure(cur_rank: int, num_ranks: int, instance_id: int = 0) -> Optional[Dict[int, socket.socket]]:
    """Calls setup_fd_mesh() with paths on which all ranks agree. Returns None for a single rank."""
    if num_ranks <= 1:
        return None
    paths = gather(make_rank_sock_path("iris-fd", cur_rank, instance_id))
    sockets = setup_fd_mesh(cur_rank, num_ranks, dict(enumerate(paths)))
    distributed_barrier()
    return sockets
