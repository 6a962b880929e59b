//! Completion queues, and the channels that wake whoever waits for them.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::Arc;

use ibverbs_sys::{ibv_comp_channel, ibv_cq, ibv_wc};

use super::device::Context;
use super::wc::Wc;
use crate::error::{Error, Result, Step};

/// Completion channel: a descriptor that becomes readable when an armed completion queue of it gets an entry. Clones
/// share it; it is destroyed when the last of them and the last queue on it are gone.
#[derive(Debug, Clone)]
pub struct Channel(Arc<ChannelInner>);

#[derive(Debug)]
struct ChannelInner {
    raw: *mut ibv_comp_channel,
    context: Context,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: the channel is live and destroyed once; its completion queues held it, so they are gone.
        let destroyed = unsafe { self.context.0.provider.destroy_channel(self.raw) };
        if destroyed.is_err() {
            std::mem::forget(self.context.clone());
        }
        debug_assert!(destroyed.is_ok(), "ibv_destroy_comp_channel: {destroyed:?}");
    }
}

impl Channel {
    /// Takes one event off the channel and acknowledges it; false when there is none. Never blocks: wait on the
    /// descriptor. `ibv_get_cq_event(3)`, `ibv_ack_cq_events(3)`
    ///
    /// An event says that a queue had a completion since it was armed, not that there is one now; the queue has to be
    /// armed again for another. Where several queues share a channel, look at all of them.
    ///
    /// # Errors
    /// [`Step::Measure`]: the device is gone.
    pub fn take_event(&self) -> Result<bool> {
        let provider = self.0.context.0.provider;
        // SAFETY: the channel is live and of this provider.
        match unsafe { provider.next_event(self.0.raw) } {
            Ok(cq) => {
                // SAFETY: one event of this queue was just taken, and the queue lives: destroying it waits for this.
                unsafe { provider.ack_events(cq, 1) };
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(Error::failed(Step::Measure, format!("ibv_get_cq_event(): {error}"))
                .with_remedy("see the device's log (dmesg): it may have been removed or reset")),
        }
    }
}

impl AsFd for Channel {
    /// The descriptor, which does not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, lives while it is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw).fd) }
    }
}

/// Completion queue. Clones share it, and each completion goes to one of those that poll; it is destroyed when the last
/// clone and the last queue pair that uses it are gone.
#[derive(Debug, Clone)]
pub struct Cq {
    /// The same as `inner.raw`, one load nearer to the loops.
    raw: *mut ibv_cq,
    inner: Arc<CqInner>,
}

#[derive(Debug)]
struct CqInner {
    raw: *mut ibv_cq,
    depth: u32,
    channel: Option<Channel>,
    context: Context,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}
// SAFETY: as above; the pointer is to what `inner` keeps alive.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: the queue is live and destroyed once; queue pairs that use it held it, so they are gone. Every event
        // was acknowledged when it was taken.
        let destroyed = unsafe { self.context.0.provider.destroy_cq(self.raw) };
        if destroyed.is_err() {
            std::mem::forget((self.channel.clone(), self.context.clone()));
        }
        debug_assert!(destroyed.is_ok(), "ibv_destroy_cq: {destroyed:?}");
    }
}

impl Context {
    /// Makes a completion channel, its descriptor non-blocking. `ibv_create_comp_channel(3)`
    ///
    /// # Errors
    /// [`Step::CreateQp`]: the process has no descriptors left (`EMFILE`).
    pub fn create_channel(&self) -> Result<Channel> {
        // SAFETY: the context is open and of this provider.
        let raw = unsafe { self.0.provider.create_channel(self.0.raw) }.map_err(|error| {
            Error::failed(
                Step::CreateQp,
                format!("ibv_create_comp_channel({}): {error}", self.device().name()),
            )
        })?;
        Ok(Channel(Arc::new(ChannelInner { raw, context: self.clone() })))
    }

    /// Makes a completion queue with room for at least `depth` entries; its events go to `channel`.
    /// `ibv_create_cq(3)`
    ///
    /// # Errors
    /// [`Step::CreateQp`]: `depth` is 0 or more than the device can, or the device is short of something.
    ///
    /// # Panics
    /// If the channel is of another context.
    pub fn create_cq(&self, depth: u32, channel: Option<&Channel>) -> Result<Cq> {
        if let Some(channel) = channel {
            assert!(self.is_same(&channel.0.context), "the completion channel is of another context");
        }
        let name = self.device().name();
        let most = self.cached_attr()?.max_cqe;
        if !(1..=most).contains(&depth) {
            return Err(Error::failed(
                Step::CreateQp,
                format!(
                    "a completion queue of {depth} entries is outside what {name} can: 1 to {most} (max_cqe)"
                ),
            )
            .with_remedy("choose a smaller queue depth"));
        }
        // SAFETY: the context is open, the channel is of it and live, and stays so until the queue is gone.
        let raw =
            unsafe { self.0.provider.create_cq(self.0.raw, depth, channel.map(|channel| channel.0.raw)) }
                .map_err(|error| {
                    Error::failed(Step::CreateQp, format!("ibv_create_cq({name}, {depth} entries): {error}"))
                        .with_remedy(
                            "choose a smaller queue depth, or allow more locked memory (ulimit -l unlimited)",
                        )
                })?;
        // SAFETY: just made and live; the size is set once.
        let granted = unsafe { (*raw).cqe };
        let inner = CqInner {
            raw,
            depth: u32::try_from(granted).unwrap_or(depth),
            channel: channel.cloned(),
            context: self.clone(),
        };
        Ok(Cq { raw, inner: Arc::new(inner) })
    }

