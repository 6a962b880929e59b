//! Waiting on a completion queue, and what a failed completion means.

use std::os::fd::{AsFd, BorrowedFd};

use crate::error::{Error, Step};
use crate::measure::{Halt, Waiting, Wake, Watch};
use crate::ops::Op;
use crate::verbs::{Channel, Cq, PollFailed, Wc, WcStatus};

/// A completion queue with the channel that may wake its owner.
pub(super) struct Source<'a> {
    pub(super) cq: &'a Cq,
    pub(super) channel: Option<&'a Channel>,
}

impl Wake for Source<'_> {
    fn arm(&mut self) -> Result<(), Error> {
        self.cq.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.map(AsFd::as_fd)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        if let Some(channel) = self.channel {
            while channel.take_event()? {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        self.cq.check_device()
    }
}

/// The queue that is not waited on. A failure there is why nothing comes here.
pub(super) struct Other<'a> {
    pub(super) cq: &'a Cq,
    /// The identifier of the last successful completion taken from it.
    pub(super) done: &'a mut u64,
}

/// Polls for one completion as often as `W` polls in a row, after a poll that found nothing. Returns the last outcome.
///
/// Apart from [`Source::wait`], whose preparations would cost a short wait more than the wait itself.
#[inline(always)]
pub(super) fn spin<W: Waiting>(
    cq: &Cq,
    into: &mut Wc,
    watch: &Watch<'_>,
    empty_polls: &mut u64,
) -> Result<bool, PollFailed> {
    let polls = W::polls(watch);
    for empty in 1..polls {
        match cq.poll_one(into) {
            Ok(false) => {}
            outcome => {
                *empty_polls += u64::from(empty);
                return outcome;
            }
        }
    }
    *empty_polls += u64::from(polls - 1);
    Ok(false)
}

impl Source<'_> {
    /// Takes what completions there are, all of them successful, without waiting. Returns how many.
    #[inline]
    pub(super) fn look(&self, into: &mut [Wc], empty_polls: &mut u64) -> Result<usize, Halt> {
        let got = self.cq.poll(into)?;
        *empty_polls += u64::from(got == 0);
        match into[..got].iter().find(|wc| !wc.is_success()) {
            None => Ok(got),
            Some(wc) => Err(failed(wc, None)),
        }
    }

    /// Takes a batch of completions, all of them successful, and waits for at least one. Returns how many.
    #[inline(always)]
    pub(super) fn batch<W: Waiting>(
        self,
        into: &mut [Wc],
        watch: &Watch<'_>,
        empty_polls: &mut u64,
    ) -> Result<usize, Halt> {
        match self.cq.poll(into) {
            Ok(got) if got > 0 && into[..got].iter().all(Wc::is_success) => Ok(got),
            first => self.wait::<W>(first, into, None, watch, empty_polls),
        }
    }

    /// Waits until there is at least one completion, and looks at `other` from time to time. Returns how many of `into`
    /// are filled, all of them successful.
    ///
    /// The loops poll once before they call this, and `first` is how many that brought: a completion that is there
    /// already costs nothing of the waiting.
    #[inline(never)]
    pub(super) fn wait<W: Waiting>(
        mut self,
        first: Result<usize, Error>,
        into: &mut [Wc],
        mut other: Option<Other<'_>>,
        watch: &Watch<'_>,
        empty_polls: &mut u64,
    ) -> Result<usize, Halt> {
        let mut wait = W::default();
        let mut got = first?;
        let mut tries = W::polls(watch) - 1;
        *empty_polls += u64::from(got == 0);
        while got == 0 {
            let empty;
            (got, empty) = self.cq.poll_up_to(into, tries)?;
            *empty_polls += u64::from(empty);
            tries = W::polls(watch);
            if got == 0
                && wait.idle(&mut self, watch)?
                && let Some(other) = &mut other
            {
                other.look()?;
            }
        }
        match into[..got].iter().find(|wc| !wc.is_success()) {
            None => Ok(got),
            Some(wc) => Err(failed(wc, other.map(|other| other.cq))),
        }
    }
}

impl Other<'_> {
    #[cold]
    pub(super) fn look(&mut self) -> Result<(), Halt> {
        let mut wcs = [Wc::EMPTY];
        while self.cq.poll(&mut wcs)? == 1 {
            if !wcs[0].is_success() {
                return Err(failed(&wcs[0], None));
            }
            *self.done = wcs[0].id();
        }
        Ok(())
    }
}

/// Compares what has come with a message beside its payload: its length where a receive tells it, and immediate data
/// where it carries some.
pub(super) fn check_arrival<O: Op>(wc: &Wc, message: u64, size: usize, imm: u32) -> Result<(), Error> {
    let wrong = |what: &str, is: u32, should: u32| {
        Err(Error::invalid(Step::Check, format!("message {message} has {what} {is}, not {should}")))
    };
    if O::FACTS.consumes_receives() && wc.byte_len() as usize != size {
        return wrong("length", wc.byte_len(), size as u32);
    }
    if O::FACTS.carries_imm() && wc.imm() != imm {
        return wrong("immediate data", wc.imm(), imm);
    }
    Ok(())
}

/// The immediate data of a message of a bandwidth test: its sender counts from one.
pub(super) fn counted(message: u64) -> u32 {
    (message as u32).wrapping_add(1)
}

/// The error behind a failed completion: where it was flushed, the other queue knows what went wrong first.
#[cold]
pub(super) fn failed(wc: &Wc, other: Option<&Cq>) -> Halt {
    let mut first = *wc;
    if first.status() == WcStatus::WR_FLUSH_ERR
        && let Some(other) = other
    {
        let mut wcs = [Wc::EMPTY];
        while matches!(other.poll(&mut wcs), Ok(1)) {
            if !wcs[0].is_success() && wcs[0].status() != WcStatus::WR_FLUSH_ERR {
                first = wcs[0];
                break;
            }
        }
    }
    describe(&first).into()
}

fn describe(wc: &Wc) -> Error {
    let status = wc.status();
    Error::failed(
        Step::Measure,
        format!(
            "{} on QP {:#08x} failed: {status} ({}, status {}, vendor {:#x})",
            if wc.is_recv() { "receive" } else { "send" },
            wc.qp_number(),
            status.name(),
            status.code(),
            wc.vendor_error()
        ),
    )
    .with_remedy(remedy(status))
}

/// The likely causes of a status on a reliable connection, most likely first.
fn remedy(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RETRY_EXC_ERR => {
            "the peer did not answer: its process ended, the path drops packets, the GIDs are in different networks \
             (see -v, -x), or packets are larger than the path's MTU (-m)"
        }
        WcStatus::RNR_RETRY_EXC_ERR => {
            "the peer posts receives too slowly: raise -r at the peer, or --rnr-retry"
        }
        WcStatus::REM_ACCESS_ERR => {
            "the peer's key or bounds do not allow the access: the ends disagree on the buffer"
        }
        WcStatus::REM_INV_REQ_ERR => {
            "the peer's receive was smaller than the message, or the peer does not allow the operation"
        }
        WcStatus::LOC_PROT_ERR => {
            "a buffer of this end is not registered for the access: a fault of this program"
        }
        WcStatus::LOC_LEN_ERR => "a message was longer than its receive: the ends disagree on the size",
        WcStatus::WR_FLUSH_ERR => "the queue pair was already in error; its first error is the cause",
        _ => "see the device's log (dmesg) on both ends",
    }
}
