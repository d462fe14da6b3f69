# Bash completion of iris-ctl and iris-run. Load it with
#   source <(iris-ctl completion bash)
# or put this file at /usr/share/bash-completion/completions/iris-ctl.

# Names of the jobs that irisd knows, asked with the options that stand on the line. Names with blanks are left out.
_iris_ctl_jobs() {
  local arguments=() i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [ "${COMP_WORDS[i]}" = --runtime-dir ]; then arguments=(--runtime-dir "${COMP_WORDS[i + 1]}"); fi
  done
  "${COMP_WORDS[0]}" "${arguments[@]}" jobs --names 2>/dev/null
}

_iris_ctl() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local commands="status devices jobs heaps allocations sessions events peek doctor completion"
  local options="--runtime-dir --format --watch --help --version"
  local command="" i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case " $commands " in *" ${COMP_WORDS[i]} "*)
      command=${COMP_WORDS[i]}
      break
      ;;
    esac
  done
  local words=""
  case "$previous" in
    --runtime-dir) COMPREPLY=($(compgen -d -- "$current")); return ;;
    --format) words="table json" ;;
    --job) words=$(_iris_ctl_jobs) ;;
    --watch) words="1 2 5 10" ;;
    --bytes) words="64 256 1024 65536" ;;
    completion) words="bash" ;;
    *)
      case "$command" in
        "") words="$commands $options" ;;
        jobs | heaps | allocations) words="--job $options" ;;
        events) words="--follow --job $options" ;;
        peek)
          words="--bytes $options"
          if [ "$previous" = peek ] && [[ $current != -* ]]; then words=$(_iris_ctl_jobs); fi
          ;;
        *) words="$options" ;;
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
    -n | --ranks) COMPREPLY=($(compgen -W "1 2 4 8" -- "$current")) ;;
    --runtime-dir) COMPREPLY=($(compgen -d -- "$current")) ;;
    *)
      local options="-n --job --runtime-dir --prefix --no-prefix --timeout --grace --help --version --"
      COMPREPLY=($(compgen -W "$options" -- "$current"))
      ;;
  esac
}

complete -o filenames -o default -F _iris_ctl iris-ctl
complete -o filenames -o default -F _iris_run iris-run
