"""conformance_test: a test of what every backend must do, and a part of the program that the bundle carries."""

load("//third_party:iris.bzl", "iris_device_library", "iris_device_test")

# The tests that the bundle carries, for GPUs. process_test is not among them: its kernels reach ordinary host memory,
# so it is for emulated devices. Neither are those of teams on several nodes: nodes_test has not ended in its time on
# a GPU.
CARRIED_TESTS = [
    "access_test",
    "atomics_test",
    "attention_test",
    "barrier_test",
    "blocks_test",
    "collective_conformance_test",
    "collective_messages_test",
    "collective_mismatch_test",
    "collective_plan_test",
    "copies_test",
    "device_pages_test",
    "early_test",
    "fill_test",
    "first_replay_test",
    "litmus_test",
    "moe_conformance_test",
    "norm_conformance_test",
    "ops_conformance_test",
    "port_test",
    "primitives_test",
    "rma_test",
    "shares_test",
    "signal_test",
    "stream_test",
    "tile_test",
    "whole_lines_test",
]

def conformance_test(name, srcs = None, copts = [], comm = False, deps = [], **kwargs):
    """As iris_device_test. NAME_cases are its tests without a main, for //tests/conformance:conformance.

    A test has ranks and the device API; with `comm`, also communicators.
    """
    deps = deps + [
        ":world",
        "//device/iris",
        "//device/iris/backend",
        "//third_party:gtest",
    ]
    if comm:
        deps = deps + [
            ":world_comm",
            "//device/iris/collective",
        ]
    iris_device_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs or [name + ".cc"],
        copts = copts,
        # Nothing refers to a test: it registers itself.
        alwayslink = True,
        deps = deps,
    )
    iris_device_test(
        name = name,
        srcs = [],
        deps = [name + "_cases"],
        **kwargs
    )
