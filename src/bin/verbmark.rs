//! The tool beside the tests: what is not a measurement, one subcommand each.
fn main() -> std::process::ExitCode {
    verbmark::tool::main()
}
