//! Latency of RDMA READ: post to completion, with the data here. The whole operation is shown, never half.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::Read, verbmark::plan::Shape::Latency)
}
