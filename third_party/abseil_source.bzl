"""The repository @abseil_source: abseil compiled from Debian's source package, for libraries that keep it private.

Debian's static archives of abseil are made for programs and cannot go into a shared library: they are not
position-independent. deploy/setup.sh puts the source package of the installed version, with Debian's patches, into a
folder; IRIS_ABSEIL_SOURCE names another. Its headers are those of /usr/include/absl, and this is checked here. Without
the folder everything else builds, and //:private says what to do.
"""

_FOLDER = "/usr/local/src/iris/abseil"

# The packages that the host library needs, with their dependencies.
_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "private",
    srcs = glob(
        [
            "absl/%s/**/*.cc" % folder
            for folder in [
                "base",
                "container",
                "debugging",
                "hash",
                "numeric",
                "profiling",
                "status",
                "strings",
                "synchronization",
                "time",
                "types",
            ]
        ],
        exclude = [
            "absl/**/*_benchmark*.cc",
            "absl/**/*_mock*.cc",
            "absl/**/*_test*.cc",
            "absl/**/*_testing*.cc",
            "absl/**/*benchmarks.cc",
            "absl/**/benchmark*.cc",
            "absl/**/test_*.cc",
            "absl/**/*print_hash_of.cc",
            "absl/base/internal/exception_safety_testing.cc",
            "absl/base/internal/scoped_set_env.cc",
            "absl/debugging/failure_signal_handler.cc",
            "absl/debugging/leak_check*.cc",
            "absl/strings/internal/pow10_helper.cc",
            "absl/synchronization/internal/thread_pool.cc",
            "absl/time/internal/test_util.cc",
        ],
    ),
    hdrs = glob([
        "absl/**/*.h",
        "absl/**/*.inc",
    ]),
    # No warnings about code that is not ours. The linker drops unused parts.
    copts = [
        "-w",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        "-ffunction-sections",
        "-fdata-sections",
    ],
    # Before the linker comes to Debian's shared libraries, every symbol of abseil is there.
    alwayslink = True,
    linkstatic = True,
)
"""

_MISSING = """
package(default_visibility = ["//visibility:public"])

genrule(
    name = "missing",
    outs = ["missing.cc"],
    cmd = "echo '%s' >&2; exit 1",
)

cc_library(
    name = "private",
    srcs = ["missing.cc"],
)
"""

def _why_not(repository_ctx, folder):
    """A sentence, or an empty string if the sources are there and are those of the installed headers."""
    if not repository_ctx.path(folder + "/absl/base/options.h").exists:
        return "The sources of abseil are not in %s: run deploy/setup.sh" % folder
    compared = repository_ctx.execute(["diff", "-rq", "/usr/include/absl", folder + "/absl"])
    for line in compared.stdout.splitlines():
        if line.endswith(" differ") or line.startswith("Only in /usr/include/absl"):
            return ("The sources of abseil in %s are not those of the headers in /usr/include/absl (%s): " +
                    "run deploy/setup.sh") % (folder, line)
    return ""

def _abseil_source_impl(repository_ctx):
    folder = repository_ctx.os.environ.get("IRIS_ABSEIL_SOURCE", "") or _FOLDER
    why_not = _why_not(repository_ctx, folder)
    if why_not:
        repository_ctx.file("BUILD.bazel", _MISSING % why_not)
        return
    # A copy, without abseil's own BUILD files: they would make its folders packages, and name repositories that are not
    # here.
    copied = repository_ctx.execute(["cp", "-rL", folder + "/absl", "absl"])
    if copied.return_code == 0:
        copied = repository_ctx.execute(["find", "absl", "-name", "BUILD*", "-delete"])
    if copied.return_code != 0:
        fail("cannot copy %s/absl: %s" % (folder, copied.stderr))
    repository_ctx.file("BUILD.bazel", _BUILD)

abseil_source = repository_rule(
    implementation = _abseil_source_impl,
    configure = True,
    environ = ["IRIS_ABSEIL_SOURCE"],
    local = True,
)
