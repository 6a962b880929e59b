//! The rule held to what it promises: by simulated machines, and by properties of any values at all.

mod delayed;
mod properties;
mod simulated;
mod verdicts;
