"""Compiles device code to assembly, for devices that need not be there, and reads it.

    PYTHONPATH=. python3 tests/isa/isa.py              prints the table of docs/memory_model.md
    PYTHONPATH=. python3 tests/isa/isa.py gfx942 Name  prints what a kernel of probe.cc became
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

COMPILER = "clang++-19"
PROBE = "tests/isa/probe.cc"

_COMMON = ["-O3", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I.", "-Iclient", "-Idevice", "-S"]
# The vendors' compilers inline all that they can: hipcc by these options, nvcc by itself.
_AMD = [
    "-x", "hip", "-nogpuinc", "-nogpulib", "--offload-device-only", "-mllvm", "-amdgpu-early-inline-all=true", "-mllvm",
    "-amdgpu-function-calls=false", "-DIRIS_BACKEND_HIP=1"
]
_NVIDIA = [
    "-mllvm", "-inline-threshold=100000",
    "-x", "cuda", "-nocudainc", "-nocudalib", "--cuda-device-only", "-Wno-unknown-cuda-version", "-Xclang",
    "-target-feature", "-Xclang", "+ptx83", "-include", "tests/isa/keywords.h", "-DIRIS_BACKEND_CUDA=1"
]
# What `kernels` calls the text that describes them all.
METADATA = "amdhsa.kernels"

TARGETS = {
    "gfx90a": _AMD + ["--offload-arch=gfx90a"],
    "gfx942": _AMD + ["--offload-arch=gfx942"],
    "sm_90": _NVIDIA + ["--cuda-gpu-arch=sm_90"],
}


# What compiles the bundle's kernels for AMD's GPUs, newer than Debian's clang: third_party/gpu_toolkits.bzl. With the
# GPUs that it compiles for.
HIP_FOLDER = os.environ.get("IRIS_HIP_PATH") or "/usr/local/src/iris/hip"
BUNDLE_TARGETS = {
    gpu: [
        "clang", "-resource-dir", f"{HIP_FOLDER}/ziglang/lib", "--target=x86_64-linux-gnu", "-mcode-object-version=5",
        *_AMD, f"--offload-arch={gpu}"
    ] for gpu in ("gfx90a", "gfx942", "gfx950")
}


def has_bundle_compiler():
    return os.path.exists(f"{HIP_FOLDER}/ziglang/zig")


def find_compiler():
    path = shutil.which(COMPILER)
    if path is None:
        raise RuntimeError(f"no {COMPILER}: install clang-19 (deploy/setup.sh does)")
    return path


def compile_text(target, source=PROBE, options=(), for_bundle=False):
    """The assembly of `source` for `target`."""
    if for_bundle:
        compiler = [f"{HIP_FOLDER}/ziglang/zig", *BUNDLE_TARGETS[target]]
    else:
        compiler = [find_compiler(), *TARGETS[target]]
    with tempfile.TemporaryDirectory(prefix="iris-isa-", dir="/tmp") as folder:
        out = os.path.join(folder, "out.s")
        command = [*compiler, *_COMMON, *options, source, "-o", out]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}")
        with open(out, encoding="utf-8") as file:
            return file.read()


class Assembly:
    """The kernels of one compilation: name -> instructions and labels, one a line, without comments and indentation."""

    def __init__(self, target, text):
        self.target = target
        self.text = text
        self.is_amd = target.startswith("gfx")
        self.kernels = self._amd_kernels(text) if self.is_amd else self._ptx_kernels(text)

    @staticmethod
    def _amd_kernels(text):
        kernels = {}
        for name, body in re.findall(r"^(\w+):[^\n]*\n(.*?)^\s*\.section", text, re.M | re.S):
            lines = (line.split(";")[0].strip() for line in body.split("\n"))
            kernels[name] = [line for line in lines if line and (line.endswith(":") or not line.startswith("."))]
        kernels[METADATA] = text[text.index("\namdhsa.kernels:"):].split("\n")
        return kernels

    @staticmethod
    def _ptx_kernels(text):
        kernels = {}
        for name, body in re.findall(r"\.visible \.entry (\w+)\(.*?^\{\n(.*?)^\}", text, re.M | re.S):
            lines = (line.split("//")[0].strip() for line in body.split("\n"))
            kernels[name] = [line for line in lines if line]
        return kernels

    def edited(self, kernel, pattern, replacement, only_first=False):
        """This assembly with something else in the lines of one kernel that match, or in the first of them alone.

        Fails if none does.
        """
        edited = Assembly.__new__(Assembly)
        edited.__dict__.update(self.__dict__)
        lines = list(self.kernels[kernel])
        for i, line in enumerate(lines):
            lines[i] = re.sub(pattern, replacement, line)
            if only_first and lines[i] != line:
                break
        if lines == self.kernels[kernel]:
            raise AssertionError(f"{self.target}: nothing in {kernel} matches {pattern!r}")
        edited.kernels = {**self.kernels, kernel: [line for line in lines if line]}
        return edited

    def blocks(self, kernel):
        """The kernel's instructions in straight pieces: a label or a branch ends one."""
        pieces = [[]]
        for line in self.kernels[kernel]:
            if line.endswith(":"):
                pieces.append([])
            else:
                pieces[-1].append(line)
                if re.match(r"s_c?branch|@?!?%?p?\d*\s*bra\b|bra\b", line):
                    pieces.append([])
        return [piece for piece in pieces if piece]

    def spills(self):
        """Kernels that use memory of their threads: (name, what)."""
        if not self.is_amd:
            found = {name for name, lines in self.kernels.items()
                     if any(re.search(r"\b(?:ld|st)\.local", l) for l in lines)}
            return sorted((name, "local memory") for name in found)
        found = []
        for entry in re.split(r"^  - \.", "\n".join(self.kernels[METADATA]), flags=re.M)[1:]:
            name = re.search(r"\.name:\s+(\S+)", entry).group(1)
            for field in ("private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count"):
                value = int(re.search(rf"\.{field}:\s+(\d+)", entry).group(1))
                if value:
                    found.append((name, f"{field} {value}"))
        return sorted(found)


