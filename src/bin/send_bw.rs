//! Bandwidth of SEND: a stream of messages that each consume a receive, counted by both ends.
fn main() -> std::process::ExitCode {
    verbmark::suite::main(verbmark::ops::Verb::Send, verbmark::plan::Shape::Bandwidth)
}
