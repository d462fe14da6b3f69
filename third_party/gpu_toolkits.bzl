"""The repository @gpu: where this machine has the vendors' compilers of kernels, if it has any.

CUDA_PATH and ROCM_PATH decide, else PATH, else the usual folders, and last what deploy/setup.sh fetches for tests. What
is missing is an empty string: the emu backend builds on a bare machine, and //third_party:gpu.bzl says what to do when
somebody asks for another.
"""

# As deploy/setup.sh has it.
_FETCHED_CUDA = "/usr/local/lib/iris/wheels/nvidia/cu13"

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

# What links the runtime of a vendor: statically where there is a static one, so that programs start without the
# toolkit.
_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda_runtime",
    linkopts = {cuda},
)

cc_library(
    name = "hip_runtime",
    linkopts = {hip},
)
"""

def _gpu_toolkits_impl(repository_ctx):
    cuda_path, nvcc = _first(repository_ctx, "CUDA_PATH", "nvcc", ["/usr/local/cuda", "/opt/cuda", _FETCHED_CUDA])
    rocm_path, hipcc = _first(repository_ctx, "ROCM_PATH", "hipcc", ["/opt/rocm", "/usr"])
    cuda = []
    for folder in ["lib64", "lib", "targets/x86_64-linux/lib"]:
        library = cuda_path + "/" + folder + "/libcudart_static.a"
        if nvcc and not cuda and repository_ctx.path(library).exists:
            cuda = [library, "-ldl", "-lrt", "-lpthread"]
    hip = []
    if hipcc:
        hip = ["-lamdhip64"]
        if repository_ctx.path(rocm_path + "/lib/libamdhip64.so").exists:
            hip = ["-L" + rocm_path + "/lib"] + hip
    repository_ctx.file("BUILD.bazel", _BUILD.format(cuda = repr(cuda), hip = repr(hip)))
    repository_ctx.file(
        "toolkits.bzl",
        "CUDA_PATH = %r\nNVCC = %r\nROCM_PATH = %r\nHIPCC = %r\n" % (cuda_path, nvcc, rocm_path, hipcc),
    )

gpu_toolkits = repository_rule(
    implementation = _gpu_toolkits_impl,
    configure = True,
    environ = [
        "CUDA_PATH",
        "PATH",
        "ROCM_PATH",
    ],
    local = True,
)
