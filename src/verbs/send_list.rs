//! Lists of work requests: linked once, posted by one call as often as wanted.

use std::ptr;

use ibverbs_sys::{ibv_qp, ibv_send_flags, ibv_send_wr};

use super::datagram::Destination;
use super::memory::RemoteSlice;
use super::post::{Partial, Sender};

/// Work requests of one queue pair that are posted together, in their order. `ibv_post_send(3)`
///
/// Posting changes nothing in them: whatever a message needs anew is set beforehand ([`SendList::request`]). The last
/// one asks for a completion and the others do not, unless told otherwise ([`Linked::set_signalled`]).
///
/// Memory, queue pair and address handles are kept as by [`Sender`].
#[derive(Debug)]
pub struct SendList {
    qp: *mut ibv_qp,
    /// The first request and the last one, one load nearer to the loops.
    first: *mut ibv_send_wr,
    last: *mut ibv_send_wr,
    /// Their requests are linked. Nobody gets them out, nor others in, so that no link leads to one that is gone.
    senders: Vec<Sender>,
}

// SAFETY: the requests are this list's own, and the queue pair may be posted to from any thread (`ibv_alloc_td(3)`).
unsafe impl Send for SendList {}
// SAFETY: a shared list gives access to nothing.
unsafe impl Sync for SendList {}

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

impl SendList {
    /// Links the requests.
    ///
    /// # Panics
    /// If there are none, or they are of different queue pairs.
    pub fn new(senders: Vec<Sender>) -> Self {
        let qp = senders.first().map_or(ptr::null_mut(), Sender::qp);
        assert!(!qp.is_null(), "a list of work requests has at least one");
        assert!(
            senders.iter().all(|sender| sender.qp() == qp),
            "the work requests are of different queue pairs"
        );
        let mut next: *mut ibv_send_wr = ptr::null_mut();
        for sender in senders.iter().rev() {
            let signal = if next.is_null() { SIGNALED } else { 0 };
            // SAFETY: the request is alive as long as the list, at an address that stays, and ours alone.
            unsafe {
                (*sender.wr()).next = next;
                (*sender.wr()).send_flags = sender.flags() | signal;
            }
            next = sender.wr();
        }
        let last = senders.last().map_or(next, Sender::wr);
        Self { qp, first: next, last, senders }
    }

    /// Requests in the list.
    #[expect(clippy::len_without_is_empty, reason = "a list is never empty")]
    pub fn len(&self) -> usize {
        self.senders.len()
    }

    /// Hands all requests to the device.
    ///
    /// # Errors
    /// [`Step::Measure`](crate::error::Step::Measure): the queue has no room for all, or the queue pair is in no state
    /// to send. Those before the one that was refused are posted: see [`SendList::post_from`].
    #[inline]
    pub fn post(&mut self) -> Result<(), Partial> {
        match self.hand_over(self.first) {
            Ok(()) => Ok(()),
            Err((code, bad)) => Err(self.failed(0, bad, code)),
        }
    }

    /// Sets the number that comes back in the completion of the last request.
    #[inline]
    pub fn set_last_id(&mut self, wr_id: u64) {
        // SAFETY: a request of the list, which is alive and ours alone.
        unsafe { (*self.last).wr_id = wr_id };
    }

    /// Hands the requests from `wr` on to the device. Returns the error number, and the request that was refused.
    #[inline(always)]
    fn hand_over(&mut self, wr: *mut ibv_send_wr) -> Result<(), (i32, *mut ibv_send_wr)> {
        let mut bad = ptr::null_mut();
        // SAFETY: `wr` is a request of the list. The requests, their elements and links live as long as the list and are
        // read by the library before it returns. Queue pair, memory and address handles are kept by the senders, past
        // the completion or up to the end of the registration. The table was found complete when the context was opened.
        let code = unsafe { (*(*self.qp).context).ops.post_send.unwrap_unchecked()(self.qp, wr, &mut bad) };
        if code == 0 { Ok(()) } else { Err((code, bad)) }
    }

    /// Hands the requests from this one on to the device, as after a list was posted in part.
    ///
    /// # Errors
    /// As [`SendList::post`]; what is counted begins at `first`.
    ///
    /// # Panics
    /// If there is no such request.
    #[inline]
    pub fn post_from(&mut self, first: usize) -> Result<(), Partial> {
        let wr = self.senders[first].wr();
        self.hand_over(wr).map_err(|(code, bad)| self.failed(first, bad, code))
    }

    /// A request of the list, to change what it says.
    ///
    /// # Panics
    /// If there is no such request.
    #[inline]
    pub fn request(&mut self, index: usize) -> Linked<'_> {
        Linked(&mut self.senders[index])
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, first: usize, bad: *mut ibv_send_wr, code: i32) -> Partial {
        let refused = self.senders[first..].iter().position(|sender| ptr::eq(sender.wr(), bad));
        let posted = refused.unwrap_or(0);
        let detail = format!("{posted} of {} posted, ", self.senders.len() - first);
        let error = self.senders[first + posted].post_failed(&detail, code);
        Partial { posted: posted as u32, error }
    }
}

/// A request of a [`SendList`]. Its methods are those of [`Sender`], but that it cannot be posted alone.
#[derive(Debug)]
pub struct Linked<'a>(&'a mut Sender);

impl Linked<'_> {
    /// Whether it asks for a completion.
    #[inline]
    pub fn set_signalled(&mut self, signalled: bool) {
        self.0.set_signalled(signalled);
    }

    /// [`Sender::set_solicited`]
    #[inline]
    pub fn set_solicited(&mut self, solicited: bool) {
        self.0.set_solicited(solicited);
    }

    /// [`Sender::set_imm`]
    #[inline]
    pub fn set_imm(&mut self, imm: u32) {
        self.0.set_imm(imm);
    }

    /// [`Sender::set_destination`]
    ///
    /// # Panics
    /// As that.
    pub fn set_destination(&mut self, destination: Destination) {
        self.0.set_destination(destination);
    }

    /// [`Sender::set_id`]
    #[inline]
    pub fn set_id(&mut self, wr_id: u64) {
        self.0.set_id(wr_id);
    }

    /// [`Sender::set_atomic`]
    ///
    /// # Panics
    /// As that.
    #[inline]
    pub fn set_atomic(&mut self, compare_add: u64, swap: u64) {
        self.0.set_atomic(compare_add, swap);
    }

    /// [`Sender::move_to`]
    ///
    /// # Panics
    /// As that.
    #[inline]
    pub fn move_to(&mut self, local_offset: usize, remote: Option<RemoteSlice>) {
        self.0.move_to(local_offset, remote);
    }

    /// [`Sender::move_slice`]
    ///
    /// # Panics
    /// As that.
    #[inline]
    pub fn move_slice(&mut self, index: usize, local_offset: usize) {
        self.0.move_slice(index, local_offset);
    }
}
