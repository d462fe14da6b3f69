# Bash completion of iris-ctl and iris-run. Load it with
#   source <(iris-ctl completion bash)
# or put this file at /usr/share/bash-completion/completions/iris-ctl.

# iris-ctl with the irisd that stands on the line.
_iris_ctl_ask() {
  local arguments=() i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [ "${COMP_WORDS[i]}" = --runtime-dir ]; then arguments=(--runtime-dir "${COMP_WORDS[i + 1]}"); fi
  done
  "${COMP_WORDS[0]}" "${arguments[@]}" "$@" 2>/dev/null
}

# Names of the jobs that irisd knows. Names with blanks are left out.
_iris_ctl_jobs() { _iris_ctl_ask jobs --names; }

# Names of the allocations of a job, those that need no quotes: the second column of the table.
_iris_ctl_allocations() {
  _iris_ctl_ask allocations --job "$1" | while read -r _ name _; do
    if [[ $name =~ ^[A-Za-z0-9_.:/]+$ && $name != NAME ]]; then echo "$name"; fi
  done
}

_iris_ctl() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local commands="status devices jobs describe heaps allocations sessions tenants waits nodes events peek trace doctor"
  commands="$commands completion"
  local common="--runtime-dir --format --help"
  local command="" position=0 i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case " $commands " in *" ${COMP_WORDS[i]} "*)
      command=${COMP_WORDS[i]}
      position=$i
      break
      ;;
    esac
  done
  local words=""
  case "$previous" in
    --runtime-dir) COMPREPLY=($(compgen -d -- "$current")); return ;;
    --format) words="table json" ;;
    --job) words=$(_iris_ctl_jobs) ;;
    --node) COMPREPLY=($(compgen -A hostname -- "$current")); return ;;
    --watch) words="1 2 5 10" ;;
    --bytes) words="64 256 1024 65536" ;;
    --count) words="1 16 64 256" ;;
    --dtype) words="f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool f8e4m3 f8e5m2 hex" ;;
    completion) if [[ $current == -* ]]; then words="--help"; else words="bash"; fi ;;
    *)
      case "$command" in
        "") words="$commands $common --watch --version" ;;
        jobs) words="--job --names --watch $common" ;;
        heaps | allocations) words="--job --watch $common" ;;
        events) words="--follow --job $common" ;;
        waits | nodes)
          words="--job --watch $common"
          if [[ $current != -* && $((COMP_CWORD - position)) -eq 1 ]]; then words=$(_iris_ctl_jobs); fi
          ;;
        describe | peek)
          words="--watch $common"
          if [ "$command" = peek ]; then words="--dtype --count --bytes --from $words"; fi
          # The job's name comes first, then of peek a rank and an allocation of that job.
          if [[ $current != -* ]]; then
            case $((COMP_CWORD - position)) in
              1) words=$(_iris_ctl_jobs) ;;
              3) if [ "$command" = peek ]; then words=$(_iris_ctl_allocations "${COMP_WORDS[position + 1]}"); fi ;;
            esac
          fi
          ;;
        trace)
          words="--seconds --output --rank --merge --runtime-dir --help"
          if [[ $current != -* && $((COMP_CWORD - position)) -eq 1 ]]; then words=$(_iris_ctl_jobs); fi
          ;;
        doctor) words="--node --rsh --rendezvous $common" ;;
        completion) words="--help" ;;
        *) words="--watch $common" ;;
      esac
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}

_iris_run() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [ "${COMP_WORDS[i]}" = -- ]; then
      if [ $((i + 1)) -eq "$COMP_CWORD" ]; then COMPREPLY=($(compgen -c -- "$current")); fi
      return
    fi
  done
  case "$previous" in
    -n | -np | --ranks) COMPREPLY=($(compgen -W "1 2 4 8" -- "$current")) ;;
    --runtime-dir) COMPREPLY=($(compgen -d -- "$current")) ;;
    --bind) COMPREPLY=($(compgen -W "none cores" -- "$current")) ;;
    --hosts) COMPREPLY=($(compgen -A hostname -- "$current")) ;;
    --hostfile) COMPREPLY=($(compgen -f -- "$current")) ;;
    *)
      local options="-n --job --runtime-dir --env --bind --no-prefix --timeout --grace --kill-after"
      options="$options --hosts --hostfile --rsh --rendezvous --connect-timeout"
      options="$options --keep-going --verbose --help --version --"
      COMPREPLY=($(compgen -W "$options" -- "$current"))
      ;;
  esac
}

complete -o filenames -o default -F _iris_ctl iris-ctl
complete -o filenames -o default -F _iris_run iris-run
