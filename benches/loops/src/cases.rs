//! What is measured: each loop in either language, and what the loops in Rust are made of.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use verbmark::measure::bandwidth::{self, BandwidthSample, Load};
use verbmark::measure::histogram::BLOCK;
use verbmark::measure::{
    Clock, Counter, Epoch, LatencyHistogram, Limit, Raw, Spin, Stop, Ticks, Watch, latency,
};
use verbmark::ops::{Op, Read, Send, Verb, Write, WriteImm};
use verbmark::plan::Shape;
use verbmark::transport::rdma::{Lists, PingPong, Posting, Rdma, Single, Streamer, Taker};

use crate::rig::{Rig, SIZE};
use crate::{c, null};

/// Messages of a list; loops.c knows it as `LIST`.
const LIST: u64 = 32;

/// A loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Loop {
    /// RDMA READ, one at a time.
    ReadLat,
    /// SEND and its answer.
    SendLat,
    /// RDMA WRITE with immediate data, and its answer.
    WriteImmLat,
    /// A window of RDMA WRITEs.
    WriteBw,
    /// The same in lists of 32, one completion each.
    WriteLists,
    /// A window of SENDs.
    SendBw,
    /// The end that takes SENDs.
    Sink,
}

/// What it runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// Operations that do nothing.
    Null,
    /// The emulated device, both ends in one thread.
    Emulated,
}

/// What it is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// The product's loop.
    Rust,
    /// The same in C.
    C,
}

/// A part of the loops, by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// One reading of the processor's counter.
    Counter,
    /// One reading of `CLOCK_MONOTONIC_RAW`.
    Raw,
    /// One sample recorded by itself.
    Record,
    /// One sample, recorded with its block.
    Fold,
}

/// Every loop and what it can run on alone.
pub const LOOPS: [(Loop, On); 9] = [
    (Loop::ReadLat, On::Null),
    (Loop::SendLat, On::Null),
    (Loop::WriteImmLat, On::Null),
    (Loop::WriteBw, On::Null),
    (Loop::WriteLists, On::Null),
    (Loop::SendBw, On::Null),
    (Loop::Sink, On::Null),
    (Loop::ReadLat, On::Emulated),
    (Loop::WriteBw, On::Emulated),
];

impl Loop {
    fn verb(self) -> (Verb, Shape) {
        match self {
            Self::ReadLat => (Verb::Read, Shape::Latency),
            Self::SendLat => (Verb::Send, Shape::Latency),
            Self::WriteImmLat => (Verb::WriteImm, Shape::Latency),
            Self::WriteBw | Self::WriteLists => (Verb::Write, Shape::Bandwidth),
            Self::SendBw | Self::Sink => (Verb::Send, Shape::Bandwidth),
        }
    }

    /// It records samples, which C's does not.
    pub fn folds(self) -> bool {
        matches!(self, Self::ReadLat | Self::SendLat | Self::WriteImmLat)
    }

    /// The functions that are the loop, as a pattern of their names.
    pub fn functions(self, language: Language) -> &'static str {
        match language {
            Language::C => "c_*",
            Language::Rust if self.folds() => "*latency::fill*",
            Language::Rust if self == Self::Sink => "*cases::sink*",
            Language::Rust => "*cases::stream*",
        }
    }
}

/// Runs a loop for `messages` and returns the ns it took.
pub fn run(which: Loop, on: On, language: Language, messages: u64) -> u64 {
    let (verb, shape) = which.verb();
    let list = if which == Loop::WriteLists { LIST } else { 1 };
    let mut rig = Rig::new(verb, shape, list).expect("the emulated device takes the defaults");
    if on == On::Null {
        null::replace(&mut rig.client, rig.test.rx_depth);
    }
    match language {
        Language::Rust => in_rust(which, &mut rig, messages),
        Language::C => in_c(which, &mut rig, messages),
    }
}

fn in_c(which: Loop, rig: &mut Rig, messages: u64) -> u64 {
    let mut end = c::End::new(&mut rig.client, SIZE, rig.test.tx_depth, rig.test.signal_every);
    let began = Instant::now();
    match which {
        Loop::ReadLat => end.latency(c::READ_LATENCY, messages),
        Loop::SendLat => end.latency(c::SEND_LATENCY, messages),
        Loop::WriteImmLat => end.latency(c::WRITE_IMM_LATENCY, messages),
        Loop::WriteBw => end.bandwidth(c::WRITE_STREAM, messages),
        Loop::WriteLists => end.bandwidth(c::WRITE_LISTS, messages / LIST * LIST),
        Loop::SendBw => end.bandwidth(c::SEND_STREAM, messages),
        Loop::Sink => end.bandwidth(c::SINK, messages),
    }
    began.elapsed().as_nanos() as u64
}

