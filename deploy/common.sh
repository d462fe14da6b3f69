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

# Bazel says little, and makes no bazel-* links in the source tree.
quiet=(--show_progress_rate_limit=30 --ui_event_filters=-info,-stdout --color=no --curses=no
  --experimental_convenience_symlinks=ignore "--jobs=$(nproc)")

say() { printf '\n== %s\n' "$*"; }
