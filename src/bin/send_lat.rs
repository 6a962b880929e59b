//! Latency of SEND: post to arrival of the answer, both by receive completions. Half of the round trip is shown.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::Send, verbmark::plan::Shape::Latency)
}
