//! Tests of the types, on the emulated devices.

mod atomics;
mod ends;
mod unreliable;
