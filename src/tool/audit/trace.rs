//! What strace wrote, read as it comes: the system calls of each thread inside its measured phase.
//!
//! A phase lies between two calls of `getrusage(RUSAGE_THREAD)`, with which a thread takes account of its CPU time
//! (`host::CpuMeter`). The one that ends an account follows a reading of the thread's clock, and the one that begins it
//! is followed by one. A server takes account of the phases in which payloads are checked, too; the last is the measured
//! one. A thread that has begun an account and not ended it only waited for those that measure.

use std::collections::BTreeMap;

/// Calls by name.
pub type Calls = BTreeMap<String, Count>;

/// How often one system call was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// In all.
    pub calls: u64,
    /// Those that found nothing: `EAGAIN`, or a timeout. Of an end that spins their number is a matter of timing.
    pub found_nothing: u64,
    /// Those that failed otherwise, by a signal for instance.
    pub failed: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.found_nothing += other.found_nothing;
        self.failed += other.failed;
    }
}

/// Threads of a traced process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The one named `server`, and those it has started: the server's end of a loopback.
    OfServer,
    /// All others.
    OfProcess,
}

/// The threads of a trace and what they did.
#[derive(Debug, Default)]
pub struct Trace {
    threads: BTreeMap<u32, Thread>,
    /// A line that has not come to its end yet.
    rest: Vec<u8>,
}

#[derive(Debug, Default)]
struct Thread {
    parent: Option<u32>,
    is_server: bool,
    /// In the account that has begun and not ended.
    open: Option<Calls>,
    /// In the last account that was ended.
    phase: Option<Calls>,
    /// The call before was a reading of its clock.
    read_clock: bool,
    /// A call under way while another thread's was written, without its end.
    begun: Option<String>,
}

impl Trace {
    /// Reads on. A line may come in pieces.
    pub fn feed(&mut self, piece: &[u8]) {
        let mut lines = piece.split(|byte| *byte == b'\n');
        self.rest.extend_from_slice(lines.next().unwrap_or_default());
        for next in lines {
            let line = std::mem::replace(&mut self.rest, next.to_vec());
            self.line(&String::from_utf8_lossy(&line));
        }
    }

    /// The calls of these threads in their measured phases; `None` where there was no such phase.
    pub fn measured(&self, threads: Threads) -> Option<Calls> {
        let mut sum: Option<Calls> = None;
        for (id, thread) in &self.threads {
            let Some(phase) = thread.phase.as_ref().filter(|_| thread.open.is_none()) else { continue };
            if self.is_of_server(*id) == (threads == Threads::OfServer) {
                let sum = sum.get_or_insert_default();
                for (name, count) in phase {
                    sum.entry(name.clone()).or_default().add(*count);
                }
            }
        }
        sum
    }

    fn is_of_server(&self, id: u32) -> bool {
        // No more steps than there are threads: a file may say anything.
        let ancestors = std::iter::successors(self.threads.get(&id), |thread| {
            thread.parent.and_then(|parent| self.threads.get(&parent))
        });
        ancestors.take(self.threads.len()).any(|thread| thread.is_server)
    }

    /// `1234  recvfrom(9, "", 64, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)`
    fn line(&mut self, line: &str) {
        let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (id, text) = line.split_at(digits);
        let (Ok(id), text) = (id.parse(), text.trim()) else { return };
        // Signals and ends of threads.
        if text.starts_with("---") || text.starts_with("+++") {
            return;
        }
        let thread = self.threads.entry(id).or_default();
        if let Some(begun) = text.strip_suffix("<unfinished ...>") {
            thread.begun = Some(begun.to_owned());
            return;
        }
        let whole = match text.strip_prefix("<... ").and_then(|resumed| resumed.split_once(" resumed>")) {
            Some((name, end)) => thread.begun.take().unwrap_or_else(|| format!("{name}(")) + end,
            None => text.to_owned(),
        };
        if let Some(child) = thread.call(&whole) {
            self.threads.entry(child).or_default().parent = Some(id);
        }
    }
}

