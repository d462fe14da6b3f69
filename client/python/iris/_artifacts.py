"""The compiler's results for kernels of Triton, as files: the reference's module kernel_artifacts.

If IRIS_KERNEL_ARTIFACTS_DIR names a folder, iris_launch() writes for each kernel that it launches, once, the folder
ALGORITHM/KERNEL/rank_R/BLOCKS/HASH with the files kernel.STAGE (every text of the compiler) and metadata.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Dict

_SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8e4m3fn",
          "float8_e4m3fnuz": "fp8e4m3", "float8_e5m2": "fp8e5m2", "float8_e5m2fnuz": "fp8e5m2", "int8": "i8",
          "int16": "i16", "int32": "i32", "int64": "i64"}


def _folder() -> str:
    return os.environ.get("IRIS_KERNEL_ARTIFACTS_DIR", "").strip()


def is_enabled() -> bool:
    """Returns True if IRIS_KERNEL_ARTIFACTS_DIR names a folder."""
    return bool(_folder())


def iris_launch(kernel_fn: Any, grid: Any, *args: Any, algorithm: str, rank: int, dtype: Any = None,
                **kwargs: Any) -> Any:
    """Launches a kernel of Triton as `kernel_fn[grid](*args, **kwargs)` does, and writes its files if is_enabled().

    `algorithm`, `rank` and `dtype`, a type of torch, are parts of the folder's name. Returns the compiled kernel, or
    None in Triton's interpreter, which compiles nothing."""
    compiled = kernel_fn[grid](*args, **kwargs)
    if is_enabled() and compiled is not None:
        _save(compiled, algorithm, kernel_fn.fn.__name__, rank, dtype, grid)
    return compiled


def _constants(compiled: Any) -> Dict[str, Any]:
    """Returns the values of the kernel's constexpr arguments by name."""
    names = compiled.src.fn.arg_names
    found = {names[key[0]] if isinstance(key, tuple) else key: getattr(value, "value", value)
             for key, value in compiled.src.constants.items() if not isinstance(key, tuple) or len(key) == 1}
    return {name: value for name, value in found.items() if isinstance(value, (int, float, str))}


def _save(compiled: Any, algorithm: str, kernel: str, rank: int, dtype: Any, grid: Any) -> None:
    constants = _constants(compiled)
    kind = str(dtype).rsplit(".", maxsplit=1)[-1]
    parts = [f"B{axis}{constants[f'BLOCK_SIZE_{axis}']}" for axis in "MNK" if f"BLOCK_SIZE_{axis}" in constants]
    parts += [_SHORT.get(kind, kind)] * (dtype is not None) + [f"w{compiled.metadata.num_warps}"]
    texts = {stage: text for stage, text in compiled.asm.items() if isinstance(text, str)}
    code = hashlib.sha256(list(texts.values())[-1].encode() if texts else compiled.hash.encode()).hexdigest()[:12]
    folder = Path(_folder(), algorithm, kernel, f"rank_{rank}", "_".join(parts), code)
    if (folder / "metadata.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for stage, text in texts.items():
        (folder / f"kernel.{stage}").write_text(text, encoding="utf-8")
    target = compiled.metadata.target
    metadata = {
        "kernel_name": kernel, "algorithm": algorithm, "rank": rank, "hash": compiled.hash, "codegen_hash": code,
        "target": {"backend": target.backend, "arch": target.arch, "warp_size": target.warp_size},
        "constexprs": constants, "num_warps": compiled.metadata.num_warps, "num_stages": compiled.metadata.num_stages,
        "shared_memory_bytes": compiled.metadata.shared, "grid": None if callable(grid) else list(grid),
        "num_registers": getattr(compiled, "n_regs", None), "num_spills": getattr(compiled, "n_spills", None),
        "dtype": None if dtype is None else str(dtype),
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())}
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2, default=str), encoding="utf-8")
