//! Latency of the atomics, FETCH AND ADD or COMPARE AND SWAP on a word of the target: the whole operation.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::FetchAdd, verbmark::plan::Shape::Latency)
}
