#!/usr/bin/env bash
# Makes this folder's fixture from a release: renew.sh BUNDLE, an unpacked bundle of the minor version that was released
# last, when work on the next one begins. Extend program.c first by what that version brought.
set -euo pipefail
bundle=$(cd "${1:?usage: renew.sh BUNDLE}" && pwd)
cd "$(dirname "$0")"

# Small, and without a path to a library.
small=(-Os -s -fno-asynchronous-unwind-tables -Wall -Wextra -Werror -Wl,-z,noseparate-code -Wl,--build-id=none)
cp "$bundle/include/iris/c_api.h" include/iris/c_api.h
gcc -std=c11 "${small[@]}" -I include program.c -L "$bundle/lib" -liris -o program
g++ -std=c++17 "${small[@]}" -DIRIS_BACKEND_EMU=1 -DIRIS_KERNELS=emu -I "$bundle/include" ../hello.cc \
  -L "$bundle/lib" -liris -liris_emu -o hello
ls -l include/iris/c_api.h program hello