impl Thread {
    /// Enters a call. Returns the thread or process that it has started.
    fn call(&mut self, text: &str) -> Option<u32> {
        let (name, arguments) = text.split_once('(')?;
        let (_, result) = arguments.rsplit_once(" = ")?;
        let after_clock = std::mem::take(&mut self.read_clock);
        match name {
            "getrusage" if arguments.starts_with("RUSAGE_THREAD") => {
                match self.open.take() {
                    Some(calls) if after_clock => self.phase = Some(calls),
                    _ => self.open = Some(Calls::new()),
                }
                return None;
            }
            // Belongs to the account itself.
            "clock_gettime" if arguments.starts_with("CLOCK_THREAD_CPUTIME_ID") => {
                self.read_clock = true;
                return None;
            }
            "prctl" if arguments.starts_with("PR_SET_NAME, \"server\"") => self.is_server = true,
            _ => {}
        }
        if let Some(open) = &mut self.open {
            let count = match open.get_mut(name) {
                Some(count) => count,
                None => open.entry(name.to_owned()).or_default(),
            };
            count.calls += 1;
            if result.starts_with("-1 EAGAIN") || result.starts_with("0 (Timeout)") {
                count.found_nothing += 1;
            } else if result.starts_with(['-', '?']) {
                count.failed += 1;
            }
        }
        let starts = matches!(name, "clone" | "clone3" | "fork" | "vfork");
        if starts { result.split(' ').next()?.parse().ok() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends of a loopback: an account that is not ended, and a measured phase at the client; a phase of checks and a
    /// measured one at the server, whose thread is seen to run before the call that started it has ended.
    const LOOPBACK: &str = r#"100 execve("./send_lat", 0x7ffc, 0x7ffd) = 0
100 getrusage(RUSAGE_THREAD, 0x7f02)  = 0
100 clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f02) = 0
100 write(1, ""..., 5)                = 5
100 clone3(0x7ffe, 88 <unfinished ...>
200 prctl(PR_SET_NAME, "server")      = 0
100 <... clone3 resumed>)             = 200
200 getrusage(RUSAGE_THREAD, 0x7f01)  = 0
200 clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f01) = 0
200 sendto(9, ""..., 3, 0, NULL, 0)   = 3
200 clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f01) = 0
200 getrusage(RUSAGE_THREAD, 0x7f01)  = 0
200 getrusage(RUSAGE_THREAD, 0x7f01)  = 0
200 clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f01) = 0
200 recvfrom(9,  <unfinished ...>
100 getrusage(RUSAGE_THREAD <unfinished ...>
100 <... getrusage resumed>, 0x7f02)  = 0
100 clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f02) = 0
100 sendto(8, " = 7", 4, 0, NULL, 0)  = 4
200 <... recvfrom resumed>" = 4", 4, 0, NULL, NULL) = 4
200 recvfrom(9, 0x7f, 4, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
200 poll(0x7f03, 1, 0)                = 0 (Timeout)
200 poll(0x7f03, 1, 0)                = ? ERESTART_RESTARTBLOCK (Interrupted by signal)
--- a line of something else ---
200 --- SIGCHLD {si_signo=SIGCHLD} ---
100 clock_gettime(CLOCK_MONOTONIC, 0x7f02) = 0
100 clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f02) = 0
100 getrusage(RUSAGE_THREAD, 0x7f02)  = 0
200 clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f01) = 0
200 getrusage(RUSAGE_THREAD, 0x7f01)  = 0
200 write(2, "", 1)                   = 1
200 +++ exited with 0 +++
100 +++ exited with 0 +++
"#;

    fn counted(calls: u64, found_nothing: u64, failed: u64) -> Count {
        Count { calls, found_nothing, failed }
    }

    fn calls(counts: &[(&str, Count)]) -> Option<Calls> {
        Some(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
    }

    #[test]
    fn each_end_has_the_calls_between_its_last_marks() {
        // In pieces of every length, as a pipe may bring them.
        for length in [1, 7, 64, LOOPBACK.len()] {
            let mut trace = Trace::default();
            LOOPBACK.as_bytes().chunks(length).for_each(|piece| trace.feed(piece));
            let client = calls(&[("sendto", counted(1, 0, 0)), ("clock_gettime", counted(1, 0, 0))]);
            assert_eq!(trace.measured(Threads::OfProcess), client, "{length}");
            let server = calls(&[("recvfrom", counted(2, 1, 0)), ("poll", counted(2, 1, 1))]);
            assert_eq!(trace.measured(Threads::OfServer), server, "{length}");
        }
    }

    fn trace(lines: &str) -> Trace {
        let mut trace = Trace::default();
        trace.feed(lines.as_bytes());
        trace
    }

    fn begin(id: u32) -> String {
        format!(
            "{id} getrusage(RUSAGE_THREAD, 0x7f) = 0\n{id} clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f) = 0\n"
        )
    }

    fn end(id: u32) -> String {
        format!(
            "{id} clock_gettime(CLOCK_THREAD_CPUTIME_ID, 0x7f) = 0\n{id} getrusage(RUSAGE_THREAD, 0x7f) = 0\n"
        )
    }

    #[test]
    fn measuring_threads_stand_for_the_one_that_waits_for_them() {
        let lines = [
            &begin(1),
            "1 read(7, \"\", 8) = 8\n",
            &end(1),
            &begin(1),
            "1 clone(child_stack=0x7f, flags=CLONE_VM) = 2\n",
            "1 clone(child_stack=0x7f, flags=CLONE_VM) = 3\n",
            &begin(2),
            "2 write(5, \"\", 8) = 8\n",
            &end(2),
            &begin(3),
            "3 write(6, \"\", 8) = 8\n",
            &end(3),
        ];
        let trace = trace(&lines.concat());
        assert_eq!(trace.measured(Threads::OfProcess), calls(&[("write", counted(2, 0, 0))]));
        assert_eq!(trace.measured(Threads::OfServer), None);
    }

    #[test]
    fn a_phase_without_calls_is_not_a_trace_without_a_phase() {
        assert_eq!(trace("1 read(3, \"\", 1) = 0\n").measured(Threads::OfProcess), None);
        assert_eq!(trace(&(begin(1) + &end(1))).measured(Threads::OfProcess), Some(Calls::new()));
        assert_eq!(trace(&begin(1)).measured(Threads::OfProcess), None);
    }

    #[test]
    fn nonsense_is_passed_over() {
        let trace =
            trace("\n7\n7 (\n7 = 3\nx\n7 clone() = 7\n99999999999 read() = 1\n8 <... x resumed>) = 0\n");
        assert_eq!(trace.measured(Threads::OfProcess), None);
    }
}
