# What the scripts of this folder share. It is sourced, not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
export LC_ALL=C.UTF-8

# The build server needs no more memory, leaves nothing in /tmp, and does not stay.
# IRIS_BAZEL_STARTUP adds startup options ("--output_base=...").
bazel_() {
  # shellcheck disable=SC2086
  command bazel --host_jvm_args=-Xmx1g --host_jvm_args=-XX:-UsePerfData --max_idle_secs=300 ${IRIS_BAZEL_STARTUP:-} "$@"
}

# A folder for what was compiled, which all checkouts of a user share, so that a fresh clone compiles only what nobody
# has compiled before. Deleting it costs nothing but time. IRIS_BUILD_CACHE names another folder; empty, there is none.
build_cache=${IRIS_BUILD_CACHE-${XDG_CACHE_HOME:-$HOME/.cache}/iris/build}
build_cache_mib_max=${IRIS_BUILD_CACHE_MIB:-8192}

# The compiler for NVIDIA's GPUs, as third_party/gpu_toolkits.bzl looks for it. Nothing, if there is none.
nvcc_path() { PATH=$PATH:/usr/local/cuda/bin:/opt/cuda/bin command -v nvcc; }

# A name for the compilers and headers of this machine, which Bazel does not look at: another name, another part of the
# cache.
system_key() {
  {
    set +e  # what is not installed is left out
    dpkg-query -W -f='${Package} ${Version}\n' \
      '*-dev' 'g++*' 'gcc*' 'cpp*' 'clang*' 'binutils*' 'protobuf-compiler*' 'bazel*'
    cat /usr/local/src/iris/*/VERSION
    "$(nvcc_path)" --version
    cat /usr/local/lib/iris/wheels/wheels.txt
    true
  } 2>/dev/null | sha256sum | cut -c 1-16
}

# Removes what was used longest ago until the cache has its size.
trim_build_cache() {
  [ -n "$build_cache" ] && [ -d "$build_cache" ] || return 0
  find "$build_cache" -type f -printf '%A@ %s %p\n' | sort -rn |
    awk -v max="$build_cache_mib_max" '{ sum += $2; if (sum > max * 1048576) print substr($0, index($0, $3)) }' |
    tr '\n' '\0' | xargs -0 -r rm -f
}

# A name for the files of which the bundle's kernels are made, and for the tests of what compilers make of them.
kernels_key() {
  {
    find client deploy device examples tests/conformance tests/multi_gpu third_party -type f \
      -regex '.*\(\.cc\|\.h\|\.bzl\|\.bazel\|\.lds\)' ! -path 'client/*_test.cc' ! -path 'device/*_test.cc' -print0
    find tests/isa docs/memory_model.md -type f -print0
  } | sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-32
}

# Bazel says little, and makes no bazel-* links in the source tree.
quiet=(--show_progress_rate_limit=30 --ui_event_filters=-info,-stdout --color=no --curses=no
  --experimental_convenience_symlinks=ignore "--jobs=$(nproc)")
use_build_cache() {
  [ -z "$build_cache" ] || quiet+=("--disk_cache=$build_cache/$(system_key)")
}

say() { printf '\n== %s\n' "$*"; }
