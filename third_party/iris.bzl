"""The C++ targets of Iris. What every one of them would repeat is said here, once.

    iris_cc_library    iris_device_library     as native.cc_library
    iris_cc_binary     iris_device_binary      as native.cc_binary
    iris_cc_test       iris_device_test        as native.cc_test

The second column is for sources that hold kernels; see gpu.bzl. All are compiled with the warnings of copts.bzl, and
`copts` of a target are added to these. Libraries are linked statically. iris_c_binary is for programs in C.

A test is small, it is compiled from NAME.cc, and it gets its main() from GoogleTest. `size`, `srcs` and
`gtest_main = False` say otherwise; without gtest_main, a test names what it needs among its `deps`.
"""

load("//third_party:copts.bzl", "IRIS_COPTS", "IRIS_INCLUDES", "WARNINGS_ARE_ERRORS")
load("//third_party:gpu.bzl", "device_cc_binary", "device_cc_library", "device_cc_test")

def _library(rule, linkstatic = True, **kwargs):
    rule(linkstatic = linkstatic, **kwargs)

def _test(rule, name, size = "small", srcs = None, deps = [], gtest_main = True, **kwargs):
    rule(
        name = name,
        size = size,
        srcs = [name + ".cc"] if srcs == None else srcs,
        deps = deps + (["//third_party:gtest_main"] if gtest_main else []),
        **kwargs
    )

def iris_cc_library(name, copts = [], **kwargs):
    """A library of Iris."""
    _library(native.cc_library, name = name, copts = IRIS_COPTS + copts, **kwargs)

def iris_cc_binary(name, copts = [], **kwargs):
    """A program of Iris."""
    native.cc_binary(name = name, copts = IRIS_COPTS + copts, **kwargs)

def iris_c_binary(name, copts = [], **kwargs):
    """A program in C, which has the warnings of C alone."""
    native.cc_binary(
        name = name,
        copts = IRIS_INCLUDES + ["-std=c11", "-Wall", "-Wextra", "-Wpedantic"] + WARNINGS_ARE_ERRORS + copts,
        **kwargs
    )

def iris_cc_test(name, copts = [], **kwargs):
    """A test of Iris, with GoogleTest."""
    _test(native.cc_test, name, copts = IRIS_COPTS + copts, **kwargs)

def iris_device_library(name, **kwargs):
    """A library whose srcs may hold kernels."""
    _library(device_cc_library, name = name, **kwargs)

def iris_device_binary(name, **kwargs):
    """A program whose srcs may hold kernels."""
    device_cc_binary(name = name, **kwargs)

def iris_device_test(name, **kwargs):
    """A test whose srcs may hold kernels. Without a GPU, tests of GPU backends skip at run time."""
    _test(device_cc_test, name, **kwargs)
