"""Compiler options of every target that Iris's own people wrote."""

IRIS_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wshadow",
    "-Wpedantic",
    "-Wnon-virtual-dtor",
]
