# shellcheck shell=bash disable=SC2154 # the options are in scripts/lab
#
# Messages, scratch directories, and an end that leaves nothing behind.

# fail WHAT [REMEDY]: the lab itself failed, which is not to be taken for a status of the command.
fail() {
  printf 'lab: %s\n' "$1" >&2
  if [[ -n ${2:-} ]]; then
    printf 'lab: try: %s\n' "$2" >&2
  fi
  exit 125
}

# For what no code here expects to fail. Its own status would be taken for the command's; 125 has been told of already.
unexpected() {
  (($? == 125)) || fail "this failed: $BASH_COMMAND (${BASH_SOURCE[1]##*/}, line ${BASH_LINENO[0]})"
  exit 125
}

# time_is_up WHAT_BECAME_OF_IT
time_is_up() {
  printf 'lab: the time limit of %s s is reached; %s\n' "$time_limit" "$1" >&2
  exit 124
}

note() {
  printf 'lab: %s\n' "$*" >&2
}

# need PROGRAM=PACKAGE...: names every missing package at once, in a line to paste.
need() {
  local pair missing=()
  for pair in "$@"; do
    type -P "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  ((${#missing[@]} == 0)) || fail "missing: ${missing[*]}" "sudo apt-get install ${missing[*]}"
}

# write_command JOB COMMAND [ARGUMENT]...: what `run` runs there, and where its output goes.
write_command() {
  printf '%s\0' "${@:2}" >"$1/arguments"
  printf '%s\0' "$PWD" >"$1/directory"
  : >"$1/stdout"
  : >"$1/stderr"
}

# write_environment PLACE WRITABLE: the variables that a command of the lab gets, each ended by a null byte.
write_environment() {
  local pair name
  while IFS= read -r -d '' pair; do
    name=${pair%%=*}
    if [[ $name == VERBMARK_* || " ${passed_variables[*]} " == *" $name "* ]]; then
      printf '%s\0' "$pair"
    fi
  done < <(env -0)
  printf '%s\0' "PATH=$original_path" "PWD=$PWD" "VERBMARK_LAB=$1" "VERBMARK_LAB_OUT=$2"
}

# What a step undoes may not have been done, or not whole: a step is named before the thing is done, since a signal may
# come in between.
clean_up_steps=()

at_exit() {
  clean_up_steps+=("$1")
}

# The last step first. Another signal does not cut it short; nothing here takes long.
clean_up() {
  local i
  trap '' HUP INT TERM
  trap - ERR
  end_jobs
  for ((i = ${#clean_up_steps[@]} - 1; i >= 0; i--)); do
    "${clean_up_steps[i]}" || true
  done
}

# A signal ends the lab by that signal, so that whoever started it can tell.
clean_up_at_exit() {
  local signal
  trap clean_up EXIT
  for signal in HUP INT TERM; do
    # shellcheck disable=SC2064 # the name is wanted now
    trap "trap - EXIT; clean_up; trap - $signal; kill -$signal \$\$" "$signal"
  done
  at_exit remove_scratch
}

# Ends what was started in the background; the shell knows of it before any variable of ours does. timeout(1) leads a
# process group, in which the command's own children are too, and sees to it that the wait is short.
end_jobs() {
  local process
  for process in $(jobs -p); do
    kill -TERM "$process" 2>/dev/null || continue
    wait "$process" 2>/dev/null || true
    end_group "$process"
  done
}

end_group() {
  kill -KILL -- "-$1" 2>/dev/null || true
}

scratch_directories=()

# scratch VARIABLE TEMPLATE: a directory that is removed at exit. It is made and noted in one step.
scratch() {
  local -n made=$1
  scratch_directories+=("$(mktemp -d -- "$2")")
  made=${scratch_directories[-1]}
  [[ -n $made ]] || fail "cannot make a directory in ${2%/*}" "set TMPDIR or VERBMARK_LAB_CACHE"
}

remove_scratch() {
  ((${#scratch_directories[@]} == 0)) || rm -rf -- "${scratch_directories[@]}"
}
