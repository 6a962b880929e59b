//! Bandwidth of RDMA WRITE with immediate data: each message consumes a receive at the target, which posts it again.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::WriteImm, verbmark::plan::Shape::Bandwidth)
}
