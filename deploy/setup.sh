#!/usr/bin/env bash
# Installs what building and testing Iris needs and this machine lacks: from Debian 12's own archive, and a few packages
# from the Python Package Index (PyPI).
#
#   deploy/setup.sh            everything: the second compiler, the sanitizers, and what the bundle is made of
#   deploy/setup.sh --build    only what building and running needs (deploy/run-demo.sh)
#   deploy/setup.sh --hip      besides everything, the compiler of the bundle's kernels for AMD's GPUs
#   deploy/setup.sh --check    installs nothing; exit code 1 and a list if something is missing
#
# Everything includes the sources of the installed abseil, which third_party/abseil_source.bzl compiles for the bundle,
# and the packages of PyPI that tests use (wheels.txt, triton.txt, ucx.txt). They come last: where the index cannot be
# reached, the exit code is 3, all else is there, and the tests that want them are skipped and say so. --build alone
# uses no package of PyPI. The compiler for AMD's GPUs is not Debian's, which is too old: it is in the wheel ziglang of
# PyPI.
#
# It is quiet, and done at once when nothing is missing. It runs as root, or through sudo.
set -euo pipefail

build_packages=(
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  g++ libc6-dev
  libabsl-dev libboost-context-dev libcli11-dev libfmt-dev libgcrypt20-dev libgrpc++-dev libgrpc-dev
  libprotobuf-dev libprotozero-dev libspdlog-dev libsystemd-dev libtomlplusplus-dev libucx-dev
  nlohmann-json3-dev
  patchelf
  protobuf-compiler protobuf-compiler-grpc
  python3
  zlib1g-dev
)
test_packages=(
  clang-19 libclang-rt-19-dev
  clang-format-14
  cmake doxygen pkgconf
  dpkg-dev
  etcd-server
  iproute2 nftables
  mpich openmpi-bin
  mypy
  libgmock-dev libgtest-dev
  openssl
  python3-grpcio python3-h2 python3-numpy python3-protobuf python3-torch
  python3-pip
  libpmix-dev slurm-client slurmctld slurmd
  systemd
)

fail() {
  echo "deploy/setup.sh: $*" >&2
  exit 1
}

# As third_party/abseil_source.bzl has it.
abseil_folder=/usr/local/src/iris/abseil
# As third_party/gpu_toolkits.bzl has it.
hip_folder=/usr/local/src/iris/hip
ziglang=ziglang==0.17.1
# As third_party/gpu_toolkits.bzl and tests/bundle/bundle_test.py have it.
wheels_root=/usr/local/lib/iris
wheel_lists=(wheels triton ucx) # each NAME.txt is unpacked into the folder NAME
lists_folder=$(dirname "$0")

check_only=false
with_sources=true # those of abseil, and the wheels
with_hip=false
wanted=("${build_packages[@]}" "${test_packages[@]}")
for argument in "$@"; do
  case "$argument" in
    --build)
      wanted=("${build_packages[@]}")
      with_sources=false
      ;;
    --hip) with_hip=true ;;
    --check) check_only=true ;;
    -h | --help)
      sed -n '2,16s/^# \{0,1\}//p' "$0"
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
# The sources that are there must be those of the headers that are installed.
abseil_version() { dpkg-query -W -f='${source:Version}' libabsl-dev; }
lacks_abseil_source() {
  $with_sources && [ "$(cat "$abseil_folder/VERSION" 2>/dev/null)" != "$(abseil_version 2>/dev/null)" ]
}
hip_version() { echo "$ziglang libamdhip64-dev"; }
lacks_hip() { $with_hip && [ "$(cat "$hip_folder/VERSION" 2>/dev/null)" != "$(hip_version)" ]; }
lacks_wheels() { $with_sources && ! cmp -s "$lists_folder/$1.txt" "$wheels_root/$1/$1.txt"; }
lacking=("${missing[@]}")
! lacks_abseil_source || lacking+=("the sources of abseil in $abseil_folder")
! lacks_hip || lacking+=("a compiler for AMD's GPUs in $hip_folder")
for list in "${wheel_lists[@]}"; do
  ! lacks_wheels "$list" || lacking+=("the packages of deploy/$list.txt in $wheels_root/$list")
