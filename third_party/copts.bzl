"""Compiler options of every target that Iris's own people wrote."""

# The folders of headers that are included as <iris/...>.
IRIS_INCLUDES = [
    "-Iclient",
    "-Idevice",
]

# Warnings are errors for who works on Iris. They are not in the bundle, which users build by compilers and levels of
# optimization whose false alarms nobody has seen before.
WARNINGS_ARE_ERRORS = select({
    "//deploy:is_bundled": [],
    "//conditions:default": ["-Werror"],
})

IRIS_COPTS = IRIS_INCLUDES + [
    "-Wall",
    "-Wextra",
] + WARNINGS_ARE_ERRORS + [
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wshadow",
    "-Wpedantic",
    "-Wnon-virtual-dtor",
]

# For numbers whose bits are documented: a product and a sum are rounded one by one. gpu.bzl has the same for the
# vendors' compilers.
UNFUSED_COPTS = ["-ffp-contract=off"]

# Processors that could round both at once, for a test of whether a compiler makes them do it: unoptimized, none does.
FMA_COPTS = ["-mfma", "-O2"]
