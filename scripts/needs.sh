# shellcheck shell=bash disable=SC2034 # the lists are for who sources this
#
# What the scripts need and how they come by it: Debian packages, and a Rust toolchain.

packages_to_build=(gcc libc6-dev cmake make pkg-config python3 libclang-dev libibverbs-dev)
packages_to_run=(libibverbs1 ibverbs-providers)
packages_of_the_lab=(qemu-system-x86 busybox-static cpio kmod iproute2 xz-utils zstd perftest strace jq)

# need_packages PACKAGE...: installs what is missing if that needs nobody's password, else says what to type and fails.
need_packages() {
  local package missing=() install=(apt-get install --no-install-recommends) as_root=()
  if ! type -P dpkg-query apt-get >/dev/null; then
    echo "this system has no apt-get, so nothing is installed; it needs what Debian calls: $*"
    return 0
  fi
  for package; do
    [[ " ${missing[*]} " == *" $package "* ]] || is_installed "$package" || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0

  if ((EUID != 0)); then
    as_root=(sudo)
    if ! sudo -n true 2>/dev/null; then
      printf '%s\n' "Debian packages are missing. Install them and run this again:" "" \
        "    sudo ${install[*]} ${missing[*]}" "" >&2
      return 1
    fi
  fi
  echo "installing: ${missing[*]}"
  # Lists that cannot be updated may still do; the installation decides.
  "${as_root[@]}" apt-get --quiet --quiet update || true
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" --yes --quiet --quiet \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "${missing[@]}" >/dev/null || {
    printf '%s\n' "this failed: ${as_root[*]} ${install[*]} ${missing[*]}" >&2
    return 1
  }
}

is_installed() {
  dpkg-query --show --showformat='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}

# Finds a cargo that is new enough, also where rustup has just been installed and the shell does not know it yet.
need_cargo() {
  local wanted found
  wanted=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)
  if ! type -P cargo >/dev/null; then
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  fi
  if ! found=$(rustc --version 2>/dev/null); then
    echo "there is no Rust toolchain; install Rust $wanted or newer with rustup, https://rustup.rs" >&2
    return 1
  fi
  found=${found#rustc }
  found=${found%% *}
  if [[ $(printf '%s\n' "$wanted" "$found" | sort --version-sort | head -n 1) != "$wanted" ]]; then
    echo "Rust $found is too old: verbmark needs $wanted or newer; try: rustup update stable" >&2
    return 1
  fi
}
