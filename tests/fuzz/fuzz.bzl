"""Fuzz targets: a function that bears any bytes, LLVMFuzzerTestOneInput, and a corpus of inputs that it has to bear."""

load("//third_party:iris.bzl", "iris_cc_test")

def iris_fuzz_test(name, mutator = [], deps = [], mutator_deps = [], **kwargs):
    """A fuzz target in NAME.cc, whose corpus is the folder corpus/NAME.

    Where libFuzzer is linked (--config=asan), the test goes through the corpus, and fuzzes for a while. Elsewhere it
    goes through the corpus alone. `mutator`: sources that call libFuzzer, and are left out where there is none.
    """
    corpus = "corpus/" + name
    iris_cc_test(
        name = name,
        size = "medium",
        srcs = [
            name + ".cc",
            "require.h",
        ] + select({
            "//third_party:has_fuzzer": ["libfuzzer.cc"] + mutator,
            "//conditions:default": ["replay.cc"],
        }),
        data = native.glob([corpus + "/*"]),
        gtest_main = False,
        linkopts = select({
            "//third_party:has_fuzzer": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        local_defines = ['IRIS_FUZZ_CORPUS=\\"{}/{}\\"'.format(native.package_name(), corpus)],
        deps = deps + select({
            "//third_party:has_fuzzer": mutator_deps,
            "//conditions:default": [],
        }),
        **kwargs
    )
