//! The latency distributions as an HdrHistogram interval log (V2): a line for each interval of each result, tagged with
//! the result's id.

use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::error::{Error, Step};
use crate::result::Document;

/// Each line's maximum, which is for people and has three decimals, is in microseconds.
const NS_PER_US: f64 = 1e3;

/// The log: comments, the base time, and for each result that has a histogram a line for each of its intervals, or one
/// for its whole window where intervals were not kept. Values are nanoseconds of whole round trips.
///
/// # Errors
/// A histogram of the document is damaged.
pub fn to_string(document: &Document) -> Result<String, Error> {
    let broken = |cause: &dyn std::fmt::Display| {
        Error::failed(Step::Output, format!("cannot write an HdrHistogram log: {cause}"))
    };
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment(&format!(
            "[{} {}, run {}]",
            document.tool.binary, document.tool.version, document.run_id
        ))
        .add_comment("[values are whole round trips in ns, maxima in us]")
        .with_max_value_divisor(NS_PER_US);
    if document.results.iter().any(|row| row.bandwidth.is_some()) {
        builder.add_comment("[a bandwidth test times no single message: it has no line here]");
    }
    if let Ok(started) = humantime::parse_rfc3339(&document.started_at) {
        builder.with_base_time(started).with_start_time(started);
    }

    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut log = builder.begin_log_with(&mut bytes, &mut serializer).map_err(|e| broken(&e))?;
    let mut end = Duration::ZERO;
    for row in &document.results {
        let window = duration(row.window_s).unwrap_or_default();
        // Where a row does not say when it began, it follows the one before.
        let start = duration(row.start_s).unwrap_or(end);
        end = start + window;
        if let Some(histogram) = &row.histogram {
            let id: String = row.id.chars().map(|c| if is_tag(c) { c } else { '_' }).collect();
            let mut write = |buckets: &Histogram<u64>, start, length| {
                log.write_histogram(buckets, start, length, Tag::new(&id))
                    .map_err(|e| broken(&format!("{e:?}")))
            };
            let mut kept = false;
            for interval in &row.intervals {
                if let Some(buckets) = histogram.decode_interval(interval)? {
                    let after = duration(Some(interval.start_s)).unwrap_or_default();
                    let length = duration(Some(interval.seconds)).unwrap_or_default();
                    write(&buckets, start.saturating_add(after), length)?;
                    kept = true;
                }
            }
            if !kept {
                write(&histogram.decode()?, start, window)?;
            }
        }
    }
    String::from_utf8(bytes).map_err(|e| broken(&e))
}

/// What a tag may hold.
fn is_tag(c: char) -> bool {
    !matches!(c, ',' | ' ') && !c.is_control()
}

/// Seconds of a document as a duration; a document from elsewhere may hold anything.
fn duration(seconds: Option<f64>) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds?)
        .ok()
        .filter(|duration| *duration < Duration::from_secs(u32::MAX.into()))
}
