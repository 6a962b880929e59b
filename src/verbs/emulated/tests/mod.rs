//! Tests through the provider and its operations table, as the safe layer above uses them.

mod concurrency;
mod cost;
mod datagram;
mod device;
mod errors;
mod events;
mod harness;
mod operations;
mod planted;
mod queues;
mod request;
mod states;
mod unreliable;
