//! How a device can be told to misbehave, so that tests see the failures that good hardware does not show.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use super::super::port::mtu_code;
use super::limits;

/// The environment variable that is read whenever a device is opened.
pub(super) const VARIABLE: &str = "VERBMARK_EMULATED";

/// What is wrong with an opened device. The default is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Faults {
    /// `corrupt=N`: flips bits in the middle byte of the payload of every Nth message of a queue pair.
    pub corrupt: Option<u32>,
    /// `lose=N`: every Nth message of a queue pair without a reliable connection does not arrive.
    pub lose: Option<u32>,
    /// `port-down`: the port is DOWN and nothing sent through it arrives.
    pub port_down: bool,
    /// `no-memlock`: registering memory fails with ENOMEM, as it does when `RLIMIT_MEMLOCK` is too low.
    pub no_memlock: bool,
    /// `memlock=BYTES`: registering more than this at once fails in the same way, unless it is not to be pinned.
    pub memlock: u32,
    /// `short-mr`: a registration is a byte shorter than what was asked for.
    pub short_mr: bool,
    /// `no-inline`: queue pairs are granted no inline data, and asking for some is EINVAL.
    pub no_inline: bool,
    /// `max-msg=BYTES`: the largest message of the port.
    pub max_message: u32,
    /// `fail-qp`: creating a queue pair fails with ENOMEM.
    pub fail_qp: bool,
    /// `delay=NS`: nothing posted to a send queue is visible anywhere before this many nanoseconds have passed.
    pub delay_ns: u32,
    /// `die-after=N`: the device fails when a queue pair sends more than this many messages.
    pub die_after: Option<u32>,
    /// `port-error-after=N`: the port goes down for good when a queue pair sends more than this many messages.
    pub port_error_after: Option<u32>,
    /// `device-fatal-after=N`: the device fails when a queue pair sends more than this many messages, and only an event
    /// tells.
    pub device_fatal_after: Option<u32>,
    /// `qp-fatal-after=N`: a queue pair fails when it sends more than this many messages, and only an event tells.
    pub qp_fatal_after: Option<u32>,
    /// `pace=NS`: a queue pair takes a message only this many nanoseconds after the one before.
    pub pace_ns: u32,
    /// `late-receives=NS`: a receive can be used only this many nanoseconds after the one before.
    pub late_receives_ns: u32,
    /// `slow-receives=NS`: posting a receive keeps the poster busy for this many nanoseconds.
    pub slow_receives_ns: u32,
    /// `no-odp`: registering memory that is not to be pinned is EINVAL, and nothing is told of such memory.
    pub no_odp: bool,
    /// `pkey=N`: the one partition key of the port.
    pub pkey: u16,
    /// `gids=...`: which GIDs the Ethernet port has, and of which type.
    pub gids: Gids,
    /// `mtu=BYTES`: the active MTU of the port.
    pub mtu: u32,
    /// `send-error=STATUS`: the first send of a queue pair completes with this `ibv_wc_status`.
    pub send_error: Option<u32>,
    /// `withhold-receives`: a message finds no receive at its target, whatever is posted there.
    pub withhold_receives: bool,
    /// `short-receives=BYTES`: a receive has no more room than this, whatever it was posted with.
    pub short_receives: u32,
    /// `wrong-rkey`: memory is told of with a remote key that is not its own.
    pub wrong_rkey: bool,
    /// `wrong-qpn`: a connection sends to a number that no queue pair has.
    pub wrong_qpn: bool,
}

/// The GIDs of an Ethernet port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gids {
    /// One made of its node GUID, and one of an IPv4 address.
    All,
    /// `link-local`: the first alone, as a port without an IP address has it.
    LinkLocal,
    /// `ipv4`: the second alone.
    Ipv4,
    /// `roce-v1`: both, of the older type.
    RoceV1,
}

impl Gids {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "link-local" => Self::LinkLocal,
            "ipv4" => Self::Ipv4,
            "roce-v1" => Self::RoceV1,
            _ => return None,
        })
    }
}

/// A word behind this applies to the first device that the process opens, which in a loopback is the server's.
const FIRST: &str = "first:";

impl Default for Faults {
    fn default() -> Self {
        Self {
            corrupt: None,
            lose: None,
            port_down: false,
            no_memlock: false,
            memlock: u32::MAX,
            short_mr: false,
            no_inline: false,
            max_message: limits::MAX_MESSAGE,
            fail_qp: false,
            delay_ns: 0,
            die_after: None,
            port_error_after: None,
            device_fatal_after: None,
            qp_fatal_after: None,
            pace_ns: 0,
            late_receives_ns: 0,
            slow_receives_ns: 0,
            no_odp: false,
            pkey: limits::PKEY,
            gids: Gids::All,
            mtu: limits::MTU,
            send_error: None,
            withhold_receives: false,
            short_receives: u32::MAX,
            wrong_rkey: false,
            wrong_qpn: false,
        }
    }
}

impl Faults {
    /// What the environment asks for. EINVAL for a word that does not exist or a number that makes no sense.
    pub(super) fn from_environment() -> io::Result<Self> {
        #[cfg(test)]
        if let Some(faults) = super::virtual_time::VirtualTime::faults() {
            return Ok(faults);
        }
        match env::var_os(VARIABLE) {
            None => Ok(Self::default()),
            Some(value) => {
                static OPENED: AtomicBool = AtomicBool::new(false);
                let is_first = !OPENED.swap(true, Ordering::Relaxed);
                Self::parse(&value, is_first).ok_or_else(|| Errno::EINVAL.into())
            }
        }
    }

