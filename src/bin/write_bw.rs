//! Bandwidth of RDMA WRITE, as the requester's completions count it. The target's processor takes no part.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::Write, verbmark::plan::Shape::Bandwidth)
}
