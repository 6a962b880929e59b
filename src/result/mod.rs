//! The result document: what one run measured, on what, and how far to trust it.
//!
//! A session fills a [`Document`], `report` writes it, `gate` reads it back. `docs/formats.md` describes it to users and
//! `docs/result.schema.json` to programs; this module is where both come from. Three rules hold throughout:
//!
//! * a value that could not be had is `None` (`null`), never 0, and [`Document::missing`] says why;
//! * units stand in the names (`_ns`, `_s`, `_bytes`, `_per_s`), rates and sizes are never rescaled;
//! * additions keep the schema's name, so readers ignore what they do not know.

mod comparison;
mod copies;
mod cpu;
mod directions;
mod document;
mod end;
mod identity;
mod latency;
mod limited_by;
mod limits;
mod row;
mod test;

pub use comparison::{Comparison, comparison};
pub use copies::{COPIED, Carrier, DerivedCopies, LENT, PayloadPath, derived_copies};
pub use cpu::{Cpu, CpuUse};
pub use directions::{DirectionRow, Overlap, Span};
pub use document::{Document, Floor, Missing, Notice, SCHEMA, Status, Tool};
pub use end::{Buffers, Claims, ClockFacts, Device, End, Gid, GidType, LinkLayer, Process, TcpEnd};
pub use identity::{run_id, timestamp};
pub use latency::{Basis, Histogram, Latency};
pub use limited_by::{Evidence, LimitedBy, idle_of_polling, idle_of_sleeping, limited_by};
pub use limits::{LimitResult, LimitVerdict};
pub use row::{
    Bandwidth, Counters, Direction, Point, ResultRow, RowInterval, ThreadRate, Uncertainty, Validity,
};
pub use test::{StopRecord, TestRecord};

// What readers of a document need to name its values.
pub use crate::host::{CpuEvidence, MachineCpu};
pub use crate::measure::Arrivals;
pub use crate::plan::{
    Bound, BoundSide, Connection, LimitSpec, MemoryKind, Of, Quantity, Shape, Side, TcpOptions, Transport,
    Wait,
};