# The table of docs/memory_model.md.

ROWS = (("Load", ("Relaxed", "Acquire")), ("Store", ("Relaxed", "Release")),
        ("Add", ("Relaxed", "AcqRel")), ("Fence", ("Acquire", "Release", "AcqRel", "SeqCst")))
SCOPES = ("Block", "Device", "System")


def memory_instructions(assembly, kernel):
    """The kernel's accesses, fences and waits for memory, without registers; a wait that follows itself is one."""
    found = []
    for line in assembly.kernels[kernel]:
        if assembly.is_amd:
            match = re.match(r"((?:global|flat|buffer|ds)_\w+)(.*)", line)
            if match:
                words = [w for w in re.split(r"[ ,]+", match.group(2)) if re.fullmatch(r"glc|slc|nt|sc[01]", w)]
                found.append(" ".join([match.group(1), *words]))
            elif re.match(r"s_waitcnt .*vmcnt\(0\)", line) and (not found or found[-1] != "s_waitcnt vmcnt(0)"):
                found.append("s_waitcnt vmcnt(0)")
        else:
            match = re.match(r"((?:ld|st|atom|red|fence|membar)\b[\w.]*)", line)
            if match and not match.group(1).startswith("ld.param"):
                found.append(match.group(1))
    return found


def cell(assembly, operation, order, scope):
    """What an operation became: the probe's other accesses taken off."""
    found = memory_instructions(assembly, f"{operation}{order}{scope}")
    if operation in ("Store", "Fence"):
        found = found[1:]  # the data
    if operation != "Store":
        found = found[:-1]  # what the probe writes at the end
    if assembly.is_amd and operation in ("Load", "Add") and found[-1].startswith("s_waitcnt"):
        found = found[:-1]  # for the value
    return found


def table(assemblies):
    """Markdown lines."""
    lines = ["| operation | " + " | ".join(assemblies) + " |", "|---|" + "---|" * len(assemblies)]
    for operation, orders in ROWS:
        for order in orders:
            for scope in SCOPES:
                cells = ["; ".join(f"`{i}`" for i in cell(a, operation, order, scope)) or "–"
                         for a in assemblies.values()]
                name = f"{operation} `k{order}` `k{scope}`"
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main(argv):
    if len(argv) == 3 and argv[2] not in TARGETS:
        print("\n".join(Assembly(argv[1], compile_text(argv[1])).kernels[argv[2]]))
    else:
        print("\n".join(table({target: Assembly(target, compile_text(target)) for target in argv[1:] or TARGETS})))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
