//! What stands before the payload of a datagram: the header of the network that it came through.
//!
//! InfiniBand specification, volume 1, 8.3 (global route header), and annex A17 (RoCE v2: an IPv6 header has the same
//! shape; an IPv4 header stands in the last 20 bytes).

use ibverbs_sys::ibv_global_route;

/// Bytes of it.
pub(super) const BYTES: usize = 40;

/// What follows the network's header beside the payload: base transport header, datagram header, checksum.
const HEADERS: u16 = 12 + 8 + 4;
/// Bytes of immediate data.
const IMMEDIATE: u16 = 4;
/// Bytes of a UDP header.
const UDP_BYTES: u16 = 8;
/// Protocol number of UDP.
const UDP: u8 = 17;
/// "Next header" of an InfiniBand packet.
const BASE_TRANSPORT: u8 = 0x1b;
/// Flag of an IPv4 packet that must not be fragmented.
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// The header of a message of `payload` bytes, at most the MTU, that takes this route from the GID `source`.
pub(super) fn header(
    route: &ibv_global_route,
    source: [u8; 16],
    is_roce: bool,
    payload: u16,
    has_imm: bool,
) -> [u8; BYTES] {
    // SAFETY: every bit pattern is a GID.
    let destination = unsafe { route.dgid.raw };
    let mut length = HEADERS + payload.next_multiple_of(4) + if has_imm { IMMEDIATE } else { 0 };
    if is_roce {
        length += UDP_BYTES;
    }
    let mut bytes = [0; BYTES];
    if is_roce && is_ipv4(&source) && is_ipv4(&destination) {
        ipv4(&mut bytes[20..], route, length, &source[12..], &destination[12..]);
        return bytes;
    }
    let first = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label & 0xf_ffff;
    bytes[..4].copy_from_slice(&first.to_be_bytes());
    bytes[4..6].copy_from_slice(&length.to_be_bytes());
    bytes[6] = if is_roce { UDP } else { BASE_TRANSPORT };
    bytes[7] = route.hop_limit;
    bytes[8..24].copy_from_slice(&source);
    bytes[24..].copy_from_slice(&destination);
    bytes
}

/// The GID is made of an IPv4 address.
fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// An IPv4 header (RFC 791) before `length` bytes.
fn ipv4(into: &mut [u8], route: &ibv_global_route, length: u16, source: &[u8], destination: &[u8]) {
    let whole = length + into.len() as u16;
    into[..2].copy_from_slice(&[0x45, route.traffic_class]);
    into[2..4].copy_from_slice(&whole.to_be_bytes());
    into[6..8].copy_from_slice(&DO_NOT_FRAGMENT.to_be_bytes());
    into[8..10].copy_from_slice(&[route.hop_limit, UDP]);
    into[12..16].copy_from_slice(source);
    into[16..].copy_from_slice(destination);
    let sum: u32 = into.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    into[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(gid: [u8; 16]) -> ibv_global_route {
        let mut route =
            ibv_global_route { traffic_class: 106, flow_label: 0x12345, hop_limit: 64, ..Default::default() };
        route.dgid.raw = gid;
        route
    }

    #[test]
    fn an_ipv4_header_stands_in_the_last_half_and_sums_up() {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 7, 0, 1];
        let bytes = header(&route(gid), gid, true, 61, true);
        assert_eq!(bytes[..20], [0; 20]);
        assert_eq!(bytes[20..24], [0x45, 106, 0, 20 + 8 + 24 + 4 + 64]);
        assert_eq!((bytes[28], bytes[29]), (64, 17));
        assert_eq!((&bytes[32..36], &bytes[36..]), (&[10, 7, 0, 1][..], &[10, 7, 0, 1][..]));
        let sum: u32 = bytes[20..].chunks(2).map(|pair| u32::from(pair[0]) * 256 + u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn other_headers_have_both_gids() {
        for (is_roce, next, length) in [(true, 17, 8 + 24 + 64), (false, 0x1b, 24 + 64)] {
            let bytes = header(&route([9; 16]), [7; 16], is_roce, 64, false);
            assert_eq!(bytes[..8], [0x66, 0xa1, 0x23, 0x45, 0, length, next, 64]);
            assert_eq!((&bytes[8..24], &bytes[24..]), (&[7; 16][..], &[9; 16][..]));
        }
    }
}
