//! How a device can be told to misbehave, so that tests see the failures that good hardware does not show.

use std::env;
use std::ffi::OsStr;
use std::io;

use nix::errno::Errno;

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
    /// `gids=link-local`: the Ethernet port has its link-local GID only, as a port without an IP address does.
    pub link_local_only: bool,
}

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
            link_local_only: false,
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
            Some(value) => Self::parse(&value).ok_or_else(|| Errno::EINVAL.into()),
        }
    }

    pub(super) fn parse(value: &OsStr) -> Option<Self> {
        let mut faults = Self::default();
        for word in value.to_str()?.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                None => match word {
                    "port-down" => faults.port_down = true,
                    "no-memlock" => faults.no_memlock = true,
                    "short-mr" => faults.short_mr = true,
                    "no-odp" => faults.no_odp = true,
                    "no-inline" => faults.no_inline = true,
                    "fail-qp" => faults.fail_qp = true,
                    _ => return None,
                },
                Some(("gids", "link-local")) => faults.link_local_only = true,
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Faults> {
        Faults::parse(OsStr::new(text))
    }

    #[test]
    fn every_documented_word_is_understood() {
        let all = "corrupt=3,lose=5,port-down, no-memlock,no-inline,max-msg=4096,fail-qp,delay=50,die-after=0,\
                   port-error-after=7,no-odp,device-fatal-after=1,qp-fatal-after=2,pace=3,\
                   late-receives=4,slow-receives=5,pkey=32767,gids=link-local,memlock=65536,short-mr";
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
            link_local_only: true,
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
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
