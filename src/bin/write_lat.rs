//! Latency of RDMA WRITE: post to arrival of the answer, both seen in memory. Half of the round trip is shown.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::Write, verbmark::plan::Shape::Latency)
}
