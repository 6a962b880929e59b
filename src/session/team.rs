//! Work of several threads, each on a core of its own, that begin together.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread;

use crate::error::{Error, Result, Step};
use crate::host;

const WAIT: u8 = 0;
const GO: u8 = 1;
const LEAVE: u8 = 2;

/// Does `work` on each path, on a thread of its own on the core beside it. The threads begin when all of them are where
/// they belong. Returns what each yields, in the order of the paths.
///
/// # Errors
/// A thread could not be started or bound to its core; then none has begun.
pub fn on_cores<P: Send, R: Send>(
    cores: &[usize],
    paths: &mut [P],
    work: impl Fn(&mut P) -> R + Sync,
) -> Result<Vec<R>> {
    let (gate, arrived, unbound) = (AtomicU8::new(WAIT), AtomicUsize::new(0), AtomicBool::new(false));
    let wait = || {
        arrived.fetch_add(1, Ordering::Release);
        while gate.load(Ordering::Acquire) == WAIT {
            thread::yield_now();
        }
        gate.load(Ordering::Acquire) == GO
    };
    thread::scope(|scope| {
        let mut workers = Vec::new();
        let mut started = Ok(());
        for (index, path) in paths.iter_mut().enumerate() {
            let core = cores.get(index).copied();
            let (wait, work, unbound) = (&wait, &work, &unbound);
            let worker =
                thread::Builder::new().name(format!("measure {index}")).spawn_scoped(scope, move || {
                    let bound = core.map_or(Ok(()), host::pin);
                    if bound.is_err() {
                        unbound.store(true, Ordering::Relaxed);
                    }
                    let goes = wait();
                    bound?;
                    Ok(goes.then(|| work(path)))
                });
            match worker {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    started = Err(Error::failed(Step::Measure, format!("starting thread {index}: {error}")));
                    break;
                }
            }
        }
        while arrived.load(Ordering::Acquire) < workers.len() {
            thread::yield_now();
        }
        let all = started.is_ok() && !unbound.load(Ordering::Relaxed);
        gate.store(if all { GO } else { LEAVE }, Ordering::Release);
        let ended: Vec<Result<Option<R>>> = workers.into_iter().map(joined).collect();
        started?;
        let mut yielded = Vec::new();
        for outcome in ended {
            yielded.extend(outcome?);
        }
        Ok(yielded)
    })
}

fn joined<R>(worker: thread::ScopedJoinHandle<'_, Result<R>>) -> Result<R> {
    worker.join().unwrap_or_else(|_| Err(Error::failed(Step::Measure, "a measuring thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_worked_on_once_and_yields_in_order() {
        let cores = host::Cores::read(None).unwrap();
        let cores = [cores.allowed()[0]; 5];
        let mut paths = [1, 2, 3, 4, 5];
        let doubled = on_cores(&cores, &mut paths, |path| {
            *path *= 2;
            *path
        });
        assert_eq!((doubled.unwrap(), paths), (vec![2, 4, 6, 8, 10], [2, 4, 6, 8, 10]));
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        let error = on_cores(&[100_000], &mut [()], |()| ()).unwrap_err();
        assert!(error.message.contains("100000"), "{error}");
    }
}
