#!/bin/bash
# The public headers of the host library pull in no header of gRPC or protobuf: a program that uses Iris needs neither
# installed.
# Arguments: the translation unit that includes them all.
set -u
source=$1
# The sources themselves: the runfiles have links to some of them.
cd "$(dirname "$(readlink -f "$source")")/../.." || exit 1
compiler=${CXX:-g++}
dependencies=$("$compiler" -std=c++20 -DIRIS_BACKEND_EMU=1 -I. -M "$source") || {
  echo "FAILED: $source does not preprocess"
  exit 1
}
found=$(tr ' \\' '\n\n' <<<"$dependencies" | grep -E '/(grpc|grpcpp|google/protobuf|spdlog)/|\.pb\.h$')
if [ -n "$found" ]; then
  echo "FAILED: public headers include:"
  echo "$found"
  exit 1
fi
# The test can fail: the same search finds what a header of gRPC pulls in.
planted=$(mktemp --suffix=.cc)
trap 'rm -f "$planted"' EXIT
printf '#include "client/iris/context.h"\n#include <grpcpp/grpcpp.h>\n' >"$planted"
if ! "$compiler" -std=c++20 -DIRIS_BACKEND_EMU=1 -I. -M "$planted" | grep -qE '/grpcpp/'; then
  echo "FAILED: a planted gRPC header was not found"
  exit 1
fi
echo "PASSED"
