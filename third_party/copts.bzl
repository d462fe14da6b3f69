"""Compiler options of every target that Iris's own people wrote."""

# The folders that hold headers which are included as <iris/...>, inside the repository as outside.
IRIS_INCLUDES = [
    "-Iclient",
    "-Idevice",
]

IRIS_COPTS = IRIS_INCLUDES + [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wshadow",
    "-Wpedantic",
    "-Wnon-virtual-dtor",
]
