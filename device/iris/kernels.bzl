"""Libraries of kernels and their launchers, as programs link them.

    iris_kernels(name = "norm", srcs = [...], deps = [...])

makes `norm`, which is `static`: `srcs` over `:kernels`, the headers of the package. The programs of the bundle have one
library of kernels together instead, which is large: there `norm` is `shared`.
"""

load("//third_party:iris.bzl", "iris_cc_library", "iris_device_library")

def iris_kernels(name, srcs, deps):
    """What programs link, of the package's `:kernels`; `deps` are those of the sources beside it."""
    native.alias(
        name = name,
        actual = select({
            "//deploy:has_shared_kernels": ":shared",
            "//conditions:default": ":static",
        }),
    )
    headers = [
        ":kernels",
        "//device/iris",
        "//device/iris/backend:headers",
    ]
    iris_cc_library(
        name = "shared",
        srcs = ["//deploy:libiris_backend"],
        tags = ["manual"],
        deps = headers,
    )
    iris_device_library(
        name = "static",
        srcs = srcs,
        deps = headers + deps,
    )