    pub(super) fn parse(value: &OsStr, is_first: bool) -> Option<Self> {
        let mut faults = Self::default();
        for word in value.to_str()?.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            // Read in any case: a wrong word is refused wherever it stands.
            let mut elsewhere = Self::default();
            let (word, faults) = match word.strip_prefix(FIRST) {
                Some(word) if !is_first => (word, &mut elsewhere),
                Some(word) => (word, &mut faults),
                None => (word, &mut faults),
            };
            match word.split_once('=') {
                None => match word {
                    "port-down" => faults.port_down = true,
                    "no-memlock" => faults.no_memlock = true,
                    "short-mr" => faults.short_mr = true,
                    "no-odp" => faults.no_odp = true,
                    "no-inline" => faults.no_inline = true,
                    "fail-qp" => faults.fail_qp = true,
                    "withhold-receives" => faults.withhold_receives = true,
                    "wrong-rkey" => faults.wrong_rkey = true,
                    "wrong-qpn" => faults.wrong_qpn = true,
                    _ => return None,
                },
                Some(("gids", which)) => faults.gids = Gids::parse(which)?,
                Some((name, number)) => {
                    let number: u32 = number.parse().ok()?;
                    match name {
                        "corrupt" if number > 0 => faults.corrupt = Some(number),
                        "lose" if number > 0 => faults.lose = Some(number),
                        "max-msg" if (1..=limits::MAX_MESSAGE).contains(&number) => {
                            faults.max_message = number
                        }
                        "memlock" => faults.memlock = number,
                        "pkey" => faults.pkey = number.try_into().ok()?,
                        "delay" => faults.delay_ns = number,
                        "die-after" => faults.die_after = Some(number),
                        "port-error-after" => faults.port_error_after = Some(number),
                        "device-fatal-after" => faults.device_fatal_after = Some(number),
                        "qp-fatal-after" => faults.qp_fatal_after = Some(number),
                        "pace" => faults.pace_ns = number,
                        "late-receives" => faults.late_receives_ns = number,
                        "slow-receives" => faults.slow_receives_ns = number,
                        "mtu" if mtu_code(number).is_some() => faults.mtu = number,
                        "send-error" if number > 0 => faults.send_error = Some(number),
                        "short-receives" => faults.short_receives = number,
                        _ => return None,
                    }
                }
            }
        }
        Some(faults)
    }

    /// A send queue of this device must look at each message.
    pub(super) fn touch_messages(&self) -> bool {
        self.corrupt.is_some()
            || self.lose.is_some()
            || self.delay_ns > 0
            || self.die_after.is_some()
            || self.port_error_after.is_some()
            || self.device_fatal_after.is_some()
            || self.qp_fatal_after.is_some()
            || self.pace_ns > 0
            || self.late_receives_ns > 0
            || self.send_error.is_some()
            || self.spoils_receives()
    }

    /// Messages do not find the receives that were posted for them.
    pub(super) fn spoils_receives(&self) -> bool {
        self.withhold_receives || self.short_receives < u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Faults> {
        Faults::parse(OsStr::new(text), true)
    }

    #[test]
    fn every_documented_word_is_understood() {
        let all = "corrupt=3,lose=5,port-down, no-memlock,no-inline,max-msg=4096,fail-qp,delay=50,die-after=0,\
                   port-error-after=7,no-odp,device-fatal-after=1,qp-fatal-after=2,pace=3,\
                   late-receives=4,slow-receives=5,pkey=32767,gids=link-local,memlock=65536,short-mr,\
                   mtu=1024,send-error=12,withhold-receives,short-receives=7,wrong-rkey,wrong-qpn";
        let expected = Faults {
            corrupt: Some(3),
            lose: Some(5),
            port_down: true,
            no_memlock: true,
            memlock: 65536,
            short_mr: true,
            no_inline: true,
            max_message: 4096,
            fail_qp: true,
            delay_ns: 50,
            die_after: Some(0),
            port_error_after: Some(7),
            device_fatal_after: Some(1),
            qp_fatal_after: Some(2),
            pace_ns: 3,
            late_receives_ns: 4,
            slow_receives_ns: 5,
            no_odp: true,
            pkey: 0x7fff,
            gids: Gids::LinkLocal,
            mtu: 1024,
            send_error: Some(12),
            withhold_receives: true,
            short_receives: 7,
            wrong_rkey: true,
            wrong_qpn: true,
        };
        assert_eq!(parse(all), Some(expected));
        assert_eq!(parse(""), Some(Faults::default()));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "corrupt",
            "corrupt=0",
            "corrupt=x",
            "lose=0",
            "port-down=1",
            "max-msg=0",
            "max-msg=2000000000",
            "gids=all",
            "pkey=65536",
            "slow",
            "mtu=1500",
            "send-error=0",
            "first:slow",
        ] {
            assert_eq!(parse(text), None, "{text}");
            assert_eq!(Faults::parse(OsStr::new(text), false), None, "{text}");
        }
    }

    #[test]
    fn a_word_for_the_first_device_is_for_no_other() {
        let words = OsStr::new("first:pkey=1,mtu=512,first:gids=ipv4");
        let first = Faults::parse(words, true).unwrap();
        assert_eq!((first.pkey, first.mtu, first.gids), (1, 512, Gids::Ipv4));
        let later = Faults::parse(words, false).unwrap();
        assert_eq!((later.pkey, later.mtu, later.gids), (limits::PKEY, 512, Gids::All));
    }
}
