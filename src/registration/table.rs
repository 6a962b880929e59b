//! What a person sees: a line for each kind of memory and size, and one for the copy beside them.

use super::document::{BreakEven, Document, Operation, Pages, Paging, ResultRow};
use crate::report::numbers::{NONE, count, significant};
use crate::report::text::{labelled, plain, wrap};
use crate::result::{MemoryKind, Status};
use crate::units::format_size;

/// The whole table of a document, no line wider than `width` where words allow it.
pub fn render(document: &Document, width: Option<usize>) -> String {
    let table = Table::new(document, width);
    let sizes = document.test.sizes_bytes.iter().map(|size| table.size(document, *size));
    format!("{}{}{}", table.header(), sizes.collect::<String>(), table.footer(document))
}

/// What a column shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Size,
    Memory,
    Samples,
    Min,
    P50,
    P99,
    Max,
    Mean,
    EndP50,
    EndP99,
    EndMean,
    PaysFrom,
}

/// A column: spaces before it, title, width; those of the highest rank go first when room is short, rank 0 stays.
type Column = (Cell, usize, &'static str, usize, u8);

const COLUMNS: &[Column] = &[
    (Cell::Size, 2, "size", 7, 0),
    (Cell::Memory, 2, "memory", 20, 0),
    (Cell::Samples, 1, "samples", 9, 5),
    (Cell::Min, 1, "min", 7, 7),
    (Cell::P50, 1, "p50", 8, 0),
    (Cell::P99, 1, "p99", 8, 1),
    (Cell::Max, 1, "max", 8, 4),
    (Cell::Mean, 1, "mean", 8, 2),
    (Cell::EndP50, 2, "deregister p50", 14, 0),
    (Cell::EndP99, 1, "p99", 8, 6),
    (Cell::EndMean, 1, "mean", 8, 3),
    (Cell::PaysFrom, 2, "pays from use", 13, 0),
];

/// A table that can be printed while it is measured.
#[derive(Debug, Clone)]
pub struct Table {
    header: String,
    columns: Vec<Column>,
    width: Option<usize>,
}

impl Table {
    /// Lays a table out for a run whose device is known.
    pub fn new(document: &Document, width: Option<usize>) -> Self {
        let mut columns = COLUMNS.to_vec();
        let fits = |columns: &[Column]| {
            width.is_none_or(|width| columns.iter().map(|column| column.1 + column.3).sum::<usize>() <= width)
        };
        while !fits(&columns)
            && let Some(rank) = columns.iter().map(|column| column.4).max().filter(|rank| *rank > 0)
        {
            columns.retain(|column| column.4 != rank);
        }
        let mut table = Self { header: String::new(), columns, width };
        table.header = wrap(&what(document), 2, width);
        table.header += &wrap("us a call: ibv_reg_mr, or memcpy for a copy; then ibv_dereg_mr", 2, width);
        table.header += "\n";
        table.header += &table.line(|column| column.2.into());
        table
    }

    /// Everything above the first size.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// The lines of a size; none where nothing of it was measured.
    pub fn size(&self, document: &Document, size_bytes: u64) -> String {
        let rows: Vec<_> = document.results.iter().filter(|row| row.size_bytes == size_bytes).collect();
        if rows.iter().all(|row| row.latency_ns.is_none()) {
            return String::new();
        }
        let mut out = String::new();
        for row in rows.iter().filter(|row| row.operation != Operation::Deregister) {
            let same = |other: &&&ResultRow| {
                other.operation == Operation::Deregister
                    && (other.pages, other.paging) == (row.pages, row.paging)
            };
            let end = rows.iter().find(same).copied();
            let found = document.break_even.iter().find(|found| found.register == row.id);
            let is_first = out.is_empty();
            out += &self.line(|column| match column.0 {
                Cell::Size if !is_first => String::new(),
                cell => value(row, end, found, cell, column.3),
            });
        }
        out
    }

    /// Everything below the last size, of the finished document.
    pub fn footer(&self, document: &Document) -> String {
        let mut out = String::new();
        let mut say = |label: &str, text: &str| out += &labelled(label, text, self.width);
        if document.results.iter().all(|row| row.latency_ns.is_none()) {
            say("status", "nothing was measured");
        } else {
            match document.status {
                Status::Ok => {}
                Status::Invalid => say("status", "INVALID: the numbers above must not be trusted"),
                Status::Failed => say("status", "failed: what is shown was measured before the error"),
                Status::Interrupted => {
                    say("status", "interrupted: what is shown was measured before the signal")
                }
            }
        }
        for note in &document.notes {
            let label = match note.code.as_str() {
                "emulated" => "EMULATED",
                "software" => "SOFTWARE",
                "unknown" => "UNKNOWN",
                _ => "note",
            };
            say(label, &note.message);
        }
        if document.break_even.iter().any(|found| found.uses.is_some()) {
            say(
                "pays",
                "from that use of a buffer on, registering it and ending that has cost less than a copy each time into \
                 one registered before; by medians, or by means where calls were few",
            );
        }
        for warning in &document.warnings {
            say("warning", &warning.message);
        }
        out
    }

    /// Words to the left, numbers to the right, nothing after the last.
    fn line(&self, text: impl Fn(&Column) -> String) -> String {
        let mut line = String::new();
        for column in &self.columns {
            let (cell, gap, _, width, _) = *column;
            let text = text(column);
            line.extend(std::iter::repeat_n(' ', gap));
            line += &match cell {
                Cell::Size | Cell::Memory => format!("{text:<width$}"),
                _ => format!("{text:>width$}"),
            };
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

/// What was measured, on what.
fn what(document: &Document) -> String {
    let mut parts = vec![document.tool.binary.clone()];
    if let Some(local) = &document.local {
        let kind = match document.test.memory {
            MemoryKind::Anonymous => "pages",
            MemoryKind::HugePages => "huge pages",
        };
        parts.push(format!("{kind} of {}", format_size(local.buffers.page_bytes)));
        parts.push(local.device.name.clone());
        parts.extend(local.core.map(|core| format!("core {core}")));
    }
    plain(&parts.join("  "))
}

fn value(
    row: &ResultRow,
    end: Option<&ResultRow>,
    found: Option<&BreakEven>,
    cell: Cell,
    width: usize,
) -> String {
    let calls = row.latency_ns.as_ref();
    let end_calls = end.and_then(|end| end.latency_ns.as_ref());
    let us = |ns: Option<f64>| significant(ns.map(|ns| ns / 1e3), width);
    match cell {
        Cell::Size => format_size(row.size_bytes),
        Cell::Memory => memory(row).into(),
        Cell::Samples => count(calls.map(|calls| calls.samples), width),
        Cell::Min => us(calls.map(|calls| calls.min)),
        Cell::P50 => us(calls.and_then(|calls| calls.p50)),
        Cell::P99 => us(calls.and_then(|calls| calls.p99)),
        Cell::Max => us(calls.map(|calls| calls.max)),
        Cell::Mean => us(calls.map(|calls| calls.mean)),
        // A copy has no end of its own.
        _ if row.operation == Operation::Copy => String::new(),
        Cell::EndP50 => us(end_calls.and_then(|calls| calls.p50)),
        Cell::EndP99 => us(end_calls.and_then(|calls| calls.p99)),
        Cell::EndMean => us(end_calls.map(|calls| calls.mean)),
        Cell::PaysFrom => found.map_or_else(|| NONE.into(), |found| count(found.pays_from(), width)),
    }
}

fn memory(row: &ResultRow) -> &'static str {
    match (row.pages, row.paging) {
        (Some(Pages::Touched), Some(Paging::Pinned)) => "touched",
        (Some(Pages::Untouched), Some(Paging::Pinned)) => "untouched",
        (Some(Pages::Touched), _) => "touched, on demand",
        (Some(Pages::Untouched), _) => "untouched, on demand",
        (None, _) => "copy",
    }
}
