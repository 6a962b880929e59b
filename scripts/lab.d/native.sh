# shellcheck shell=bash disable=SC2154 # the options are in scripts/lab
#
# This machine as the lab: its own kernel drives rxe0. An rxe0 that is there already is used as it is, and left.
#
# Labs at the same time share one rxe0. `gate` lets one lab at a time make or remove it, every lab holds `users` while
# it runs, and `made` says that a lab made it. Locks, unlike counts, do not outlive a lab that was killed.

native_state=/run/verbmark-lab
native_interface=verbmark0
native_obstacle=
native_users=
native_gate=

# Whether rxe0 is there now; ends the lab if it is not and has to be.
native_setup() {
  if native_has_rxe && ((EUID != 0)); then
    return 0
  fi
  if native_check && native_join; then
    return 0
  fi
  [[ $place != native ]] || fail "cannot have rxe0 on this machine: $native_obstacle" "scripts/lab --vm"
  return 1
}

native_has_rxe() {
  [[ -e /sys/class/infiniband/rxe0 ]]
}

native_check() {
  if ((EUID != 0)); then
    native_obstacle="making it needs root"
  elif ! [[ -d /sys/module/rdma_rxe ]] && ! modprobe --quiet --dry-run rdma_rxe 2>/dev/null; then
    native_obstacle="kernel $(uname -r) has no module rdma_rxe"
  elif ! type -P rdma >/dev/null; then
    native_obstacle="the rdma command is missing (package iproute2)"
  else
    return 0
  fi
  return 1
}

native_join() {
  if ! mkdir -p "$native_state"; then
    native_obstacle="cannot write to /run"
    return 1
  fi
  exec {native_users}<>"$native_state/users"
  at_exit native_leave
  native_lock_gate
  if native_has_rxe || native_make; then
    flock --shared "$native_users"
    native_unlock_gate
    return 0
  fi
  native_leave
  return 1
}

native_make() {
  local message routes
  routes=$(ip -4 route show table all to match 10.7.0.1 | grep -v ^default) || true
  if [[ -n $routes ]]; then
    native_obstacle="the address 10.7.0.1 is in use here"
    return 1
  fi
  : >"$native_state/made"
  modprobe --quiet rdma_rxe 2>/dev/null || true # it may be built in
  message=$(ip link add "$native_interface" type dummy 2>&1 &&
    rxe_add "$native_interface" 10.7.0.1/24 "$mtu" 2>&1) || {
    native_obstacle=${message:-unknown}
    return 1
  }
}

native_leave() {
  [[ -n $native_users ]] || return 0
  native_lock_gate
  if [[ -e $native_state/made ]] && flock --nonblock --exclusive "$native_users"; then
    rdma link delete rxe0 2>/dev/null || true
    ip link delete "$native_interface" 2>/dev/null || true
    rm -f "$native_state/made"
  fi
  exec {native_users}>&-
  native_users=
  native_unlock_gate
}

# Stands being called again by a clean-up that came in between.
native_lock_gate() {
  [[ -n $native_gate ]] || exec {native_gate}<>"$native_state/gate"
  flock --exclusive "$native_gate"
}

native_unlock_gate() {
  exec {native_gate}>&-
  native_gate=
}

native_run() {
  local began=$SECONDS process status=0
  write_environment native "$writable" >"$job/environment"
  # No lock of ours may live on in what the command leaves behind.
  (
    [[ -z $native_users ]] || exec {native_users}>&-
    exec setpriv --pdeathsig TERM timeout --kill-after=5 "$time_limit" bash "$job/run" "$job"
  ) &
  process=$!
  wait "$process" || status=$?
  end_group "$process"
  if ((status == 124 || status == 137)) && ((SECONDS - began >= time_limit)); then
    time_is_up "the command was ended"
  fi
  exit "$status"
}
