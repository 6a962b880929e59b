//! Latency of RDMA WRITE with immediate data: post to arrival of the answer, both by receive completions. Half of the
//! round trip is shown.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::WriteImm, verbmark::plan::Shape::Latency)
}
