"""Targets with kernels, below the macros of iris.bzl. One label serves all backends: --//:backend=emu, cuda or hip.

`device_cc_library`, `device_cc_binary` and `device_cc_test` take what the native rules take. On emu they are the native
rules, with the warnings of copts.bzl. On cuda and hip the vendor's compiler makes an object of each source, and the
native rule links them.

The toolkits are found, not assumed (gpu_toolkits.bzl). A machine without them builds emu as ever; asking for a backend
whose compiler is missing fails and says so.
"""

load("@bazel_skylib//rules:common_settings.bzl", "BuildSettingInfo")
load(
    "@gpu//:toolkits.bzl",
    "CUDA_PATH",
    "HIPCC",
    "HIP_GPUS",
    "NVCC",
)
load("//third_party:copts.bzl", "IRIS_COPTS", "IRIS_INCLUDES", "WARNINGS_ARE_ERRORS")

_CUDA_FLAGS = [
    "-x",
    "cu",
    "-std=c++20",
    "-O3",
    "--compiler-bindir=/usr/bin/g++",
    "-Xcompiler=-fPIC,-Wall",
    # This makes the archive a quarter smaller. nvcc 12.8 and newer have it.
    "-compress-mode=size",
]

_HIP_FLAGS = [
    "-x",
    "hip",
    # As C++20, clang 15 of hipcc 5.2 dies on the constrained members of std::pair.
    "-std=c++17",
    "-Wno-c++20-extensions",
    "-O3",
    "-fPIC",
    "-Wall",
]

_WARNINGS_ARE_ERRORS = {
    "cuda": [
        "-Xcompiler=-Werror",
        "-Werror=all-warnings",
    ],
    "hip": ["-Werror"],
}

# Newest first. CUDA: machine code for Hopper, and PTX that a driver translates for anything from Ampere on. HIP:
# machine code alone.
_CUDA_GPUS = ["-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_80,code=compute_80"]
_HIP_GPUS = ["--offload-arch=" + gpu for gpu in HIP_GPUS]

# What -ffp-contract=off among the `copts` of a target is to the vendors' compilers: products and sums stay apart.
_UNFUSED = {
    "cuda": "-fmad=false",
    "hip": "-ffp-contract=off",
}

def _device_objects_impl(ctx):
    if ctx.attr.backend == "cuda":
        compiler, flags, gpus = NVCC, _CUDA_FLAGS, _CUDA_GPUS
        looked_for = "nvcc (the CUDA toolkit): set CUDA_PATH to its folder"
        includes = [CUDA_PATH + "/include"]
    else:
        compiler, flags, gpus = HIPCC, _HIP_FLAGS, _HIP_GPUS
        looked_for = "a compiler of HIP: run deploy/setup.sh --hip, or set ROCM_PATH to the folder of ROCm"
        includes = []
    if not compiler:
        fail("--//:backend=%s needs %s. Without it, build the emu backend: leave out --config=%s." % (
            ctx.attr.backend,
            looked_for,
            ctx.attr.backend,
        ))
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    arguments = ctx.actions.args()
    arguments.add_all(flags)
    if ctx.attr.warnings_are_errors:
        arguments.add_all(_WARNINGS_ARE_ERRORS[ctx.attr.backend])
    if ctx.attr.gpus:
        gpus = ctx.attr.gpus
    arguments.add_all(gpus[:1] if ctx.attr._gpus[BuildSettingInfo].value == "newest" else gpus)
    arguments.add_all(IRIS_INCLUDES)
    arguments.add_all(context.quote_includes, before_each = "-I")
    arguments.add_all(context.includes, before_each = "-I")
    arguments.add_all(context.system_includes, before_each = "-isystem")
    arguments.add_all(includes, before_each = "-isystem")
    arguments.add_all(context.defines, format_each = "-D%s")
    arguments.add_all(ctx.attr.defines, format_each = "-D%s")
    arguments.add_all(ctx.attr.copts)
    headers = [f for f in ctx.files.srcs + ctx.files.hdrs if f.extension == "h"]
    objects = []
    for source in ctx.files.srcs:
        if source.extension == "h":
            continue
        stem = source.basename[:-len(source.extension) - 1]
        object = ctx.actions.declare_file("%s/%s.o" % (ctx.label.name, stem))
        own = ctx.actions.args()
        own.add_all(["-c", source, "-o", object])
        ctx.actions.run(
            executable = compiler,
            arguments = [arguments, own],
            inputs = depset([source] + headers, transitive = [context.headers]),
            outputs = [object],
            env = {"PATH": "/usr/bin:/bin"},
            mnemonic = "DeviceCompile",
            progress_message = "Compiling %s for %s" % (source.short_path, ctx.attr.backend),
        )
        # Static and shared linking use the same object. Bazel's own rules tell the two apart by the file name.
        pic_object = ctx.actions.declare_file("%s/%s.pic.o" % (ctx.label.name, stem))
        ctx.actions.symlink(output = pic_object, target_file = object)
        objects += [pic_object] if ctx.attr.pic_alone else [object, pic_object]
    return [DefaultInfo(files = depset(objects))]

