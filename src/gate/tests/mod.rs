//! The rule held to what it promises: by delays in virtual time, and by properties of any values
//! at all. How often it errs is in `tests/gating.rs`.

mod delayed;
mod properties;
mod random;
mod verdicts;
