"""Which rank is on which machine and GPU: the reference's module iris.host.distributed.topology.

The answers come from torch and the operating system. irisd decides by itself how ranks reach each other, so nothing in
Iris depends on this module: `iris-ctl doctor` checks how devices reach each other.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set

from iris import _distributed, _platform
from iris._platform import IntraNodeLinkType


class InterconnectLevel(_platform.Named):
    """How far apart two ranks are."""

    INTRA_NODE = 0
    INTRA_RACK_FABRIC = 1
    INTER_NODE_RDMA = 2


@dataclass
class FabricInfo:
    """The fabric of a GPU that reaches other machines. Discovery finds none: it leaves both empty."""

    cluster_uuid: str = ""
    clique_id: int = 0

    @property
    def is_valid(self) -> bool:
        """True if the GPU is in such a fabric."""
        return bool(self.cluster_uuid)

    @property
    def domain_key(self) -> str:
        """A text that GPUs of one fabric share, or ""."""
        return f"{self.cluster_uuid}:{self.clique_id}" if self.is_valid else ""

    def to_dict(self) -> Dict[str, Any]:
        """Returns the fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, d: Dict[str, Any]) -> "FabricInfo":
        """Makes the object of to_dict()."""
        return cls(**d)


@dataclass
class GPUInfo:
    """The GPU of a rank."""

    global_rank: int
    local_rank: int
    hostname: str
    gpu_id: int
    pci_bus_id: str
    device_name: str
    total_memory_mb: int
    numa_node: int
    vendor: str
    uuid: str
    fabric_info: FabricInfo = field(default_factory=FabricInfo)

    def to_dict(self) -> Dict[str, Any]:
        """Returns the fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, d: Dict[str, Any]) -> "GPUInfo":
        """Makes the object of to_dict()."""
        fields: Dict[str, Any] = {**d, "fabric_info": FabricInfo.from_dict(d.get("fabric_info", {}))}
        return cls(**fields)


@dataclass
class NodeInfo:
    """A machine. GPUs are counted by their addresses on the bus, because ranks may share one."""

    hostname: str
    ranks: List[int] = field(default_factory=list)
    gpu_ids: List[int] = field(default_factory=list)
    unique_gpu_ids: List[int] = field(default_factory=list)
    unique_pci_ids: List[str] = field(default_factory=list)
    num_gpus: int = 0
    num_ranks: int = 0
    has_infiniband: bool = False
    ib_devices: List[str] = field(default_factory=list)
    link_types: Optional[List[List[int]]] = None
    p2p_access: Optional[List[List[bool]]] = None
    fabric_domain_key: str = ""
    fabric_domain_keys: List[str] = field(default_factory=list)

    def get_link_type(self, gpu_id_a: int, gpu_id_b: int) -> IntraNodeLinkType:
        """Returns the link between two GPUs of this machine, UNKNOWN if it is not known."""
        table = self.link_types
        if table is None or max(gpu_id_a, gpu_id_b) >= len(table):
            return IntraNodeLinkType.SELF if gpu_id_a == gpu_id_b and table is not None else IntraNodeLinkType.UNKNOWN
        return IntraNodeLinkType(table[gpu_id_a][gpu_id_b])

    def can_p2p_access(self, gpu_id_a: int, gpu_id_b: int) -> bool:
        """Returns True if the GPUs reach each other's memory. A GPU reaches its own."""
        table = self.p2p_access
        return gpu_id_a == gpu_id_b or (
            table is not None and max(gpu_id_a, gpu_id_b) < len(table) and table[gpu_id_a][gpu_id_b])


@dataclass
class TopologyMap:
    """All ranks, by machine and fabric."""

    world_size: int
    num_nodes: int
    gpu_info: Dict[int, GPUInfo]
    nodes: Dict[str, NodeInfo]
    fabric_domains: Dict[str, List[str]]

    def get_interconnect_level(self, rank_a: int, rank_b: int) -> InterconnectLevel:
        """Returns how far apart two ranks are."""
        if rank_a == rank_b or rank_b in self.get_node_peers(rank_a):
            return InterconnectLevel.INTRA_NODE
        return (InterconnectLevel.INTRA_RACK_FABRIC if rank_b in self.get_fabric_domain_peers(rank_a) else
                InterconnectLevel.INTER_NODE_RDMA)

    def _others(self, rank: int, key: Any) -> Set[int]:
        wanted = key(self.gpu_info[rank])
        return {other for other, info in self.gpu_info.items() if other != rank and wanted and key(info) == wanted}

    def get_node_peers(self, rank: int) -> Set[int]:
        """Returns the other ranks of a rank's machine."""
        return self._others(rank, lambda info: info.hostname)

    def get_fabric_domain_peers(self, rank: int) -> Set[int]:
        """Returns the other ranks of a rank's fabric."""
        return self._others(rank, lambda info: info.fabric_info.domain_key)

    def get_rdma_peers(self, rank: int) -> Set[int]:
        """Returns the ranks that share neither machine nor fabric with a rank."""
        return set(self.gpu_info) - self.get_node_peers(rank) - self.get_fabric_domain_peers(rank) - {rank}

    def get_ranks_for_node(self, hostname: str) -> List[int]:
        """Returns the ranks of a machine in order; none if it has no rank."""
        return sorted(self.nodes[hostname].ranks) if hostname in self.nodes else []

    def get_ranks_for_fabric_domain(self, domain_key: str) -> List[int]:
        """Returns the ranks of a fabric's machines in order."""
        return sorted(rank for name in self.fabric_domains.get(domain_key, [])
                      for rank in self.get_ranks_for_node(name))

    def summary(self) -> str:
        """Returns a text for people, with a line for each machine and each rank."""
        lines = [f"{self.world_size} ranks on {self.num_nodes} nodes, {len(self.fabric_domains)} fabric domains"]
        for name, node in sorted(self.nodes.items()):
            lines.append(f"  {name}: {node.num_gpus} GPUs, {node.num_ranks} ranks, InfiniBand: "
                         f"{', '.join(node.ib_devices) or 'none'}")
            for info in (self.gpu_info[rank] for rank in node.ranks):
                lines.append(f"    rank {info.global_rank}: GPU {info.gpu_id} ({info.pci_bus_id}), {info.device_name}, "
                             f"{info.total_memory_mb} MiB, NUMA node {info.numa_node}")
        return "\n".join(lines)


