//! Each format read back by rules of its readers, of gates whose names mean something to it. The readers themselves are
//! asked by `scripts/check_gate_outputs.py`.

mod document;
mod history;
mod metrics;
mod report;
pub(crate) mod sample;

use std::path::Path;

use super::{annotations, benchmark_action, junit, markdown, openmetrics, otava};
use crate::gate::compare::Better;

#[test]
#[ignore = "writes files for scripts/check_gate_outputs.py"]
fn write_samples() {
    let directory = std::env::var("VERBMARK_SAMPLES").expect("VERBMARK_SAMPLES=DIRECTORY");
    for (name, gate) in sample::all() {
        let write = |end: &str, text: String| {
            std::fs::write(Path::new(&directory).join(format!("{name}{end}")), text).unwrap();
        };
        let csv = format!("{directory}/{name}.otava.csv");
        write(".json", serde_json::to_string_pretty(&gate).unwrap());
        write(".junit.xml", junit::to_string(&gate).unwrap());
        write(".md", markdown::to_string(&gate));
        write(".annotations", annotations::to_string(&gate));
        write(".prom", openmetrics::to_string(&gate));
        write(".otava.csv", otava::to_string(&gate).unwrap());
        write(".otava.yaml", otava::configuration(&gate, &csv));
        write(".smaller.json", benchmark_action::to_string(&gate, Better::Lower).unwrap());
        write(".bigger.json", benchmark_action::to_string(&gate, Better::Higher).unwrap());
    }
}
