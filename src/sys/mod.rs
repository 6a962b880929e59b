//! The second room for unsafe code: machine instructions and system calls that no crate wraps safely.
#![allow(unsafe_code)] // reason: each function here is a safe wrapper around one instruction or call

pub mod counter;
pub mod perf;
pub mod process;
pub mod socket;
pub mod zero_copy;
