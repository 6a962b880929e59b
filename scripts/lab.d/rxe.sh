# shellcheck shell=bash
#
# A Soft-RoCE device; the same on this machine and in the virtual one.

# rxe_add INTERFACE ADDRESS MTU: gives the interface its address and puts rxe0 on it.
rxe_add() {
  local interface=$1 address=$2 mtu=$3
  ip address add "$address" dev "$interface" &&
    ip link set "$interface" mtu "$mtu" up &&
    rxe_add_to "$interface" "${address%/*}"
}

# rxe_add_to INTERFACE ADDRESS: rxe0 on an interface that is up.
rxe_add_to() {
  rdma link add rxe0 type rxe netdev "$1" &&
    rxe_wait "$2"
}

# rxe_wait ADDRESS: the kernel enters the address into the GID table a little later, and a test that starts earlier does
# not find it. The table has a thousand entries, of which the first few are ever used.
rxe_wait() {
  local bytes gid tries
  IFS=. read -ra bytes <<<"$1"
  gid=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' "${bytes[@]}")
  for ((tries = 0; tries < 100; tries++)); do
    if grep -qsx "$gid" /sys/class/infiniband/rxe0/ports/1/gids/[0-9]; then
      return 0
    fi
    sleep 0.05
  done
  echo "the address of rxe0 did not come up as a GID" >&2
  return 1
}
