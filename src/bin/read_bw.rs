//! Bandwidth of RDMA READ: a stream fetched from the target, which takes no part in it.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::Read, verbmark::plan::Shape::Bandwidth)
}
