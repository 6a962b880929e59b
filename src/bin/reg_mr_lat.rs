//! What registering memory costs: the calls by size, beside a copy into memory that is registered already.
fn main() -> std::process::ExitCode {
    verbmark::registration::main()
}
