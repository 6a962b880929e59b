# shellcheck shell=bash disable=SC2154 # the options are in scripts/lab
#
# A virtual machine as the lab: a distribution's kernel in QEMU, with this machine's file system as its root.

# How long a machine may take to come up: it takes about five seconds on an idle host, without KVM.
boot_limit=180
# How long to try whether KVM works here: with it, this takes about a second.
kvm_limit=15

vm=
vm_directory=.
vm_hangs=false
vm_readers=()

vm_prepare() {
  [[ $(uname -m) == x86_64 ]] || fail "the virtual machine is x86_64 only, not $(uname -m)" "scripts/lab --native"
  need qemu-system-x86_64=qemu-system-x86 busybox=busybox-static cpio=cpio modprobe=kmod ip=iproute2
  # Debian has a package busybox too, whose program does not run where no library is.
  ! ldd "$(type -P busybox)" >/dev/null 2>&1 || fail "busybox is not static" "sudo apt-get install busybox-static"
  kernel_prepare
  vm_choose_accelerator
}

vm_run() {
  vm_prepare
  write_environment "$accelerator" "$writable" >"$job/environment"
  vm_fill_job "$job" "$writable" "with_rxe=$with_rxe" "mtu=$mtu"
  vm_initramfs >"$job/initrd"
  vm_machine "$accelerator" "$job/initrd" "$job/console" ""
  vm_start "$job" "$writable"
  # The shell itself would tell of a QEMU that aborts; vm_result does.
  vm_await_boot 2>/dev/null
  vm_pass_on
  vm_result
}

# vm_fill_job JOB WRITABLE SETTING...: what the guest finds in its job directory.
vm_fill_job() {
  cp -- "$parts/guest" "$parts/rxe.sh" "$parts/run" "$1/"
  printf '%s\n' "$2" >"$1/writable"
  printf '%s\n' "${@:3}" >"$1/settings"
}

# vm_initramfs: process 1 and the few programs it needs, then the modules. The kernel takes archives one after another.
vm_initramfs() {
  local stage program
  scratch stage "${TMPDIR:-/tmp}/verbmark-lab-init.XXXXXX"
  mkdir "$stage/bin"
  cp -- "$(type -P busybox)" "$stage/bin/busybox"
  for program in sh mount mkdir chmod insmod hostname ln cat reboot switch_root; do
    ln -s busybox "$stage/bin/$program"
  done
  install -m 755 -- "$parts/init" "$stage/init"
  archive "$stage"
  rm -r -- "$stage"
  cat -- "$kernel_directory/modules"
}

# vm_machine ACCELERATOR INITRAMFS CONSOLE APPEND: sets vm_command to what starts such a machine, short of its devices.
vm_machine() {
  local processor=max boot accelerator=$1
  case $1 in
    kvm) processor=host ;;
    tcg) accelerator=tcg,thread=multi,tb-size=256 ;;
  esac
  boot="console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr audit=0 random.trust_cpu=on"
  # The kernel would trust no TSC under an emulated processor, and reading any other clock is a system call there.
  boot+=" tsc=reliable clocksource=tsc"
  vm_command=(
    qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none
    -machine q35 -accel "$accelerator" -cpu "$processor" -smp "$cpus" -m "$memory"
    -kernel "$kernel_directory/kernel" -initrd "$2" -append "$boot $4"
    -chardev "file,id=console,path=$(vm_escape "$3")" -serial chardev:console
  )
}

# vm_share TAG PATH [OPTION]: adds a directory that the guest mounts by its tag.
vm_share() {
  vm_command+=(
    -fsdev "local,id=$1,path=$(vm_escape "$2"),security_model=none${3:+,$3}"
    -device "virtio-9p-pci,fsdev=$1,mount_tag=$1"
  )
}

# A comma separates QEMU's options.
vm_escape() {
  printf '%s' "${1//,/,,}"
}

# vm_start JOB WRITABLE: the machine in vm_command, with these directories.
vm_start() {
  # Several file systems of this machine show in one of the guest's: their inode numbers must be kept apart.
  vm_share root / readonly=on,multidevs=remap
  vm_share job "$1"
  vm_share writable "$2" multidevs=remap
  vm_began=$SECONDS
  # timeout(1) also bounds a machine whose lab was killed outright; before that, the lab's death ends it.
  setpriv --pdeathsig TERM timeout --kill-after=5 "$time_limit" env --chdir="$vm_directory" "${vm_command[@]}" \
    </dev/null >"$1/qemu" 2>&1 &
  vm=$!
}

