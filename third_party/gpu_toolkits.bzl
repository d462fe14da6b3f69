"""The repository @gpu: where this machine has the compilers of kernels, if it has any.

CUDA_PATH and ROCM_PATH decide, else PATH, else the usual folders, and last, for CUDA, what deploy/setup.sh fetches for
tests. Without ROCM_PATH, kernels for AMD's GPUs are compiled by the clang of the Python wheel `ziglang`, where
deploy/setup.sh --hip has put it: it knows newer GPUs than Debian's hipcc. IRIS_HIP_PATH names another folder, with
ziglang/zig and include/hip in it.

What is missing is an empty string: the emu backend builds on a bare machine, and //third_party:gpu.bzl says what to do
when somebody asks for another.
"""

# The folders that deploy/setup.sh installs to.
_FETCHED_CUDA = "/usr/local/lib/iris/wheels/nvidia/cu13"
_HIP_FOLDER = "/usr/local/src/iris/hip"

# Newest first. Debian's hipcc supports only the last one.
_HIP_GPUS = ["gfx950", "gfx942", "gfx90a"]

def _first(repository_ctx, variable, program, folders):
    """(the folder of a toolkit, its compiler), or two empty strings."""
    wanted = repository_ctx.os.environ.get(variable, "")
    if wanted:
        folders = [wanted]
    else:
        found = repository_ctx.which(program)
        if found:
            return str(found.dirname.dirname), str(found)
    for folder in folders:
        compiler = repository_ctx.path(folder + "/bin/" + program)
        if compiler.exists:
            return folder, str(compiler)
    return "", ""

# clang's driver for HIP, as hipcc is one. The wheel's clang has the compiler's own headers beside it, and no device
# library: device_math.h has what the examples need of it. What the driver calls lies beside this script. Newer code
# objects than version 5 would ask for a newer ROCm than the GPU does. Everything is inlined, as hipcc does it.
_HIPCC = """#!/bin/sh
PATH={tools}:/usr/bin:/bin
export PATH
exec {zig} clang -resource-dir {lib} --target=x86_64-linux-gnu -nogpuinc -nogpulib -mcode-object-version=5 \\
  -mllvm -amdgpu-early-inline-all=true -mllvm -amdgpu-function-calls=false -include {tools}/device_math.h "$@"
"""

_LLD = """#!/bin/sh
# The first two arguments (-flavor gnu) select one of lld's programs.
shift 2
exec {zig} ld.lld "$@"
"""

# What links the runtime of a vendor: NVIDIA's statically, so that programs start without the toolkit. AMD's is found at
# run time (third_party/hip), and its headers are here.
_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda_runtime",
    linkopts = {cuda},
)

cc_library(
    name = "hip_headers",
    hdrs = glob(["hip_include/**"]),
    defines = ["__HIP_PLATFORM_AMD__=1"],
    includes = ["hip_include"],
)
"""

# Makes the compiler in this folder available. Returns an empty string if there is none.
def _make_hipcc(repository_ctx, folder):
    zig = folder + "/ziglang/zig"
    for file in [zig, folder + "/include/hip/hip_runtime_api.h"]:
        if not repository_ctx.path(file).exists:
            return ""
    tools = str(repository_ctx.path("hip_tools"))
    repository_ctx.file("hip_tools/hipcc", _HIPCC.format(tools = tools, zig = zig, lib = folder + "/ziglang/lib"))
    repository_ctx.file("hip_tools/lld", _LLD.format(zig = zig))
    for file in ["device_math.h", "offload_bundler.py"]:
        repository_ctx.symlink(repository_ctx.path(Label("//third_party/hip:" + file)), "hip_tools/" + file)
    repository_ctx.file(
        "hip_tools/clang-offload-bundler",
        "#!/bin/sh\nexec /usr/bin/python3 %s/offload_bundler.py \"$@\"\n" % tools,
    )
    return tools + "/hipcc"

def _compiles_for(repository_ctx, hipcc, gpu):
    options = ["-x", "hip", "-nogpuinc", "-nogpulib", "--cuda-device-only", "--offload-arch=" + gpu, "-S"]
    return repository_ctx.execute([hipcc] + options + ["/dev/null", "-o", "/dev/null"]).return_code == 0

def _gpu_toolkits_impl(repository_ctx):
    cuda_path, nvcc = _first(repository_ctx, "CUDA_PATH", "nvcc", ["/usr/local/cuda", "/opt/cuda", _FETCHED_CUDA])
    hip_path = repository_ctx.os.environ.get("IRIS_HIP_PATH", "") or _HIP_FOLDER
    hipcc = "" if repository_ctx.os.environ.get("ROCM_PATH", "") else _make_hipcc(repository_ctx, hip_path)
    if not hipcc:
        hip_path, hipcc = _first(repository_ctx, "ROCM_PATH", "hipcc", ["/opt/rocm", "/usr"])
    hip_gpus = [gpu for gpu in _HIP_GPUS if hipcc and _compiles_for(repository_ctx, hipcc, gpu)]
    cuda = []
    for folder in ["lib64", "lib", "targets/x86_64-linux/lib"]:
        library = cuda_path + "/" + folder + "/libcudart_static.a"
        if nvcc and not cuda and repository_ctx.path(library).exists:
            cuda = [library, "-ldl", "-lrt", "-lpthread"]
    # Compilers find those in /usr/include by themselves.
    if hipcc and hip_path != "/usr":
        repository_ctx.symlink(hip_path + "/include/hip", "hip_include/hip")
    repository_ctx.file("BUILD.bazel", _BUILD.format(cuda = repr(cuda)))
    repository_ctx.file(
        "toolkits.bzl",
        "CUDA_PATH = %r\nNVCC = %r\nHIPCC = %r\nHIP_GPUS = %r\n" % (cuda_path, nvcc, hipcc, hip_gpus),
    )

gpu_toolkits = repository_rule(
    implementation = _gpu_toolkits_impl,
    configure = True,
    environ = [
        "CUDA_PATH",
        "IRIS_HIP_PATH",
        "PATH",
        "ROCM_PATH",
    ],
    local = True,
)
