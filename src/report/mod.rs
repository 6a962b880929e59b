//! What leaves a run: a table for people, JSON, CSV and an HdrHistogram log for programs, and where they go.
//!
//! Every writer is a pure function of the [`Document`](crate::result::Document); only [`files`] touches the world.

mod columns;
mod cpu;
pub mod csv;
pub mod files;
mod header;
pub mod hlog;
pub mod json;
pub mod limits;
pub mod numbers;
mod table;
pub mod text;
mod uncertainty;

pub use files::Target;
pub use table::{Table, render};