_device_objects = rule(
    implementation = _device_objects_impl,
    attrs = {
        "backend": attr.string(values = ["cuda", "hip"]),
        "copts": attr.string_list(),
        "defines": attr.string_list(),
        "gpus": attr.string_list(doc = "the compiler's options for kernels that only some GPUs can run"),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = True),
        "pic_alone": attr.bool(doc = "with --force_pic the native rules would link both"),
        "srcs": attr.label_list(allow_files = True),
        "warnings_are_errors": attr.string_list(doc = "what says so to the compiler of hosts; empty if they are not"),
        "_gpus": attr.label(default = "//:gpus"),
    },
)

def _device_cc(rule, name, srcs, hdrs, deps, kwargs):
    cuda_gpus = kwargs.pop("cuda_gpus", [])
    copts = kwargs.pop("copts", [])
    kernels = [s for s in srcs if not s.endswith(".h")]
    headers = [s for s in srcs if s.endswith(".h")]
    if not kernels:
        rule(name = name, srcs = srcs, deps = deps, copts = IRIS_COPTS + copts, **kwargs)
        return
    for backend in ["cuda", "hip"]:
        _device_objects(
            name = "%s_%s_objects" % (name, backend),
            srcs = srcs,
            hdrs = hdrs,
            deps = deps,
            backend = backend,
            gpus = cuda_gpus if backend == "cuda" else [],
            # The other options are for the host's compiler.
            copts = [
                o
                for o in copts
                if o.startswith(("-D", "-I"))
            ] + ([_UNFUSED[backend]] if "-ffp-contract=off" in copts else []),
            defines = kwargs.get("defines", []) + kwargs.get("local_defines", []),
            pic_alone = select({
                "//third_party:force_pic": True,
                "//conditions:default": False,
            }),
            tags = ["manual"],
            warnings_are_errors = WARNINGS_ARE_ERRORS,
            testonly = kwargs.get("testonly", rule == native.cc_test),
            visibility = ["//visibility:private"],
        )
    rule(
        name = name,
        srcs = select({
            "//:backend_emu": srcs,
            "//:backend_cuda": [":%s_cuda_objects" % name] + headers,
            "//:backend_hip": [":%s_hip_objects" % name] + headers,
        }),
        copts = IRIS_COPTS + copts,
        deps = deps,
        **kwargs
    )

def device_cc_library(name, srcs = [], hdrs = [], deps = [], **kwargs):
    """native.cc_library whose srcs may hold kernels; `cuda_gpus`: options of nvcc that say for which GPUs."""
    kwargs = dict(kwargs, hdrs = hdrs)
    _device_cc(native.cc_library, name, srcs, hdrs, deps, kwargs)

def device_cc_binary(name, srcs = [], deps = [], **kwargs):
    """native.cc_binary whose srcs may hold kernels."""
    _device_cc(native.cc_binary, name, srcs, [], deps, kwargs)

def device_cc_test(name, srcs = [], deps = [], **kwargs):
    """native.cc_test whose srcs may hold kernels. Without a GPU, tests of GPU backends skip at run time."""
    _device_cc(native.cc_test, name, srcs, [], deps, kwargs)