    /// Both are clones of one open context.
    pub(super) fn is_same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Cq {
    /// Looks whether its device still works; see [`Context::check_device`].
    ///
    /// # Errors
    /// It does not.
    #[cold]
    pub fn check_device(&self) -> Result<()> {
        self.inner.context.check_device()
    }

    /// Takes up to as many completions off the queue as fit; returns how many. The order of a queue pair's work
    /// requests is kept. `ibv_poll_cq(3)`
    ///
    /// # Errors
    /// [`Step::Measure`]: the queue is in error, as after an overrun. That a work request failed is no error here but
    /// in the [`Wc`].
    #[inline]
    pub fn poll(&self, into: &mut [Wc]) -> Result<usize> {
        let got = self.poll_raw(into);
        if got < 0 {
            return Err(self.failed("ibv_poll_cq", got));
        }
        Ok(got as usize)
    }

    /// Takes one completion off the queue; whether there was one. Fewer instructions than [`Cq::poll`].
    ///
    /// # Errors
    /// As [`Cq::poll`], told by [`Cq::polled`].
    #[inline(always)]
    pub fn poll_one(&self, into: &mut Wc) -> std::result::Result<bool, PollFailed> {
        match self.poll_raw(slice::from_mut(into)) {
            1 => Ok(true),
            0 => Ok(false),
            code => Err(PollFailed(code)),
        }
    }

    /// The outcome of [`Cq::poll_one`] as [`Cq::poll`] tells it.
    #[cold]
    pub fn polled(&self, outcome: std::result::Result<bool, PollFailed>) -> Result<usize> {
        outcome.map(usize::from).map_err(|PollFailed(code)| self.failed("ibv_poll_cq", code))
    }

    /// Polls until there is something, at most `tries` times. Returns how many completions were taken, and how many
    /// polls found nothing.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    #[inline(never)]
    pub fn poll_up_to(&self, into: &mut [Wc], tries: u32) -> Result<(usize, u32)> {
        for empty in 0..tries {
            let got = self.poll_raw(into);
            if got != 0 {
                return if got > 0 {
                    Ok((got as usize, empty))
                } else {
                    Err(self.failed("ibv_poll_cq", got))
                };
            }
        }
        Ok((0, tries))
    }

    #[inline(always)]
    fn poll_raw(&self, into: &mut [Wc]) -> c_int {
        // As in C, and harmless for the rest: a slice of 2^31 completions takes 96 GiB, and truncation makes it smaller.
        let most = into.len() as c_int;
        // SAFETY: the queue is live, and so is its context, whose table was found complete when it was opened. The
        // device writes at most `most` completions, and `Wc` has the layout of ibv_wc (asserted beside it).
        unsafe {
            (*(*self.raw).context).ops.poll_cq.unwrap_unchecked()(
                self.raw,
                most,
                into.as_mut_ptr().cast::<ibv_wc>(),
            )
        }
    }

    /// Asks for an event on the channel with the next completion, of whatever kind. One that is in the queue already
    /// brings none: arm, poll once more, then sleep. `ibv_req_notify_cq(3)`
    ///
    /// # Errors
    /// [`Step::Measure`]: the device refused.
    #[inline]
    pub fn arm(&self) -> Result<()> {
        self.request_event(false)
    }

    /// Asks for an event with the next receive whose sender wanted it ([`Sender::set_solicited`](super::Sender)), or
    /// with the next completion that is an error, and lets others go by. When both are asked for, the wider holds.
    ///
    /// # Errors
    /// As [`Cq::arm`].
    #[inline]
    pub fn arm_solicited(&self) -> Result<()> {
        self.request_event(true)
    }

    #[inline]
    fn request_event(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: as in `poll`.
        let code = unsafe {
            (*(*self.raw).context).ops.req_notify_cq.unwrap_unchecked()(self.raw, solicited_only.into())
        };
        if code != 0 {
            return Err(self.failed("ibv_req_notify_cq", code));
        }
        Ok(())
    }

    /// Entries granted: at least as many as asked for.
    pub fn depth(&self) -> u32 {
        self.inner.depth
    }

    /// The queue as the library knows it. It lives as long as `self`.
    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw
    }

    pub(super) fn context(&self) -> &Context {
        &self.inner.context
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, call: &str, code: c_int) -> Error {
        let name = self.inner.context.device().name();
        let cause = if code > 0 {
            io::Error::from_raw_os_error(code).to_string()
        } else {
            format!("returned {code}")
        };
        Error::failed(Step::Measure, format!("{call}({name}, {} entries): {cause}", self.inner.depth))
            .with_remedy(
                "see the device's log (dmesg): the completion queue is in error, or the device was reset",
            )
    }
}

/// A poll failed: the queue is in error. Small enough for a register, so that a loop carries it at no cost.
#[derive(Debug, Clone, Copy)]
pub struct PollFailed(c_int);
