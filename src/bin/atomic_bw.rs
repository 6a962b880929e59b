//! Rate of the atomics, FETCH AND ADD or COMPARE AND SWAP, all on one word of the target.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::FetchAdd, verbmark::plan::Shape::Bandwidth)
}
