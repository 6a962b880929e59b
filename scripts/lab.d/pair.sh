# shellcheck shell=bash disable=SC2154 # the options are in scripts/lab
#
# Two virtual machines as the lab, joined by a wire: each datagram on a pair of sockets is a frame. The command runs on
# this machine; pair/at and pair/wire, on its path, reach the two.
#
# Each machine has a job directory of its own, and in it `port.in`, which is its second serial port: a line there says
# which of the commands in `commands` to begin. Unlike a file that it would look for, it wakes the guest at once and
# costs it nothing meanwhile: polling would take the one processor from what is tested.

pair_run() {
  local status=0
  vm_prepare
  pair_check_qemu
  vm_initramfs >"$job/initrd"
  printf '%s\n' "${passed_variables[@]}" >"$job/passed"
  pair_start a b 1
  pair_start b a 2
  pair_await_boot a
  pair_await_boot b
  pair_command || status=$?
  exit "$status"
}

# Frames as datagrams came with QEMU 7.2.
pair_check_qemu() {
  local help
  help=$(qemu-system-x86_64 -display none -netdev help 2>/dev/null)
  grep -qx dgram <<<"$help" || fail "$(qemu-system-x86_64 --version | head -n 1) has no -netdev dgram" "QEMU 7.2 or newer"
}

# pair_start NAME PEER NUMBER
pair_start() {
  local own=$job/$1
  mkdir -p -- "$own/commands" "$writable/$1"
  mkfifo -- "$own/port.in" "$own/port.out"
  write_environment "$accelerator" "$writable/$1" >"$own/environment"
  vm_fill_job "$own" "$writable/$1" "with_rxe=$with_rxe" "mtu=$mtu" "machine=$1" "address=10.7.0.$3"
  vm_machine "$accelerator" "$job/initrd" "$own/console" ""
  # The path of a socket may have some hundred bytes only, so QEMU gets one that begins at its working directory.
  vm_command+=(
    -chardev "pipe,id=port,path=$(vm_escape "$own/port")" -serial chardev:port
    -netdev "dgram,id=wire,local.type=unix,local.path=wire-$1,remote.type=unix,remote.path=wire-$2"
    -device "virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0$3,romfile="
  )
  vm_directory=$job vm_start "$own" "$writable/$1"
  echo "$vm" >"$own/pid"
}

# pair_await_boot NAME
pair_await_boot() {
  local own=$job/$1
  vm=$(<"$own/pid")
  while [[ ! -e $own/started ]]; do
    if ! vm_runs || [[ -s $own/failed ]]; then
      ((SECONDS - vm_began < time_limit)) || time_is_up "machine $1 was not up yet"
      [[ -s $own/failed ]] || vm_fail "$own" "machine $1 did not boot" "scripts/lab --accel tcg, or another --kernel"
      vm_fail "$own" "machine $1: $(<"$own/failed")"
    fi
    ((SECONDS - vm_began < boot_limit)) ||
      vm_fail "$own" "machine $1 was not up after $boot_limit s" "scripts/lab --accel tcg, or a less busy machine"
    sleep 0.1
  done
}

# The command has what is left of the time.
pair_command() {
  local process status=0 left=$((time_limit - (SECONDS - vm_began)))
  ((left > 0)) || time_is_up "the virtual machines were not up yet"
  {
    write_environment "$accelerator" "$writable"
    printf '%s\0' "PATH=$parts/pair:$original_path" "VERBMARK_LAB_PAIR=$job"
  } >"$job/environment"
  setpriv --pdeathsig TERM timeout --kill-after=5 "$left" bash "$job/run" "$job" &
  process=$!
  wait "$process" || status=$?
  end_group "$process"
  if ((status == 124 || status == 137)) && ((SECONDS - vm_began >= time_limit)); then
    time_is_up "the command and both virtual machines were ended"
  fi
  return "$status"
}
