//! RDMA beside TCP, point by point.

use serde::{Deserialize, Serialize};

use super::ResultRow;
use crate::plan::Transport;

/// One metric of one point over both transports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Id of the RDMA row.
    pub rdma: String,
    /// Id of the TCP row.
    pub tcp: String,
    /// Path of the value inside a row, such as `latency_ns.p50`; its unit is in its name.
    pub metric: String,
    /// The RDMA row's value.
    pub rdma_value: Option<f64>,
    /// The TCP row's value.
    pub tcp_value: Option<f64>,
    /// Their ratio; `null` where either is, where a row is invalid, and on an emulated device.
    pub tcp_over_rdma: Option<f64>,
}

/// Compares each RDMA row with the TCP row of the same point. On an `emulated` device values are given but no ratio: it
/// would compare this tool with the kernel.
pub fn comparison(rows: &[ResultRow], emulated: bool) -> Vec<Comparison> {
    let of = |transport| rows.iter().filter(move |row| row.transport == transport);
    of(Transport::Rdma)
        .filter_map(|rdma| Some((rdma, of(Transport::Tcp).find(|tcp| tcp.point.is_beside(&rdma.point))?)))
        .flat_map(|(rdma, tcp)| pair(rdma, tcp, emulated))
        .collect()
}

/// Every metric of one pair of rows.
fn pair(rdma: &ResultRow, tcp: &ResultRow, emulated: bool) -> Vec<Comparison> {
    // Many queue pairs have more under way than a connection, and each message then takes longer.
    let same_load = rdma.latency_ns.is_none() || rdma.point.qps == tcp.point.qps;
    let comparable = !emulated && rdma.validity.ok && tcp.validity.ok && basis_agrees(rdma, tcp) && same_load;
    metrics(rdma)
        .into_iter()
        .filter_map(|(metric, rdma_value)| {
            let (_, tcp_value) = metrics(tcp).into_iter().find(|(name, _)| *name == metric)?;
            let ratio =
                tcp_value.zip(rdma_value).map(|(tcp, rdma)| tcp / rdma).filter(|ratio| ratio.is_finite());
            Some(Comparison {
                rdma: rdma.id.clone(),
                tcp: tcp.id.clone(),
                metric: metric.into(),
                rdma_value,
                tcp_value,
                tcp_over_rdma: ratio.filter(|_| comparable),
            })
        })
        .collect()
}

/// Half a round trip is never set against a whole one.
fn basis_agrees(rdma: &ResultRow, tcp: &ResultRow) -> bool {
    let basis = |row: &ResultRow| row.latency_ns.as_ref().map(|latency| latency.basis);
    basis(rdma) == basis(tcp)
}

/// The metrics of a row that are compared. A maximum is one event and a deviation mostly its maximum: not they.
fn metrics(row: &ResultRow) -> Vec<(&'static str, Option<f64>)> {
    let mut metrics = Vec::new();
    if let Some(latency) = &row.latency_ns {
        metrics.extend([
            ("latency_ns.min", Some(latency.min)),
            ("latency_ns.p50", latency.p50),
            ("latency_ns.p90", latency.p90),
            ("latency_ns.p99", latency.p99),
            ("latency_ns.p99_9", latency.p99_9),
            ("latency_ns.p99_99", latency.p99_99),
            ("latency_ns.mean", Some(latency.mean)),
        ]);
    }
    if let Some(bandwidth) = &row.bandwidth {
        metrics.push(("bandwidth.bytes_per_s", bandwidth.bytes_per_s));
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::LatencyHistogram;
    use crate::plan::{Side, Wait};
    use crate::result::{Bandwidth, Basis, Direction, Point};

    fn point(size_bytes: u64) -> Point {
        Point {
            size_bytes,
            qps: 1,
            depth: 1,
            threads: 1,
            wait: Wait::Busy,
            direction: Direction::Unidirectional,
            offered_per_s: None,
        }
    }

    fn latency(transport: Transport, size: u64, ns: u64, samples: usize, basis: Basis) -> ResultRow {
        let mut histogram = LatencyHistogram::new();
        (0..samples).for_each(|_| histogram.record(ns));
        ResultRow::new(transport, point(size), Side::Client).with_latency(&histogram, basis)
    }

    fn ratio(rows: &[ResultRow], metric: &str) -> Option<f64> {
        comparison(rows, false).into_iter().find(|c| c.metric == metric).unwrap().tcp_over_rdma
    }

    #[test]
    fn rows_of_one_point_are_compared() {
        let basis = Basis::HalfRoundTrip;
        let mut rows = vec![
            latency(Transport::Rdma, 64, 1_000, 1_000, basis),
            latency(Transport::Tcp, 64, 8_000, 1_000, basis),
            latency(Transport::Rdma, 128, 1_000, 1_000, basis),
        ];
        let compared = comparison(&rows, false);
        assert!(compared.iter().all(|c| c.rdma == rows[0].id && c.tcp == rows[1].id), "128 B has no TCP row");
        assert_eq!(ratio(&rows, "latency_ns.p50"), Some(8.0));
        assert_eq!(ratio(&rows, "latency_ns.p99_9"), None, "one sample lies beyond");
        rows[1].validity.invalid("counts wrong");
        assert_eq!(ratio(&rows, "latency_ns.p50"), None);
    }

    #[test]
    fn half_is_not_set_against_whole() {
        let rows = [
            latency(Transport::Rdma, 64, 1_000, 1_000, Basis::HalfRoundTrip),
            latency(Transport::Tcp, 64, 8_000, 1_000, Basis::RoundTrip),
        ];
        assert_eq!(ratio(&rows, "latency_ns.p50"), None);
    }

    #[test]
    fn an_emulated_device_has_values_but_no_ratio() {
        let basis = Basis::HalfRoundTrip;
        let rows =
            [latency(Transport::Rdma, 64, 100, 100, basis), latency(Transport::Tcp, 64, 8_000, 100, basis)];
        let compared = comparison(&rows, true);
        assert!(compared.iter().all(|c| c.tcp_over_rdma.is_none()));
        assert_eq!((compared[1].rdma_value, compared[1].tcp_value), (Some(50.0), Some(4000.0)));
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let row = |transport, bytes_per_s| {
            let mut row = ResultRow::new(transport, point(64), Side::Client);
            row.bandwidth =
                Some(Bandwidth { bytes_per_s, messages_per_s: None, interval_min_bytes_per_s: None });
            row
        };
        let rows = [row(Transport::Rdma, Some(0.0)), row(Transport::Tcp, Some(1e9))];
        assert_eq!(ratio(&rows, "bandwidth.bytes_per_s"), None);
        let rows = [row(Transport::Rdma, Some(4e9)), row(Transport::Tcp, Some(1e9))];
        assert_eq!(ratio(&rows, "bandwidth.bytes_per_s"), Some(0.25));
    }
}
