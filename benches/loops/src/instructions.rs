//! Instructions, counted by valgrind's callgrind in a process of its own.

use std::process::{Command, Stdio};

/// Counts of two lengths of run, whose difference is free of set-up. Whole blocks of samples and whole turns of
/// signalled sends.
const SHORT: u64 = 20 * 1024;
const LONG: u64 = 120 * 1024;

/// Instructions a message of this program run with `words`, which are followed by a number of messages. Those are
/// counted that pass inside functions whose names fit the pattern `inside`.
///
/// # Errors
/// Why they could not be counted.
pub fn per_message(inside: &str, words: &[&str]) -> Result<f64, String> {
    let (short, long) = (count(inside, words, SHORT)?, count(inside, words, LONG)?);
    Ok((long as f64 - short as f64) / (LONG - SHORT) as f64)
}

fn count(inside: &str, words: &[&str], messages: u64) -> Result<u64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={inside}"))
        .arg(this)
        .args(words)
        .arg(messages.to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!(
            "valgrind ended with {}: {}",
            output.status,
            told.lines().last().unwrap_or_default()
        ));
    }
    told.lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
        .ok_or_else(|| "valgrind told no count".into())
}
