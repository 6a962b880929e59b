//! Waiting on a completion queue.

use std::os::fd::{AsFd, BorrowedFd};

use crate::error::{Error, Step};
use crate::measure::{FailedWork, Halt, Waiting, Wake, Watch};
use crate::ops::Op;
use crate::verbs::{Channel, Cq, PollFailed, Wc};

/// What completes in a queue: sends.
pub(super) const SENDS: bool = false;
/// What completes in a queue: receives.
pub(super) const RECEIVES: bool = true;

/// A completion queue with the channel that may wake its owner. What completes there is a type, so that telling it of a
/// failure costs a wait nothing.
pub(super) struct Source<'a, const WHICH: bool> {
    pub(super) cq: &'a Cq,
    pub(super) channel: Option<&'a Channel>,
}

impl<const WHICH: bool> Wake for Source<'_, WHICH> {
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

/// The queue of sends, where that is not waited on. A failure there is why nothing comes here.
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

impl<const WHICH: bool> Source<'_, WHICH> {
    /// Takes what completions there are, all of them successful, without waiting. Returns how many.
    #[inline]
    pub(super) fn look(&self, into: &mut [Wc], empty_polls: &mut u64) -> Result<usize, Halt> {
        let got = self.cq.poll(into)?;
        *empty_polls += u64::from(got == 0);
        match into[..got].iter().find(|wc| !wc.is_success()) {
            None => Ok(got),
            Some(wc) => Err(failed(wc, WHICH)),
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
            Ok(got) if got > 0 && Wc::are_all_successes(&into[..got]) => Ok(got),
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
            Some(wc) => Err(failed(wc, WHICH)),
        }
    }
}

impl Other<'_> {
    #[cold]
    pub(super) fn look(&mut self) -> Result<(), Halt> {
        let mut wcs = [Wc::EMPTY];
        while self.cq.poll(&mut wcs)? == 1 {
            if !wcs[0].is_success() {
                return Err(failed(&wcs[0], SENDS));
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

/// The end of a wait by a failed work request. Its completion does not say what was asked for (`ibv_poll_cq(3)`), not
/// even in which queue; what it comes to is for [`Diagnosis`](super::Diagnosis) to say.
#[cold]
pub(super) fn failed(wc: &Wc, is_receive: bool) -> Halt {
    Halt::Work(FailedWork {
        status: wc.status().code(),
        vendor_error: wc.vendor_error(),
        qp_number: wc.qp_number(),
        is_receive,
    })
}