done
[ ${#lacking[@]} -gt 0 ] || exit 0

if $check_only; then
  echo "missing: ${lacking[*]}"
  exit 1
fi

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }
[ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
  fail "must install ${lacking[*]}: run it as root, or install sudo"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # apt reads it as a user of its own
log=$work/log
apt() {
  as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
    apt-get -qq -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1
}
# Succeeds if a disk is full: pip and apt-get say so in the middle of much else, and say nothing where no disk has room
# for that, either.
full_disk() {
  local folder
  if grep -qE 'No space left on device|Disk quota exceeded|enough free space' "$log"; then return; fi
  for folder in "$work" / /var /usr/local; do
    [ "$(df --output=avail -k "$folder" 2>/dev/null | tail -n 1)" -lt 4096 ] 2>/dev/null && return
  done
  return 1
}
disk_text="a disk is full: make room in $work, /var/cache/apt or /usr (df -h), or set TMPDIR to a folder with some"
# What to do, and what to say if it fails.
try() {
  "$1" && return
  tail -n 20 "$log" >&2
  ! full_disk || fail "$2: $disk_text (what it last said stands above)"
  fail "$2 (what it last said stands above)"
}
# The stamp comes last: with it, the folder is whole.
install_folder() { # FOLDER STAMP SOURCE...
  as_root rm -rf "$1" && as_root mkdir -p "$1" && as_root cp -r "${@:3}" "$1/" &&
    as_root chmod -R go+rX "$1" && as_root cp "$2" "$1/"
} 2>>"$log"

# The lists of a machine that was just made are empty, those of an old one out of date.
install_packages() { apt update && apt install --no-install-recommends "${missing[@]}"; }
if [ ${#missing[@]} -gt 0 ]; then
  echo "deploy/setup.sh: installing ${missing[*]}"
  try install_packages "apt-get could not install what is missing"
fi
# Debian starts etcd where an init system runs. Tests start their own.
if [[ " ${missing[*]} " == *" etcd-server "* ]]; then
  { as_root update-rc.d etcd disable && as_root service etcd stop; } >>"$log" 2>&1 || true
fi

# Debian's source package, with Debian's patches, from where this machine has its packages. The machine's own lists of
# packages stay as they are.
fetch_abseil_source() {
  local file
  mkdir -p "$work/parts" "$work/lists/partial" "$work/source" || return
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ ! -f "$file" ] || sed -n 's/^deb /deb-src /p' "$file" >"$work/parts/$(basename "$file" .list).list"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [ ! -f "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/parts/$(basename "$file")"
  done
  local from=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/parts"
    -o "Dir::State::lists=$work/lists")
  apt "${from[@]}" update || true # another archive's trouble; without Debian's, the next line fails
  (cd "$work/source" && apt "${from[@]}" source "abseil=$(abseil_version)") && abseil_version >"$work/VERSION" &&
    install_folder "$abseil_folder" "$work/VERSION" "$work"/source/abseil-*/{absl,LICENSE}
}
if lacks_abseil_source; then
  echo "deploy/setup.sh: fetching the sources of abseil $(abseil_version) into $abseil_folder"
  try fetch_abseil_source "apt-get could not fetch the sources of abseil $(abseil_version), the version of libabsl-dev"
fi

# The wheel is unpacked, not installed, and of Zig's own library the compiler's headers alone are taken; of Debian's
# package of HIP the headers, without what it depends on.
fetch_hip() {
  mkdir -p "$work/hip/whole" || return
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work/hip" "$ziglang" >>"$log" 2>&1 &&
    (cd "$work/hip" && python3 -m zipfile -e ziglang-*.whl wheel && apt download libamdhip64-dev) &&
    dpkg-deb -x "$work"/hip/libamdhip64-dev_*.deb "$work/hip/debian" &&
    chmod 755 "$work/hip/wheel/ziglang/zig" &&
    (cd "$work/hip/wheel" && cp -r --parents ziglang/{zig,LICENSE,lib/include} ../whole) &&
    (cd "$work/hip/debian/usr" && cp -r --parents include/hip ../../whole) &&
    hip_version >"$work/VERSION" && install_folder "$hip_folder" "$work/VERSION" "$work/hip/whole/."
}
if lacks_hip; then
  echo "deploy/setup.sh: fetching a compiler for AMD's GPUs into $hip_folder"
  try fetch_hip "pip or apt-get could not fetch the wheel $ziglang of PyPI and Debian's libamdhip64-dev"
fi

# As any user, and by the hashes of the list: nothing in them runs here.
fetch_wheels() { # LIST
  local unpacked=$work/$1
  timeout -k 10 1800 /usr/bin/python3 -m pip --quiet --no-input --no-cache-dir --disable-pip-version-check \
    --retries 2 install --only-binary :all: --no-deps --require-hashes --no-warn-script-location \
    --root-user-action ignore --target "$unpacked" -r "$lists_folder/$1.txt" >"$log" 2>&1 || return
  # nvcc looks for the CUDA runtime in lib64, as in an installed toolkit; the wheels have it in lib.
  if [ -d "$unpacked/nvidia/cu13/lib" ] && [ ! -e "$unpacked/nvidia/cu13/lib64" ]; then
    ln -s lib "$unpacked/nvidia/cu13/lib64" || return
  fi
  install_folder "$wheels_root/$1" "$lists_folder/$1.txt" "$unpacked/." && rm -rf "$unpacked"
}
code=0
for list in "${wheel_lists[@]}"; do
  lacks_wheels "$list" || continue
  echo "deploy/setup.sh: fetching the packages of deploy/$list.txt into $wheels_root/$list"
  if ! fetch_wheels "$list"; then
    tail -n 5 "$log" >&2
    full_disk && fail "the packages of deploy/$list.txt are not there: $disk_text (what pip last said stands above)"
    echo "deploy/setup.sh: pip could not fetch the packages of deploy/$list.txt (its last lines stand above). All" \
      "else is there. Without them a few cases of tests are skipped: run deploy/setup.sh again when pip can" \
      "reach its index (PIP_INDEX_URL, PIP_CERT)" >&2
    code=3
  fi
done
exit $code
