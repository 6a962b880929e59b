# shellcheck shell=bash disable=SC2154 # the options are in scripts/lab
#
# A kernel for the virtual machine: found on this machine or fetched as a package, and made ready to boot.
#
# A prepared kernel is a directory with
#   kernel     the vmlinux, or the vmlinuz as it came where it could not be unpacked
#   modules    a cpio archive of the modules that the guest loads, and the order in which to load them
#   version

# Without these there is no lab. What a kernel has built in counts as there.
needed_modules=(virtio_pci 9pnet_virtio 9p dummy ib_uverbs rdma_rxe)
# crc32_generic: rxe asks the crypto API for crc32, and newer kernels have no such module because rxe does without.
# overlay: the files of this machine's /tmp in the guest. The others are for what tests do to networks.
useful_modules=(crc32_generic rdma_ucm overlay veth sch_netem virtio_net)

cache=${VERBMARK_LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/verbmark/lab}

# kernel_prepare: sets kernel_directory.
kernel_prepare() {
  if [[ -n $kernel ]]; then
    kernel_prepare_given
    return
  fi
  mkdir -p -- "$cache" 2>/dev/null || fail "cannot make the directory $cache" "set VERBMARK_LAB_CACHE to another"
  exec {cache_lock}<>"$cache/lock"
  flock --exclusive "$cache_lock"
  # What an interrupted preparation left; nobody else prepares now.
  rm -rf -- "$cache"/unfinished.*

  local image version
  if image=$(kernel_installed); then
    version=${image##*/vmlinuz-}
    kernel_directory=$(kernel_entry installed "$version")
    [[ -d $kernel_directory ]] || kernel_store "$image" / "$version" "$kernel_directory"
  elif ! kernel_directory=$(kernel_fetched); then
    kernel_fetch
  fi
  exec {cache_lock}>&-
}

kernel_prepare_given() {
  [[ -f $kernel && -r $kernel ]] || fail "cannot read the kernel $kernel" "name another with --kernel"
  [[ -d $modules ]] || fail "no such directory: $modules" "name the kernel's /lib/modules/VERSION with --modules"
  local tree version
  version=$(basename -- "$(readlink -f -- "$modules")")
  scratch kernel_directory "${TMPDIR:-/tmp}/verbmark-lab-kernel.XXXXXX"
  tree=$kernel_directory/tree
  mkdir -p -- "$tree/lib/modules"
  ln -s -- "$(readlink -f -- "$modules")" "$tree/lib/modules/$version"
  kernel_fits "$tree" "$version" || fail "the modules in $modules lack one of: ${needed_modules[*]}" "another --modules"
  kernel_make_ready "$kernel" "$tree" "$version" "$kernel_directory"
}

# The name of a prepared kernel in the cache; a change to the list of modules makes another.
# kernel_entry ORIGIN VERSION
kernel_entry() {
  local list
  list=$(cksum <<<"${needed_modules[*]} ${useful_modules[*]}")
  printf '%s/%s-%s-%s\n' "$cache" "$1" "$2" "${list%% *}"
}

# The newest installed kernel that fits. Some distributions let only root read kernels.
kernel_installed() {
  local image
  while IFS= read -r image; do
    if [[ -r $image ]] && kernel_fits / "${image##*/vmlinuz-}"; then
      echo "$image"
      return 0
    fi
  done < <(compgen -G '/boot/vmlinuz-*' | sort --version-sort --reverse)
  return 1
}

kernel_fetched() {
  compgen -G "$(kernel_entry fetched '*')" | sort --version-sort | tail -n 1
}

# kernel_fits TREE VERSION
kernel_fits() {
  local module
  for module in "${needed_modules[@]}"; do
    kernel_module_files "$1" "$2" "$module" >/dev/null || return 1
  done
}

# kernel_module_files TREE VERSION MODULE: the module and what it needs, in load order; nothing if it is built in.
# This machine's modprobe.d is none of the guest's business.
kernel_module_files() {
  local dependencies
  dependencies=$(modprobe --config /dev/null --dirname "$1" --set-version "$2" --show-depends "$3" 2>/dev/null) ||
    return 1
  sed -n 's/^insmod \([^ ]*\).*/\1/p' <<<"$dependencies"
}

kernel_fetch() {
  local work tree image version package entry
  need apt-get=apt dpkg-deb=dpkg depmod=kmod
  scratch work "$cache/unfinished.XXXXXX"
  image=$(kernel_package)
  version=${image#linux-image-}
  note "fetching $image, once; it is kept in $cache"
  kernel_download "$work" "$image" "$version"

  tree=$work/tree
  for package in "$work"/*.deb; do
    dpkg-deb --extract "$package" "$tree"
  done
  # Packages made for a merged /usr have the modules there.
  if [[ ! -d $tree/lib/modules && -d $tree/usr/lib/modules ]]; then
    mkdir -p "$tree/lib"
    mv "$tree/usr/lib/modules" "$tree/lib/modules"
  fi
  depmod --basedir "$tree" "$version"
  kernel_fits "$tree" "$version" ||
    fail "the kernel of $image lacks one of: ${needed_modules[*]}" "name another with --kernel and --modules"
  entry=$(kernel_entry fetched "$version")
  kernel_store "$tree/boot/vmlinuz-$version" "$tree" "$version" "$entry"
  rm -rf -- "$work"
  kernel_directory=$entry
}

# The name of the newest kernel package: what the distribution's metapackage depends on, Debian's or Ubuntu's.
kernel_package() {
  kernel_package_known || { apt_update && kernel_package_known; } ||
    fail "apt knows no kernel (linux-image-amd64 or linux-image-generic)" "sudo apt-get update"
}

kernel_package_known() {
  local metapackage image
  for metapackage in linux-image-amd64 linux-image-generic; do
    image=$(package_dependencies "$metapackage" | sed -n '/^linux-image-[0-9]/{p;q}')
    if [[ -n $image ]]; then
      echo "$image"
      return 0
    fi
  done
  return 1
}

# kernel_download DIRECTORY IMAGE VERSION: the image, the packages its modules were split into, and the one that Ubuntu
# keeps the rarer modules in, which the image does not depend on and which not every release has.
kernel_download() {
  local packages extra=linux-modules-extra-$3
  mapfile -t packages < <(echo "$2" && package_dependencies "$2" | awk -v version="$3" 'index($0, version)')
  if apt-cache show "$extra" >/dev/null 2>&1; then
    packages+=("$extra")
  fi
  # The lists may be older than the archive.
  apt_download "$1" "${packages[@]}" || { apt_update && apt_download "$1" "${packages[@]}"; } || {
    tail -n 5 "$1/apt.log" >&2
    fail "cannot download ${packages[*]}" "sudo apt-get update, or name a kernel with --kernel and --modules"
  }
}

package_dependencies() {
  LC_ALL=C apt-cache depends "$1" 2>/dev/null | sed -n 's/^ *|\{0,1\}Depends: //p' || true
}

# apt_download DIRECTORY PACKAGE...
apt_download() {
  local sandbox=()
  # apt's own user may not write to the cache, and apt would warn.
  ((EUID != 0)) || sandbox=(-o APT::Sandbox::User=root)
  (cd -- "$1" && apt-get --quiet "${sandbox[@]}" download "${@:2}" >apt.log 2>&1)
}

apt_update() {
  ((EUID == 0)) || return 1
  note "updating the package lists (apt-get update)"
  apt-get --quiet --quiet update >/dev/null
}

# kernel_store IMAGE TREE VERSION ENTRY: appears in the cache whole or not at all.
kernel_store() {
  local unfinished
  scratch unfinished "$cache/unfinished.XXXXXX"
  kernel_make_ready "$1" "$2" "$3" "$unfinished"
  chmod 755 -- "$unfinished"
  mv --no-target-directory -- "$unfinished" "$4"
}

# kernel_make_ready IMAGE TREE VERSION DIRECTORY
kernel_make_ready() {
  kernel_pack_modules "$2" "$3" "$4"
  kernel_unpack "$1" "$4/kernel" || cp -- "$1" "$4/kernel"
  echo "$3" >"$4/version"
}

# kernel_pack_modules TREE VERSION DIRECTORY
kernel_pack_modules() {
  local stage=$3/stage name file
  mkdir -p -- "$stage/modules"
  for name in "${needed_modules[@]}" "${useful_modules[@]}"; do
    kernel_module_files "$1" "$2" "$name" || true
  done | awk '!seen[$0]++' >"$3/files"
  while IFS= read -r file; do
    name=${file##*/}
    decompress "$name" <"$file" >"$stage/modules/${name%%.ko*}.ko" || fail "cannot unpack $file"
    echo "${name%%.ko*}.ko" >>"$stage/modules/order"
  done <"$3/files"
  archive "$stage" >"$3/modules"
  rm -r -- "$stage" "$3/files"
}

# archive DIRECTORY: as an initramfs is.
archive() {
  (cd -- "$1" && find . | cpio --create --format=newc --owner=0:0 --quiet)
}

# kernel_unpack IMAGE FILE: a compressed image takes the guest seconds to unpack, the more without KVM; QEMU starts the
# kernel inside directly if that has an entry point for it.
kernel_unpack() {
  if [[ $(bytes_at "$1" 0 4) == 7f454c46 ]]; then
    cp -- "$1" "$2"
    return
  fi
  [[ $(bytes_at "$1" $((0x202)) 4) == 48647253 ]] || return 1 # "HdrS": the x86 boot protocol's header

  local sectors start size kind
  sectors=$(number_at "$1" $((0x1f1)) 1)
  start=$(((sectors + 1) * 512 + $(number_at "$1" $((0x248)) 4)))
  size=$(number_at "$1" $((0x24c)) 4)
  case $(bytes_at "$1" "$start" 4) in
    fd377a58) kind=.xz ;;
    28b52ffd) kind=.zst ;;
    02214c18) kind=.lz4 ;;
    1f8b08*) kind=.gz ;;
    *) return 1 ;;
  esac
  # All but gzip, whose format has it, are followed by the unpacked size.
  [[ $kind == .gz ]] || size=$((size - 4))
  dd if="$1" iflag=skip_bytes,count_bytes skip="$start" count="$size" bs=1M status=none |
    decompress "$kind" >"$2" 2>/dev/null && kernel_starts "$2"
}

# QEMU says at once if it cannot start a kernel this way; none is run here.
kernel_starts() {
  echo quit | timeout 20 qemu-system-x86_64 -nodefaults -no-user-config -S -display none -accel tcg -m 512M \
    -monitor stdio -kernel "$1" >/dev/null 2>&1
}

# bytes_at FILE OFFSET COUNT: in hexadecimal; nothing beyond the end.
bytes_at() {
  od -An -v -tx1 -j "$2" -N "$3" -- "$1" 2>/dev/null | tr -d ' \n'
}

# number_at FILE OFFSET WIDTH
number_at() {
  od -An -v -tu"$3" --endian=little -j "$2" -N "$3" -- "$1" | tr -d ' \n'
}

# decompress NAME: standard input to standard output, as the end of NAME says.
decompress() {
  case $1 in
    *.xz) need xz=xz-utils && xz --decompress --stdout ;;
    *.zst) need zstd=zstd && zstd --decompress --stdout --quiet ;;
    *.lz4) need lz4=lz4 && lz4 -d -c -q ;;
    *.gz) gzip --decompress --stdout ;;
    *) cat ;;
  esac
}
