#!/usr/bin/env bash
# Installs what is missing, builds Iris, starts irisd with eight emulated devices, trains a model on four processes
# whose gradients meet in symmetric heaps, and shows with iris-ctl what irisd owns while that runs and afterwards.
# Then it trains the model once more and kills irisd five times meanwhile: the weights are the same, bit for bit. It
# cleans up. The exit code is 0 if all of that was as it should be. It can be run again, and it touches nothing but
# a temporary folder and Bazel's cache.
# shellcheck disable=SC1091
. "$(dirname "$0")/common.sh"

case "${1:-}" in
  "") ;;
  -h | --help)
    sed -n '2,/^# a temporary/s/^# \{0,1\}//p' deploy/run-demo.sh
    exit 0
    ;;
  *)
    echo "run-demo.sh: it takes no arguments, and not '$1'" >&2
    exit 2
    ;;
esac

started=$SECONDS
deploy/setup.sh --build
use_build_cache

folder=""
irisd_pid=""
training_pid=""
finish() {
  if [ -n "$training_pid" ]; then kill "$training_pid" 2>/dev/null && wait "$training_pid" || true; fi
  if [ -n "$irisd_pid" ]; then kill -INT "$irisd_pid" 2>/dev/null && wait "$irisd_pid" || true; fi
  if [ -n "$folder" ]; then rm -rf "$folder"; fi
  bazel_ shutdown >/dev/null 2>&1 || true
}
trap finish EXIT
trap 'exit 130' INT TERM
fail() {
  echo "run-demo.sh: $*" >&2
  exit 1
}

say "build"
bazel_ build "${quiet[@]}" --config=opt //server:irisd //client/ctl:iris-ctl //client/ctl:iris-run \
  //examples:10_digits_training
bin=$(bazel_ info --config=opt bazel-bin 2>/dev/null)
bazel_ shutdown
echo "built in $((SECONDS - started)) s"

folder=$(mktemp -d /tmp/iris-demo-XXXXXX)
export IRIS_RUNTIME_DIR=$folder/run
iris_ctl() { "$bin/client/ctl/iris-ctl" "$@"; }
show() {
  printf '\n$ iris-ctl %s\n' "$*"
  iris_ctl "$@"
}
show_all() { for command in jobs heaps allocations sessions; do show "$command"; done; }

say "start irisd"
"$bin/server/irisd" --supervise --runtime-dir "$IRIS_RUNTIME_DIR" --emu-devices 8 --emu-memory 1GiB \
  >"$folder/irisd.log" 2>&1 &
irisd_pid=$!
await() { # PID WHAT COMMAND...: waits a minute until the command succeeds while the process runs
  for ((i = 0; i < 1200; ++i)); do
    if "${@:3}" >/dev/null 2>&1; then return; fi
    kill -0 "$1" 2>/dev/null || break
    sleep 0.05
  done
  cat "$folder"/*.log >&2
  fail "$2"
}
await "$irisd_pid" "irisd does not answer" iris_ctl status
show status

train() { # LOG: starts it
  "$bin/client/ctl/iris-run" -n 4 --job digits --timeout 600 -- \
    "$bin/examples/10_digits_training" >"$1" 2>&1 &
  training_pid=$!
}
end_training() { # LOG
  code=0
  wait "$training_pid" || code=$?
  training_pid=""
  [ "$code" -eq 0 ] || fail "the training ended with exit code $code; irisd says: $(tail -n 5 "$folder/irisd.log")"
  grep -q "weights identical on 4 ranks" "$1" || fail "the weights were not compared"
  grep -Eq "test accuracy 0\.9[4-9]|test accuracy 1" "$1" || fail "test accuracy below 0.94"
}
has_gradients() {
  iris_ctl jobs --job digits --format json | grep -q '"state": "ready"' &&
    iris_ctl allocations --job digits | grep -q gradients
}

say "train on four processes"
train "$folder/training.log"
await "$training_pid" "the job did not become ready" has_gradients
echo "While it runs:"
show_all
kill -0 "$training_pid" 2>/dev/null || fail "the job had ended before it was shown"
echo
tail -n +1 -f --pid="$training_pid" "$folder/training.log"
end_training "$folder/training.log"

say "afterwards"
for ((i = 0; i < 100; ++i)); do # the processes are gone; irisd hears of it a moment later
  if [ "$(iris_ctl sessions)" = "no sessions" ]; then break; fi
  sleep 0.1
done
show_all
for command in jobs heaps allocations sessions; do
  [ "$(iris_ctl "$command")" = "no $command" ] || fail "something is left: iris-ctl $command"
done
iris_ctl status --format json | grep -q '"heap_bytes": 0,' || fail "irisd still holds heap memory"

say "train again, and kill irisd meanwhile"
serving_pid() { iris_ctl status --format json 2>/dev/null | sed -n 's/^ *"pid": \([0-9]*\),\{0,1\}$/\1/p'; }
another_serves() {
  served=$(serving_pid)
  [ -n "$served" ] && [ "$served" != "$killed" ]
}
train "$folder/again.log"
await "$training_pid" "the job did not become ready" has_gradients
for epoch in 12 32 52 72 92; do
  await "$training_pid" "it does not come to epoch $epoch" grep -q "epoch  *$epoch " "$folder/again.log"
  killed=$(serving_pid)
  kill -KILL "$killed"
  await "$training_pid" "irisd did not come back" another_serves
  echo "in epoch $epoch irisd, process $killed, was killed; process $served goes on with its heaps"
done
printf '\n$ iris-ctl events | grep recovered\n'
iris_ctl events | grep recovered
end_training "$folder/again.log"
tail -n 3 "$folder/again.log"
diff "$folder/training.log" "$folder/again.log" >&2 || fail "the second training is not as the first"
echo "Losses, accuracy and weights are those of the undisturbed training."

say "stop irisd"
kill -INT "$irisd_pid"
code=0
wait "$irisd_pid" || code=$?
irisd_pid=""
[ "$code" -eq 0 ] || fail "irisd ended with exit code $code: $(tail -n 5 "$folder/irisd.log")"
[ -z "$(find "$IRIS_RUNTIME_DIR" -type s 2>/dev/null)" ] || fail "irisd left its sockets behind"
rm -rf "$folder"

# What may be left: Bazel's cache. What must not: a process of this build, a file of this run.
left=""
for each in /proc/[0-9]*; do
  case "$(readlink "$each/exe" 2>/dev/null || true)" in "$bin"/*) left="$left ${each#/proc/}" ;; esac
done
[ -z "$left" ] || fail "processes are left: $left"
[ ! -e "$folder" ] || fail "$folder is left"
folder=""
echo "irisd stopped; no process and no file is left. The demo took $((SECONDS - started)) s."
