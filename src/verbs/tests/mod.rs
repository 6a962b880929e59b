//! Tests of the types, on the emulated devices.

mod async_events;
mod atomics;
mod datagram;
mod ends;
mod gather;
mod list;
mod shared_receive;
mod solicited;
mod unreliable;
