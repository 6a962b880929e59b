//! The data path of latency tests over a queue pair that may lose messages.

use std::time::{Duration, Instant};

use super::completion::{Other, SENDS, Source};
use super::ping_pong::{PingPong, flag, opcode};
use super::{Rdma, Shape};
use crate::error::{Error, Step};
use crate::measure::{Halt, LossyTrip, RoundTrip, Spin, Waiting, Watch};
use crate::ops::{Arrival, Op, Opcode};
use crate::transport::pattern::Pattern;
use crate::transport::{Counted, Tally};
use crate::verbs;

/// Messages of verb `O` there and back, waiting as `W` says. The end that `ECHOES` sends back the mark of what came.
///
/// A mark is the number of a trip: 32 bits of immediate data, which a SEND carries here as well, or what the last byte
/// holds where memory is watched.
pub struct Lossy<'r, O, W, const ECHOES: bool> {
    path: PingPong<'r, O, W>,
    /// The mark of what came last. None has the value 0 of the last byte of a buffer where nothing came.
    came: u32,
}

/// How long the end that echoes looks for a newer message when the payload of one is not its own: much longer than one
/// that is on its way takes to come, and shorter than the client waits before it sends one because of the other.
const OVERTAKING: Duration = Duration::from_micros(100);

/// The work request a verb asks for where it must carry a mark.
const fn marked(opcode: Opcode, plain: verbs::Opcode) -> verbs::Opcode {
    match opcode {
        Opcode::Send => verbs::Opcode::SendWithImm,
        _ => plain,
    }
}

impl<'r, O: Op, W: Waiting, const ECHOES: bool> Lossy<'r, O, W, ECHOES> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shared.shape, Shape::Latency);
        let mut path = PingPong::with(rdma, size, marked(O::FACTS.opcode, opcode(O::FACTS.opcode)));
        if O::FACTS.arrival == Arrival::LastByte {
            path.landing_flag(0);
        }
        Self { path, came: 0 }
    }

    /// The mark of a trip.
    #[inline(always)]
    fn mark(trip: u64) -> u32 {
        if const { matches!(O::FACTS.arrival, Arrival::LastByte) } { flag(trip).into() } else { trip as u32 }
    }

    fn last_byte(&self) -> usize {
        self.path.queue.landing() + self.path.size - 1
    }

    /// As for a path that loses nothing, but for any message.
    #[inline(always)]
    fn wait_for_last_byte(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let at = self.last_byte();
        let mut wait = Spin::default();
        loop {
            for tries in 0..Spin::polls(watch) {
                let byte = self.path.shared.memory.region().load_acquire(at);
                if u32::from(byte) != self.came {
                    self.path.tally.empty_polls += u64::from(tries);
                    self.came = byte.into();
                    return Ok(());
                }
            }
            self.path.tally.empty_polls += u64::from(Spin::polls(watch));
            let cq = &self.path.shared.send_cq;
            wait.idle(&mut Source::<SENDS> { cq, channel: None }, watch)?;
            Other { cq, done: &mut self.path.queue.reaped }.look()?;
        }
    }

    /// The pattern of what arrives with a mark, or of what is sent with it.
    fn pattern(&self, mark: u32, arrives: bool) -> Pattern {
        let from_client = ECHOES == arrives;
        Pattern::new(self.path.shared.seed, 2 * u64::from(mark) + u64::from(from_client))
    }

    fn check_payload(&self) -> Result<(), Error> {
        let at = self.path.queue.landing() + self.path.shared.layout.headroom;
        let region = self.path.shared.memory.region();
        self.pattern(self.came, true).check(region, at, self.path.patterned(), self.came.into())
    }

    /// Whether a newer message has come, which is then the last one. The client sends one when it has waited too long.
    fn is_overtaken(&mut self) -> Result<bool, Halt> {
        let since = Instant::now();
        while since.elapsed() < OVERTAKING {
            if O::FACTS.arrival == Arrival::LastByte {
                let byte = self.path.shared.memory.region().load_acquire(self.last_byte());
                if u32::from(byte) != self.came {
                    self.came = byte.into();
                    return Ok(true);
                }
            } else if self.path.look_for_receive()? {
                self.path.receiver.post()?;
                self.came = self.path.wc.imm();
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<O, W, const ECHOES: bool> Counted for Lossy<'_, O, W, ECHOES> {
    fn tally(&self) -> Tally {
        self.path.tally
    }
}

impl<O: Op, W: Waiting, const ECHOES: bool> RoundTrip for Lossy<'_, O, W, ECHOES> {
    #[inline(always)]
    fn start(&mut self, _watch: &Watch<'_>) -> Result<(), Halt> {
        let path = &mut self.path;
        let signalled = path.queue.count_send();
        let mark = if ECHOES { self.came } else { Self::mark(path.queue.sent) };
        if const { matches!(O::FACTS.arrival, Arrival::LastByte) } {
            let at = path.queue.ours() + path.size - 1;
            path.shared.memory.region().store_release(at, mark as u8);
        } else {
            path.sender.set_imm(mark);
        }
        if signalled {
            path.post_signalled()?;
        } else {
            path.sender.post()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::LastByte) } {
            return self.wait_for_last_byte(watch);
        }
        self.path.wait_for_receive(watch)?;
        self.came = self.path.wc.imm();
        Ok(())
    }

    #[inline(always)]
    fn settle(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.path.settle(watch)
    }

    fn stamp(&mut self) {
        let mark = if ECHOES { self.came } else { Self::mark(self.path.queue.sent + 1) };
        let path = &self.path;
        self.pattern(mark, false).stamp(path.shared.memory.region(), path.queue.ours(), path.patterned());
    }

    fn check(&mut self) -> Result<(), Halt> {
        while let Err(error) = self.check_payload() {
            if !(ECHOES && self.is_overtaken()?) {
                return Err(error.into());
            }
        }
        let (bytes, should) =
            (self.path.wc.byte_len() as usize, self.path.size + self.path.shared.layout.headroom);
        if O::FACTS.arrival == Arrival::RecvCompletion && bytes != should {
            let text = format!("message {} has length {bytes}, not {should}", self.came);
            return Err(Error::invalid(Step::Check, text).into());
        }
        Ok(())
    }
}

impl<O: Op, W: Waiting> LossyTrip for Lossy<'_, O, W, false> {
    #[inline(always)]
    fn is_reply(&self) -> bool {
        self.came == Self::mark(self.path.queue.sent)
    }

    fn give_up(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.path.make_room_if_due(watch)
    }
}
