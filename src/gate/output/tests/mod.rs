//! Each format read back by rules of its readers, of gates whose names mean something to it.

mod document;
mod history;
mod metrics;
mod report;
mod sample;
