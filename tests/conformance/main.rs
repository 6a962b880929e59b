//! Conformance: the rules of verbs, each checked on real and emulated devices by a test of its own.
//!
//! The rules stand in one table, a group of them in each file, with who made the rule; `docs/conformance.md` is that
//! table, written anew by `UPDATE_TABLES=1 cargo test --test conformance`. Both ends are queue pairs of this process on
//! one device. `VERBMARK_CONFORMANCE_DEVICE` names the devices, separated by commas; without it they are the two
//! emulated ones, of which one has an Ethernet port and the other an InfiniBand port.
//!
//! Where devices differ the specification decides. What a driver is known to do otherwise stands beside the rule, and
//! its test then asks for exactly that.

mod async_events;
mod atomics;
mod events;
mod flush;
mod lab;
mod lists;
mod local_faults;
mod operations;
mod peers;
mod posting;
mod queues;
mod remote_faults;
mod rule;
mod slices;
mod srq;
mod table;
mod transitions;
mod uc;
mod ud;
