#!/usr/bin/env bash
# Installs what is missing, builds everything, and runs every test: by the first compiler as it is, by the second under
# the sanitizers.
# The last line is "N passed, N failed". The exit code is 0 if nothing failed. A test that passed only when it was tried
# again is named in a line that begins with "flaky".
#
#   deploy/run-tests.sh                     all runs
#   deploy/run-tests.sh gcc asan            only these: gcc, kernels, asan, tsan
#
# The run `kernels` compiles the bundle's kernels for GPUs where there is nvcc, and looks at what compilers make of them
# (tests/isa), which takes long. If it is not named, it is only done if a file of theirs is not as it was when both last
# passed (deploy/kernels.stamp: commit it).
#
# It can be run again: only what changed is built and run. What was compiled is kept for all checkouts of this user
# (common.sh: IRIS_BUILD_CACHE); tests run again in each.
# shellcheck disable=SC1091
. "$(dirname "$0")/common.sh"

for argument in "$@"; do
  case "$argument" in
    gcc | kernels | asan | tsan) ;;
    -h | --help)
      sed -n '2,/^#$/s/^# \{0,1\}//p' deploy/run-tests.sh
      echo "deploy/run-tests.sh [gcc] [kernels] [asan] [tsan]: these runs; all of them if none is named."
      exit 0
      ;;
    *)
      echo "run-tests.sh: unknown run '$argument': there are gcc, kernels, asan and tsan" >&2
      exit 2
      ;;
  esac
done

# 3: all but the packages of the Python Package Index. The few cases that want them are skipped.
deploy/setup.sh || [ $? -eq 3 ]

trim_build_cache
use_build_cache
folder=$(mktemp -d)
finish() {
  bazel_ shutdown >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

wanted=("$@")
results=()

# run NAME ARGS...: one bazel test; its failure is counted at the end.
run() {
  local name=$1 code=0 start=$SECONDS
  shift
  if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $name "* ]]; then return; fi
  say "$name"
  bazel_ test "${quiet[@]}" --keep_going --build_event_json_file="$folder/$name.json" "$@" || code=$?
  if [ "$code" -eq 8 ]; then exit 130; fi  # interrupted
  echo "$name took $((SECONDS - start)) s"
  results+=("$name=$folder/$name.json=$code")
}

# A test that fails is tried once more: what passes then is named as flaky, which is to be mended.
# One job more than there are CPUs, because many tests wait most of their time. Compilers still get one CPU each.
jobs=$(($(nproc) + 1))
test_options=(--test_output=summary --test_summary=none "--jobs=$jobs" "--local_test_jobs=$jobs"
  --flaky_test_attempts=2 --modify_execution_info=TestRunner=+no-cache)

kernels=(//tests/isa:cuda_sources_test //tests/isa:isa_test //tests/isa:matmul_test)

# Everything as it ships. C++ tests of host code run under AddressSanitizer instead, which is stricter, but for those
# with cases that sanitizers leave out or shorten, and those of irisd's confinement, which it does without there: tag
# `plain`.
{
  printf '%s\n' //... "${kernels[@]/#/-}"
  bazel_ query --ui_event_filters=-info --noshow_progress "kind(cc_test,
      //client/... + //server/... + //proto/... + //device/base/... + //device/driver/... + //device/local/... +
      //tests/fault/... + //tests/integration/... + //tests/model/... + //tests/restart/...)
      except attr(tags, plain, //...)" |
    sed 's/^/-/'
} >"$folder/plain"
run gcc --config=plain "${test_options[@]}" --target_pattern_file="$folder/plain"
key=$(kernels_key)
if [[ " ${wanted[*]} " == *" kernels "* ]] || ! cmp -s deploy/kernels.stamp <<<"$key"; then
  if nvcc_path >/dev/null; then kernels+=(//deploy:gpu_kernels_test); fi
  run kernels "${test_options[@]}" "${kernels[@]}"
  if [[ " ${results[*]} " == *" kernels=$folder/kernels.json=0 "* ]] && nvcc_path >/dev/null; then
    echo "$key" >deploy/kernels.stamp
  fi
fi
# AddressSanitizer and UndefinedBehaviorSanitizer: every test of C++ code, but for tests/hostile, which measures memory,
# tests/systemd, whose unit lets irisd make no system calls but its own, tests/launchers and tests/nodes, which are
# about other programs and times, and tests/conformance: AddressSanitizer does not know where memory in a mapped heap
# ends.
# It is built by the second compiler, with -Wthread-safety.
run asan --config=asan "${test_options[@]}" --build_tests_only -- \
  //... -//tests/bench/... -//tests/conformance/... -//tests/mutation/... -//tests/tidy/... -//examples/... \
  -//deploy/... -//tests/bundle/... -//tests/isa/... -//tests/hostile/... -//tests/launchers/... -//tests/nodes/... \
  -//tests/systemd/...
# ThreadSanitizer and UndefinedBehaviorSanitizer: device code and its protocols, with ranks as threads.
run tsan --config=tsan "${test_options[@]}" --build_tests_only -- \
  //device/iris/... //tests/conformance/...

say "result"
python3 deploy/count_tests.py "${results[@]}"
