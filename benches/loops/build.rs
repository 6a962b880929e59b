fn main() {
    println!("cargo::rerun-if-changed=src/loops.c");
    // As distributions build C, whatever the profile of the Rust code is.
    cc::Build::new()
        .file("src/loops.c")
        .opt_level(2)
        .debug(false)
        .std("gnu11")
        .warnings_into_errors(true)
        .compile("loops");
}