def _ib_devices() -> List[str]:
    try:
        return sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        return []


def _numa_node(pci_bus_id: str) -> int:
    try:
        with open(f"/sys/bus/pci/devices/{pci_bus_id}/numa_node", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1


class TopologyDiscovery:
    """Finds the topology. The place of this rank is that of an Iris object, or else of torch.distributed: RuntimeError
    if there is neither."""

    def __init__(self, iris_ctx: Any = None) -> None:
        if iris_ctx is None:
            _, self.rank, self.world_size = _distributed.init_distributed()
            self.gpu_id = _platform.get_device_id()
        else:
            self.rank, self.world_size, self.gpu_id = iris_ctx.cur_rank, iris_ctx.num_ranks, iris_ctx.gpu_id
        self._topology: Optional[TopologyMap] = None

    @property
    def topology(self) -> Optional[TopologyMap]:
        """The result of discover(), or None before."""
        return self._topology

    def discover(self) -> TopologyMap:
        """Asks all ranks about their machine and GPU. Collective over all ranks."""
        known = _platform.identify(self.gpu_id)
        own = GPUInfo(global_rank=self.rank, local_rank=0, hostname=socket.gethostname(), gpu_id=self.gpu_id,
                      numa_node=_numa_node(known["pci_bus_id"]), **known)
        told = _distributed.gather((own, _ib_devices(), _platform.peer_access()))
        infos = {info.global_rank: info for info, _, _ in told}
        nodes: Dict[str, NodeInfo] = {}
        for rank, (info, devices, access) in sorted(zip(infos, told)):
            node = nodes.setdefault(info.hostname, NodeInfo(
                info.hostname, has_infiniband=bool(devices), ib_devices=devices, p2p_access=access))
            info.local_rank = len(node.ranks)
            node.ranks.append(rank)
            node.gpu_ids.append(info.gpu_id)
        domains: Dict[str, List[str]] = {}
        for name, node in nodes.items():
            there = [infos[rank] for rank in node.ranks]
            node.unique_gpu_ids = sorted({info.gpu_id for info in there})
            node.unique_pci_ids = sorted({info.pci_bus_id for info in there} - {"unknown"})
            node.num_gpus, node.num_ranks = len(node.unique_pci_ids or node.unique_gpu_ids), len(there)
            node.fabric_domain_keys = sorted({info.fabric_info.domain_key for info in there} - {""})
            node.fabric_domain_key = (node.fabric_domain_keys or [""])[0]
            for key in node.fabric_domain_keys:
                domains.setdefault(key, []).append(name)
        self._topology = TopologyMap(self.world_size, len(nodes), infos, nodes, domains)
        return self._topology

    def _known(self) -> TopologyMap:
        if self._topology is None:
            raise RuntimeError("the topology is not known yet: call discover() first")
        return self._topology

    def get_communication_groups(self) -> Dict[InterconnectLevel, List[List[int]]]:
        """Returns the groups of ranks that are at most as far apart as each level says. RuntimeError before
        discover()."""
        found = self._known()
        nodes = [sorted(node.ranks) for _, node in sorted(found.nodes.items())]
        fabrics = [found.get_ranks_for_fabric_domain(key) for key in sorted(found.fabric_domains)]
        alone = [sorted(node.ranks) for _, node in sorted(found.nodes.items()) if not node.fabric_domain_keys]
        return {InterconnectLevel.INTRA_NODE: nodes,
                InterconnectLevel.INTRA_RACK_FABRIC: fabrics + alone if fabrics else [],
                InterconnectLevel.INTER_NODE_RDMA: [sorted(found.gpu_info)]}

    def get_heap_distribution_plan(self) -> Dict[int, Dict[str, Any]]:
        """Returns, for each rank, its place and the ranks at each distance. RuntimeError before discover()."""
        found = self._known()
        return {rank: {"ipc_peers": sorted(found.get_node_peers(rank)),
                       "fabric_peers": sorted(found.get_fabric_domain_peers(rank) - found.get_node_peers(rank)),
                       "rdma_peers": sorted(found.get_rdma_peers(rank)), "node": info.hostname,
                       "local_rank": info.local_rank, "gpu_id": info.gpu_id,
                       "fabric_domain": info.fabric_info.domain_key} for rank, info in found.gpu_info.items()}
