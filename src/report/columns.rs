//! The columns of the two tables, and which of them a terminal has room for.

use crate::result::Shape;

/// What a column shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    Size,
    Transport,
    Samples,
    Min,
    P50,
    P90,
    P99,
    P99_9,
    P99_99,
    Max,
    Mean,
    Stdev,
    Gbps,
    GiBps,
    Mmsgps,
    Window,
    Slowest,
    CpuClient,
    CpuServer,
    Limit,
}

/// One column. Widths are fixed before anything is measured, so that rows can be printed as they come.
#[derive(Debug, Clone, Copy)]
struct Column {
    cell: Cell,
    title: &'static str,
    width: usize,
    /// Spaces before it where room is short, and where it is not.
    gaps: [usize; 2],
    /// Columns of the highest rank go first when room is short; rank 0 stays.
    rank: u8,
}

/// Shorthand for the tables below.
const fn column(cell: Cell, title: &'static str, width: usize, gaps: [usize; 2], rank: u8) -> Column {
    Column { cell, title, width, gaps, rank }
}

const LATENCY: &[Column] = &[
    column(Cell::Size, "size", 4, [0, 2], 0),
    column(Cell::Transport, "transport", 9, [2, 2], 0),
    column(Cell::Samples, "samples", 11, [1, 2], 5),
    column(Cell::Min, "min", 7, [1, 2], 4),
    column(Cell::P50, "p50", 7, [1, 1], 0),
    column(Cell::P90, "p90", 7, [1, 1], 7),
    column(Cell::P99, "p99", 7, [1, 1], 1),
    column(Cell::P99_9, "p99.9", 9, [1, 1], 2),
    column(Cell::P99_99, "p99.99", 9, [1, 1], 8),
    column(Cell::Max, "max", 9, [1, 1], 3),
    column(Cell::Mean, "mean", 7, [1, 2], 6),
    column(Cell::Stdev, "stdev", 7, [1, 1], 9),
];

const BANDWIDTH: &[Column] = &[
    column(Cell::Size, "size", 4, [0, 2], 0),
    column(Cell::Transport, "transport", 9, [2, 2], 0),
    column(Cell::Gbps, "Gb/s", 7, [1, 2], 0),
    column(Cell::GiBps, "GiB/s", 7, [1, 2], 4),
    column(Cell::Mmsgps, "Mmsg/s", 7, [1, 2], 1),
    column(Cell::Window, "window", 8, [1, 2], 5),
    column(Cell::Slowest, "slowest 100 ms", 14, [2, 3], 2),
    // The two titles read as one: `cpu ns/msg (client, server)`.
    column(Cell::CpuClient, "cpu ns/msg (client,", 19, [2, 3], 3),
    column(Cell::CpuServer, "server)", 7, [1, 1], 3),
    column(Cell::Limit, "limited by", 13, [2, 3], 6),
];

/// The columns that are shown.
#[derive(Debug, Clone)]
pub struct Columns {
    shown: Vec<Column>,
    /// Which of the two gaps stands before each.
    gap: usize,
}

impl Columns {
    /// The columns of a table whose sizes and names of paths take so much, without those that `width` has no room for.
    pub fn new(shape: Shape, size_width: usize, path_width: usize, width: Option<usize>) -> Self {
        let mut columns = match shape {
            Shape::Latency => LATENCY.to_vec(),
            Shape::Bandwidth => BANDWIDTH.to_vec(),
        };
        columns[0].width = columns[0].width.max(size_width);
        columns[1].width = columns[1].width.max(path_width);
        let fits = |columns: &[Column], gap: usize| {
            let total: usize = columns.iter().map(|c| c.gaps[gap] + c.width).sum();
            width.is_none_or(|width| total <= width)
        };
        while !fits(&columns, 0) {
            match columns.iter().map(|c| c.rank).max() {
                Some(rank) if rank > 0 => columns.retain(|c| c.rank != rank),
                _ => break,
            }
        }
        Self { gap: usize::from(fits(&columns, 1)), shown: columns }
    }

    /// The cell is shown.
    pub fn show(&self, cell: Cell) -> bool {
        self.shown.iter().any(|column| column.cell == cell)
    }

    /// Where the second column begins: what belongs to a row but is no cell starts there.
    pub fn indent(&self) -> usize {
        self.shown[0].gaps[self.gap] + self.shown[0].width + self.shown[1].gaps[self.gap]
    }

    /// The line of titles.
    pub fn titles(&self) -> String {
        self.lay(|column| column.title.into())
    }

    /// One line, each cell filled by `fill`, which is told the cell's width.
    pub fn line(&self, fill: impl Fn(Cell, usize) -> String) -> String {
        self.lay(|column| fill(column.cell, column.width))
    }

    /// Names to the left, numbers to the right, nothing after the last.
    fn lay(&self, text: impl Fn(&Column) -> String) -> String {
        let mut line = String::new();
        for column in &self.shown {
            let (gap, width, text) = (column.gaps[self.gap], column.width, text(column));
            line.extend(std::iter::repeat_n(' ', gap));
            line += &match column.cell {
                Cell::Size | Cell::Transport => format!("{text:<width$}"),
                _ => format!("{text:>width$}"),
            };
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_important_columns_go_first() {
        let titles = |shape, width| Columns::new(shape, 6, 4, width).titles();
        let words =
            |shape, width| titles(shape, Some(width)).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(Shape::Latency, 80), "size transport samples min p50 p99 p99.9 max");
        assert_eq!(words(Shape::Latency, 60), "size transport p50 p99 p99.9 max");
        assert_eq!(words(Shape::Latency, 1), "size transport p50");
        assert_eq!(
            words(Shape::Bandwidth, 80),
            "size transport Gb/s Mmsg/s slowest 100 ms cpu ns/msg (client, server)"
        );
        assert_eq!(words(Shape::Bandwidth, 60), "size transport Gb/s Mmsg/s slowest 100 ms");
        assert_eq!(titles(Shape::Latency, None), titles(Shape::Latency, Some(120)));
    }
}