vm_await_boot() {
  while vm_runs && [[ ! -e $job/started ]]; do
    if ((SECONDS - vm_began >= boot_limit)); then
      vm_hangs=true
      end_jobs
    fi
    sleep 0.1
  done
}

# Hands on what the command writes until the machine ends. The guest writes to files here, not to a pipe or a console of
# QEMU's: nothing is lost in a buffer when the machine stops, and a slow reader does not stop the machine.
vm_pass_on() {
  local follow=(tail --follow --bytes=+1 --sleep-interval=0.1 --pid="$vm")
  "${follow[@]}" "$job/stdout" 2>/dev/null &
  vm_readers+=("$!")
  "${follow[@]}" "$job/stderr" >&2 2>/dev/null &
  vm_readers+=("$!")
  wait -n "${vm_readers[@]}" || true
  # They end after the machine, or because nobody reads their output any more, as in `lab -- yes | head`.
  ! vm_runs || exit 141
}

vm_result() {
  local ended=0
  wait "$vm" || ended=$?
  wait
  if [[ -s $job/status ]]; then
    exit "$(<"$job/status")"
  elif $vm_hangs; then
    vm_fail "$job" "the virtual machine was not up after $boot_limit s" "scripts/lab --accel tcg, or a less busy machine"
  elif ((ended == 124 || ended == 137 && SECONDS - vm_began >= time_limit)); then
    [[ -e $job/started ]] || time_is_up "the virtual machine was not up yet"
    time_is_up "the virtual machine was ended"
  elif [[ -s $job/failed ]]; then
    vm_fail "$job" "$(<"$job/failed")"
  elif [[ -e $job/started ]]; then
    vm_fail "$job" "the virtual machine stopped while the command was running" "more memory with --mem, if it ran out"
  else
    vm_fail "$job" "the virtual machine did not boot" "scripts/lab --accel tcg, or another --kernel"
  fi
}

# vm_fail JOB WHAT [REMEDY]: with what QEMU and the guest's kernel had to say, which outlives the job directory.
vm_fail() {
  local log=$cache/console.log
  cat -- "$1/qemu" "$1/console" >"$job/log" 2>/dev/null || true
  tail -n 20 -- "$job/log" | sed 's/^/lab: | /' >&2
  if mkdir -p -- "$cache" && mv -- "$job/log" "$log"; then
    note "the console is in $log"
  fi
  fail "${@:2}"
}

vm_runs() {
  [[ -n $vm ]] && kill -0 "$vm" 2>/dev/null
}

vm_choose_accelerator() {
  if [[ $accelerator == auto ]]; then
    accelerator=tcg
    if [[ -r /dev/kvm && -w /dev/kvm ]] && vm_kvm_works; then
      accelerator=kvm
    fi
  fi
}

# A /dev/kvm that is there may still hang every kernel, so one is booted to see. The answer holds until this machine is
# booted anew.
vm_kvm_works() {
  local answer=$kernel_directory/kvm boot_id of_boot='' verdict=''
  read -r boot_id </proc/sys/kernel/random/boot_id
  if [[ -e $answer ]]; then
    read -r of_boot verdict <"$answer"
  fi
  if [[ $of_boot != "$boot_id" ]]; then
    verdict=hangs
    ! vm_boots_with_kvm || verdict=works
    echo "$boot_id $verdict" >"$answer.$$"
    mv -- "$answer.$$" "$answer"
  fi
  [[ $verdict == works ]]
}

vm_boots_with_kvm() {
  local probe
  scratch probe "${TMPDIR:-/tmp}/verbmark-lab-kvm.XXXXXX"
  vm_initramfs >"$probe/initrd"
  vm_machine kvm "$probe/initrd" "$probe/console" lab.probe
  # In braces, because the shell itself tells of a QEMU that aborts.
  {
    setpriv --pdeathsig TERM timeout --kill-after=2 "$kvm_limit" "${vm_command[@]}" </dev/null || true
  } >/dev/null 2>&1
  grep -qs 'lab: alive' "$probe/console"
}