fn in_rust(which: Loop, rig: &mut Rig, messages: u64) -> u64 {
    static QUIET: AtomicBool = AtomicBool::new(false);
    let (control, _peer) = UnixStream::pair().expect("a socket pair");
    let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
    let clock = clock();
    let end = &mut rig.client;
    match which {
        Loop::ReadLat => ping_pong::<Read>(end, &clock, &watch, messages),
        Loop::SendLat => ping_pong::<Send>(end, &clock, &watch, messages),
        Loop::WriteImmLat => ping_pong::<WriteImm>(end, &clock, &watch, messages),
        Loop::WriteLists => {
            stream::<Write, Lists>(end, rig.test.tx_depth, &clock, &watch, messages / LIST * LIST)
        }
        Loop::WriteBw => stream::<Write, Single>(end, rig.test.tx_depth, &clock, &watch, messages),
        Loop::SendBw => stream::<Send, Single>(end, rig.test.tx_depth, &clock, &watch, messages),
        Loop::Sink => sink(end, &watch, messages),
    }
}

#[inline(never)]
fn sink(end: &mut Rdma, watch: &Watch<'_>, messages: u64) -> u64 {
    let mut path = Taker::<Send, Spin>::new(end, SIZE as usize);
    let began = Instant::now();
    bandwidth::sink::<_, false>(&mut path, messages, watch, &mut 0).expect("nothing fails");
    began.elapsed().as_nanos() as u64
}

/// A calibrated clock. The time it needs is slept: a spin's instructions differ from run to run.
fn clock() -> Clock {
    let epoch = Epoch::note();
    std::thread::sleep(Duration::from_millis(20));
    Clock::calibrate(epoch, Some("tsc"))
}

fn ping_pong<O: Op>(end: &mut Rdma, clock: &Clock, watch: &Watch<'_>, messages: u64) -> u64 {
    let mut path = PingPong::<O, Spin>::new(end, SIZE as usize);
    let mut histogram = LatencyHistogram::new();
    let limit: Limit = Stop::Count(messages).into();
    let began = Instant::now();
    latency::initiate::<_, _, false>(&mut path, Counter, clock, limit, watch, &mut histogram)
        .expect("nothing fails");
    began.elapsed().as_nanos() as u64
}

#[inline(never)]
fn stream<O: Op, P: Posting>(
    end: &mut Rdma,
    depth: u32,
    clock: &Clock,
    watch: &Watch<'_>,
    messages: u64,
) -> u64 {
    let mut path = Streamer::<O, Spin, P>::new(end, SIZE as usize);
    let load = Load { depth: depth.into(), warm_up: Stop::Count(0).into(), stop: Stop::Count(messages) };
    let mut sample = BandwidthSample::default();
    let began = Instant::now();
    bandwidth::stream(&mut path, Counter, clock, &load, watch, &mut sample).expect("nothing fails");
    began.elapsed().as_nanos() as u64
}

/// Does a part `times` and returns the ns it took.
#[inline(never)]
pub fn run_part(part: Part, times: u64) -> u64 {
    let clock = clock();
    let mut histogram = LatencyHistogram::new();
    let samples: Vec<u64> = (0..1024).map(|i| 1000 + i * 7919 % 64).collect();
    let mut block = [0; BLOCK];
    let began = Instant::now();
    match part {
        Part::Counter => read(Counter, times),
        Part::Raw => read(Raw, times),
        Part::Record => {
            (0..times).for_each(|i| histogram.record(clock.ns(std::hint::black_box(1000 + i % 64))))
        }
        Part::Fold => {
            for _ in 0..times / block.len() as u64 {
                block.copy_from_slice(std::hint::black_box(&samples));
                histogram.record_all(block.iter().map(|&taken| clock.ns(taken)));
                histogram.note_median(&mut block, |taken| clock.ns(taken));
            }
        }
    }
    let took = began.elapsed().as_nanos() as u64;
    std::hint::black_box(&histogram);
    took
}

fn read<T: Ticks>(ticks: T, times: u64) {
    for _ in 0..times {
        std::hint::black_box(ticks.now());
    }
}
