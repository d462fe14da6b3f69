#!/usr/bin/env bash
# Installs, from Debian 12's own archive, what building and testing Iris needs and this machine lacks.
#
#   deploy/setup.sh            everything, the second compiler and the sanitizers included
#   deploy/setup.sh --build    only what building and running needs (deploy/run-demo.sh)
#   deploy/setup.sh --check    installs nothing; exit code 1 and a list if something is missing
#
# It is quiet, and done at once when nothing is missing. It runs as root, or through sudo.
set -euo pipefail

build_packages=(
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  g++ libc6-dev
  libabsl-dev libboost-context-dev libcli11-dev libfmt-dev libgrpc++-dev libgrpc-dev
  libprotobuf-dev libspdlog-dev libsystemd-dev libtomlplusplus-dev nlohmann-json3-dev
  patchelf
  protobuf-compiler protobuf-compiler-grpc
  python3
)
test_packages=(
  clang-19 libclang-rt-19-dev
  clang-format-14
  cmake pkgconf
  mpich openmpi-bin
  libgmock-dev libgtest-dev
  python3-h2
)

fail() {
  echo "deploy/setup.sh: $*" >&2
  exit 1
}

check_only=false
wanted=("${build_packages[@]}" "${test_packages[@]}")
for argument in "$@"; do
  case "$argument" in
    --build) wanted=("${build_packages[@]}") ;;
    --check) check_only=true ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) fail "unknown argument '$argument'; see --help" ;;
  esac
done

# shellcheck disable=SC1091
. /etc/os-release 2>/dev/null || true
if [ "${ID:-}" != debian ] || [ "${VERSION_ID:-}" != 12 ]; then
  fail "this is ${PRETTY_NAME:-an unknown system}; Iris is built on Debian 12 (bookworm)." \
    "Elsewhere, install the equivalents of: ${wanted[*]}"
fi

missing=()
for package in "${wanted[@]}"; do
  # A status of exactly "ii": removed packages leave a line, too.
  [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if $check_only; then
  echo "missing: ${missing[*]}"
  exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "must install ${missing[*]}: run it as root, or install sudo"
  as_root=(sudo)
fi

echo "deploy/setup.sh: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
    apt-get -qq -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1
}
install() { apt install --no-install-recommends "${missing[@]}"; }
# The lists of a machine that was just made are empty, those of an old one out of date.
if ! { apt update && install; }; then
  tail -n 20 "$log" >&2
  fail "apt-get could not install what is missing (its last lines stand above)"
fi
