"""The reference's modules by their paths there (`iris.ccl.config`, `iris.hip`), which are no files here.

TABLE says which names each of them has, and where in this package they are. register(), called by `import iris`, puts a
module object for each path into sys.modules, so that every form of import finds it, and an import never replaces a
function of the package that has the name of a module (`iris.ops.matmul_all_reduce`). A name is looked up at its first
use, and a name that Iris refuses raises the reason: AttributeError at a use, ImportError in an import.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import sys
import types
from typing import Any, Dict, List, Optional, Sequence, Tuple

# Why a name is refused, and what to use in its place.
REASONS = {
    "driver": "irisd alone allocates, exports and maps the heaps' memory, and programs hold no handles of the driver: "
              "allocate with the factories of iris.iris(), and share other memory with ctx.as_symmetric(tensor), or "
              "with ctx.context.register() and open()",
    "kernel": "it is a kernel or a launcher inside the reference's collectives: call functions of ctx.ccl or ctx.ops",
    "engine": "the queues of the copy engines belong to the driver: use ctx.context.put() and get(), which use the "
              "copy engines",
    "topology": "irisd finds out by itself how ranks reach each other: ctx.context.reaches(rank) says whether kernels "
                "reach a rank's memory, and iris-ctl nodes and iris-ctl doctor show nodes, devices and links",
    "artifacts": "Triton keeps its compiler's results itself: launch the kernel as usual, with TRITON_KERNEL_DUMP=1 "
                 "and TRITON_DUMP_DIR=FOLDER, or read `asm` of the compiled kernel that a launch returns",
}

_RMA = ("load store copy get put atomic_add atomic_sub atomic_cas atomic_xchg atomic_xor atomic_and atomic_or "
        "atomic_min atomic_max quiet")
_TILES = "Tile TileView TensorView AllReduceConfig make_tensor_view"
_TILE_HELPERS = "tile_layout tile_ptr offset_ptr chiplet_transform_chunked compute_tile_indices compute_tile_offsets"
_BENCH = "AxisDef BenchmarkDef Result State power_of_two linear_range axis register"
_FACTORIES = "zeros ones full zeros_like empty uniform randn rand randint arange linspace"
_HANDLES = ("gpu_runtime get_ipc_handle_size gpuIpcMemHandle_t open_ipc_handle get_ipc_handle export_dmabuf_handle "
            "import_dmabuf_handle destroy_external_memory "
            "hipMemAllocationTypePinned hipMemHandleTypePosixFileDescriptor hipMemLocationTypeDevice "
            "hipMemAllocationGranularityRecommended hipMemAccessFlagsProtReadWrite hipMemGenericAllocationHandle_t "
            "hipMemLocation hipMemAllocationProp hipMemAccessDesc get_allocation_granularity mem_create "
            "mem_export_to_shareable_handle mem_import_from_shareable_handle mem_address_reserve mem_map mem_unmap "
            "mem_address_free mem_release mem_set_access")
_ENGINE = ("sdma_ep bind_sdma_ep wrap_into_ring can_write_up_to acquire acquire_fadd submit quiet place_nop_packet "
           "place_copy_packet place_atomic_packet place_atomic_add_packet place_atomic_cas_packet "
           "place_poll_regmem_packet place_sub_window_copy_packet")
_WORKSPACE = "AllReduceWorkspace VARIANT_ATOMIC VARIANT_RING VARIANT_TWO_SHOT VARIANT_ONE_SHOT VARIANT_SPINLOCK"
_ALL_REDUCES = ("persistent_all_reduce_atomic persistent_all_reduce_spinlock persistent_all_reduce_one_shot "
                "persistent_all_reduce_ring persistent_all_reduce_two_shot")

# Path: "module of Iris: names; ...". A name that differs is theirs=ours, and names in "-reason: names" are refused. A
# path that has refused names alone cannot be imported. A path that is a file of ours has here the names that are
# elsewhere. The paths are those of May 2026, and those of March and October that have other names.
TABLE: Dict[str, str] = {
    "iris": f"iris._triton: {_RMA} put_signal signal translate wait_until; iris.x: x {_TILES};"
            "iris._device_context: DeviceContext;"
            "iris._instruments: TraceEvent; iris._foreign: CUDAArrayInterface tensor_from_ptr;"
            "iris._platform: get_device_id_for_rank is_simulation_env",
    "iris.bench": f"iris._benchmarks: {_BENCH} main",
    "iris.bench._core": f"iris._benchmarks: {_BENCH}",
    "iris.bench._runner": "iris._benchmarks: main",
    "iris.ccl": "iris._ccl: Config ReduceOp",
    "iris.ccl.all_gather": "iris._ccl: all_gather; -kernel: persistent_all_gather persistent_all_gather_partitioned",
    "iris.ccl.all_reduce": f"iris._ccl: all_reduce all_reduce_preamble {_WORKSPACE}; -kernel: {_ALL_REDUCES}",
    "iris.ccl.all_to_all": "iris._ccl: all_to_all; -kernel: persistent_all_to_all",
    "iris.ccl.config": "iris._ccl: Config",
    "iris.ccl.gluon": "-kernel: all_gather",
    "iris.ccl.gluon.all_gather": "-kernel: persistent_all_gather_gluon launch",
    "iris.ccl.gluon.all_to_all":
        "iris._gluon: chiplet_transform_chunked_gluon; -kernel: persistent_all_to_all_gluon launch",
    "iris.ccl.reduce_scatter": "iris._ccl: reduce_scatter; -kernel: persistent_reduce_scatter_two_shot",
    "iris.ccl.triton": "",
    "iris.ccl.triton.all_gather": "-kernel: persistent_all_gather persistent_all_gather_partitioned launch",
    "iris.ccl.triton.all_reduce": f"iris._ccl: all_reduce_preamble {_WORKSPACE}; -kernel: {_ALL_REDUCES} launch",
    "iris.ccl.triton.all_to_all": "-kernel: persistent_all_to_all launch",
    "iris.ccl.triton.reduce_scatter": "-kernel: persistent_reduce_scatter_two_shot launch",
    "iris.ccl.utils": "iris._ccl: ReduceOp extract_group_info; iris.x: chiplet_transform_chunked",
    "iris.drivers": "-driver: DriverStack get_driver_stack",
    "iris.drivers.base":
        "-driver: BaseDriver BaseFabricDriver CleanupTarget DriverError DriverNotSupported ExportableMemory "
        "LocalAllocation MappingPlacement PeerMapping",
    "iris.drivers.fabric": "-driver: fabric_handle_bytes_to_tensor fabric_tensor_to_handle_bytes",
    "iris.drivers.factory": "-driver: DriverFactory",
    "iris.drivers.fabric.amd": "-driver: AmdFabricDriver AmdFabricError AmdFabricNotSupported",
    "iris.drivers.fabric.nvidia": "-driver: CudaFabricError CudaFabricNotSupported NvidiaFabricDriver",
    "iris.drivers.local": "-driver: LocalCudaDriver LocalHipDriver",
    "iris.drivers.local.amd": "-driver: LocalHipDriver LocalHipError LocalHipNotSupported",
    "iris.drivers.local.nvidia": "-driver: LocalCudaDriver LocalCudaError LocalCudaNotSupported",
    "iris.experimental": "",
    "iris.experimental.iris_gluon": "iris.reference: iris IrisGluon=Iris; iris._gluon: IrisDeviceCtx",
    "iris.experimental.rocshmem_provider": "-driver: RocshmemProvider SymmetricAddressMap",
    "iris.gluon": "iris._gluon: IrisDeviceCtx; iris._instruments: GluonDeviceTracing=DeviceTracing",
    "iris.host": "",
    "iris.host.distributed": "",
    "iris.host.distributed.fd_passing":
        "iris._distributed: managed_fd send_fd recv_fd make_rank_sock_path recv_exact setup_fd_mesh "
        "setup_fd_infrastructure",
    "iris.host.distributed.helpers":
        "iris._distributed: distributed_allgather distributed_allgather_multidim distributed_broadcast_scalar "
        "distributed_broadcast_tensor distributed_barrier distributed_device_barrier init_distributed;"
        "iris._groups: extract_group_info",
    "iris.host.distributed.topology":
        "-topology: InterconnectLevel IntraNodeLinkType FabricInfo GPUInfo NodeInfo TopologyMap TopologyDiscovery",
    "iris.host.iris": "iris.reference: Iris iris",
    "iris.host.logging": "iris.logging: set_logger_level logger DEBUG INFO WARNING ERROR",
    "iris.host.memory": "",
    "iris.host.memory.allocators": "iris._ref_heap: BaseAllocator TorchAllocator VMemAllocator",
    "iris.host.memory.allocators.base": "iris._ref_heap: BaseAllocator",
    "iris.host.memory.allocators.torch_allocator": "iris._ref_heap: TorchAllocator",
    "iris.host.memory.allocators.vmem_allocator": "iris._ref_heap: VMemAllocator",
    "iris.host.memory.allocators.vmem_chunked_allocator": "iris._ref_heap: VMemChunkedAllocator=VMemAllocator",
    "iris.host.memory.symmetric_heap": "iris._ref_heap: SymmetricHeap",
    "iris.host.memory.tensor_utils": "iris._foreign: CUDAArrayInterface tensor_from_ptr",
    "iris.host.memory.tensors":
        f"iris._ref_tensors: {_FACTORIES} allocate parse_size is_valid_device throw_if_invalid_device "
        "throw_if_invalid_output_tensor apply_layout apply_memory_format",
    "iris.host.platform": "",
    "iris.host.platform.hip":
        "iris._platform: gpu_try count_devices set_device get_device_id get_cu_count get_rocm_version "
        "get_wall_clock_rate get_arch_string get_num_xcc malloc_fine_grained hip_malloc hip_free get_address_range;"
        f"-driver: {_HANDLES}",
    "iris.host.platform.libs": "-driver: load_vendor_library",
    "iris.host.platform.utils":
        "iris._platform: is_simulation_env get_simulation_device_id get_device_id_for_rank "
        "get_empty_cache_for_benchmark clear_cache create_timing_event; iris.bench: do_bench",
    "iris.tracing.kernel_artifacts": "-artifacts: is_enabled iris_launch",
    "iris.iris": f"iris.reference: Iris iris; iris._device_context: DeviceContext; iris._triton: {_RMA};"
                 "iris._instruments: TraceEvent",
    "iris.logging": "",
    "iris.mem": "",
    "iris.mem.gluon": "iris._gluon: Context=IrisDeviceCtx IrisDeviceCtx;"
                      "iris._instruments: Tracing=DeviceTracing GluonDeviceTracing=DeviceTracing",
    "iris.mem.gluon.context": "iris._gluon: Context=IrisDeviceCtx IrisDeviceCtx",
    "iris.mem.gluon.tracing": "iris._instruments: Tracing=DeviceTracing GluonDeviceTracing=DeviceTracing",
    "iris.mem.triton": f"iris._triton: {_RMA}; iris.x: {_TILES} {_TILE_HELPERS};"
                       "iris._device_context: Context=DeviceContext DeviceContext;"
                       "iris._instruments: Tracing=DeviceTracing DeviceTracing",
    "iris.mem.triton.context":
        "iris._device_context: Context=DeviceContext DeviceContext; iris._triton: __translate=translate",
    "iris.mem.triton.ops": f"iris._triton: {_RMA}",
    "iris.mem.triton.tracing": "iris._instruments: Tracing=DeviceTracing DeviceTracing",
    "iris.mem.triton.types": f"iris.x: {_TILES} {_TILE_HELPERS}",
    "iris.mem.sdma_utils": f"-engine: {_ENGINE}",
    "iris.mem.utils": "iris._instruments: read_realtime get_xcc_id get_cu_id get_se_id wait_cnt",
    "iris.ops": "iris._fused: FusedConfig FusedWorkspace OpsNamespace all_gather_matmul_hbm_buffer "
                "all_gather_matmul_hbm_buffer_preamble",
    "iris.ops.all_gather_matmul": "iris._fused: all_gather_matmul all_gather_matmul_preamble",
    "iris.ops.all_gather_matmul_hbm_buffer":
        "iris._fused: all_gather_matmul_hbm_buffer all_gather_matmul_hbm_buffer_preamble",
    "iris.ops.config": "iris._fused: FusedConfig",
    "iris.ops.matmul_all_gather": "iris._fused: matmul_all_gather matmul_all_gather_preamble",
    "iris.ops.matmul_all_reduce": "iris._fused: matmul_all_reduce matmul_all_reduce_preamble",
    "iris.ops.matmul_reduce_scatter": "iris._fused: matmul_reduce_scatter matmul_reduce_scatter_preamble",
    "iris.ops.workspace": "iris._fused: FusedWorkspace",
    "iris.tracing": "iris._kernel_trace: EVENT_NAMES Tracing; iris._instruments: TraceEvent DeviceTracing;"
                    "-artifacts: kernel_artifacts",
    "iris.tracing.core": "iris._kernel_trace: Tracing",
    "iris.tracing.events": "iris._kernel_trace: EVENT_NAMES; iris._instruments: TraceEvent",
    "iris.x.all_gather": "iris.x: all_gather",
    "iris.x.all_reduce": "iris.x: all_reduce all_reduce_atomic all_reduce_spinlock all_reduce_one_shot all_reduce_ring "
                         "all_reduce_two_shot",
    "iris.x.all_to_all": "iris.x: all_to_all",
    "iris.x.common": "iris.x: chiplet_transform_chunked compute_tile_indices compute_tile_offsets",
    "iris.x.gather": "iris.x: gather",
    "iris.x.reduce_scatter": "iris.x: reduce_scatter",
}

# Second paths of modules and of what is in them; most are those of March 2026.
ALIASES = {
    "iris.allocators": "iris.host.memory.allocators",
    "iris.device": "iris.mem",
    "iris.device_utils": "iris.mem.utils",
    "iris._distributed_helpers": "iris.host.distributed.helpers",
    "iris.experimental.gluon_context": "iris.mem.gluon.context",
    "iris.fd_passing": "iris.host.distributed.fd_passing",
    "iris.hip": "iris.host.platform.hip",
    "iris.host.logging.logging": "iris.logging",
    "iris.host.tracing": "iris.tracing",
    "iris.kernel_artifacts": "iris.tracing.kernel_artifacts",
    "iris.symmetric_heap": "iris.host.memory.symmetric_heap",
    "iris.tensor_creation": "iris.host.memory.tensors",
    "iris.tensor_utils": "iris.host.memory.tensor_utils",
    "iris.topology": "iris.host.distributed.topology",
    "iris.tracing.device": "iris.mem.triton.tracing",
    "iris.util": "iris.host.platform.utils",
    "iris.x.core": "iris.mem.triton.types",
}
for _alias, _original in ALIASES.items():
    for _path in [path for path in TABLE if f"{path}.".startswith(f"{_original}.")]:
        TABLE[_alias + _path[len(_original):]] = TABLE[_path] if TABLE[_path].startswith("= ") else f"= {_path}"
_INSIDE: Dict[str, List[str]] = {}  # the modules inside a path
for _path in TABLE:
    _INSIDE.setdefault(_path.rpartition(".")[0], []).append(_path.rpartition(".")[2])


class _Finder:
    """The last finder of imports, and its loader. It gives the reason for a name that cannot be used, which the import
    statement would replace by "cannot import name". A reload of a module of TABLE has nothing to do.
    """

    def find_spec(self, fullname: str, path: Optional[Sequence[str]], target: Optional[types.ModuleType] = None
                  ) -> Optional[importlib.machinery.ModuleSpec]:
        path, _, name = fullname.rpartition(".")
        try:
            if path in TABLE and (fullname in TABLE or name in names(path)):
                find(path, name)
        except AttributeError as error:
            raise ImportError(str(error), name=fullname) from error
        return _spec(fullname) if fullname in TABLE else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


_FINDER: Any = _Finder()


def _spec(path: str) -> importlib.machinery.ModuleSpec:
    return importlib.machinery.ModuleSpec(path, _FINDER, is_package=True)


@functools.lru_cache(maxsize=None)
def names(path: str) -> Dict[str, Tuple[str, str]]:
    """Returns the names of a path of TABLE: for each, the module of Iris or the -reason, and the name there.
    A module inside the path is a name, too, whose module is itself."""
    entry = TABLE[path]
    if entry.startswith("= "):
        return names(entry[2:])
    found = {}
    for group in filter(None, map(str.strip, entry.split(";"))):
        source, listed = group.split(":")
        for name in listed.split():
            theirs, _, ours = name.partition("=")
            found[theirs] = (source, ours or theirs)
    for name in _INSIDE.get(path, ()):
        if not refusal(f"{path}.{name}"):
            found.setdefault(name, (f"{path}.{name}", name))
    return found


def refusal(fullname: str) -> str:
    """Returns why a module or a name, `path.name`, is refused, or ""."""
    path, _, name = fullname.rpartition(".")
    if fullname in TABLE:
        found = [source for source, _ in names(fullname).values()]
    else:
        found = [names(path).get(name, ("", ""))[0]] if path in TABLE else []
    reasons = sorted({REASONS[source[1:]] if source.startswith("-") else "" for source in found})
    return f"{fullname} is not in Iris: {'; '.join(reasons)}" if all(reasons) and reasons else ""


def find(path: str, name: str) -> Any:
    """Returns a name of a path of TABLE, and keeps it in the module. AttributeError, with the reason, if there is none.
    """
    fullname = f"{path}.{name}"
    source, ours = names(path).get(name, ("", ""))
    if not source or source.startswith("-"):
        raise AttributeError(refusal(fullname) or f"module {path!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(source)
    except ImportError as error:
        # With an AttributeError, hasattr returns False, as for any missing name.
        raise AttributeError(f"{fullname} cannot be used here: {error}" if error.name not in (None, "triton") else
                             f"{fullname} is for kernels of Triton, which cannot be used here ({error}): install the "
                             "package triton") from error
    found = module if source == fullname else getattr(module, ours)
    vars(sys.modules[path])[name] = found
    return found


def _attribute(path: str, name: str) -> Any:
    """Returns an attribute of a module that is no file of ours."""
    if name == "__all__":  # without the modules inside
        return [known for known, (source, _) in names(path).items() if source[0] != "-" and source != f"{path}.{known}"]
    return find(path, name)


def _listed(module: types.ModuleType) -> List[str]:
    return sorted({*vars(module), *filter(str.isidentifier, names(module.__name__))})


def register() -> None:
    """Puts the modules of TABLE into sys.modules, and those of them that are files of ours and loaded get their other
    names. They are plain modules with functions for attributes: kernels of Triton use no modules of another class."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    for path, entry in TABLE.items():
        original = entry[2:] if entry.startswith("= ") else path
        module = sys.modules.get(original)
        if module is None and refusal(original):
            continue
        if module is None:
            module = types.ModuleType(original, f"{original} of the reference: names of Iris, which _modules.py lists.")
            module.__spec__, module.__loader__, module.__package__ = _spec(original), _FINDER, original
            vars(module)["__getattr__"] = functools.partial(_attribute, original)
        for name, value in (("__getattr__", functools.partial(find, original)),
                            ("__dir__", functools.partial(_listed, module)),
                            ("__path__", [])):  # without __path__, imports of its names would not ask _Finder
            vars(module).setdefault(name, value)
        sys.modules[original] = sys.modules[path] = module
        package, _, name = path.rpartition(".")
        if package in TABLE and names(package).get(name) == (path, name):
            vars(sys.modules[package]).setdefault(name, module)
