//! From what was typed to what was decided.

use std::time::Duration;

use super::document::{Pages, Paging};
use crate::cli::SizeSpec;
use crate::cli::registration::{RegistrationArgs, Touch};
use crate::error::Result;
use crate::measure::Stop;
use crate::plan::{MemoryKind, Outputs};

/// Sizes that tell a page from a message, and a message from a buffer.
const SIZES: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

/// Smallest and largest size of a sweep.
const SWEEP: (u64, u64) = (4 << 10, 1 << 30);

/// Length of a measurement: five sizes are then done in ten seconds with room to spare.
const DURATION: Duration = Duration::from_millis(300);

/// One run, decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Name of the device; `None` takes the first usable one, or an emulated one.
    pub device: Option<String>,
    /// NUMA node of the memory; `None` leaves it to the kernel.
    pub numa: Option<u32>,
    /// Core to run on; `None` leaves the choice open.
    pub core: Option<usize>,
    /// Bytes, in the order measured.
    pub sizes: Vec<u64>,
    /// When the measurement of one size and kind of memory ends.
    pub stop: Stop,
    /// States of the pages, in the order measured.
    pub pages: Vec<Pages>,
    /// Ways of registering, in this order; what the device does not have is an error where it is the only one.
    pub paging: Vec<Paging>,
    /// Kind of pages.
    pub memory: MemoryKind,
    /// Where results go, besides the table.
    pub outputs: Outputs,
    /// Notes for the document.
    pub labels: Vec<(String, String)>,
    /// Say what was chosen and why.
    pub verbose: bool,
}

impl Plan {
    /// Decides everything the options leave open.
    ///
    /// # Errors
    /// Two outputs in one place.
    pub fn resolve(args: RegistrationArgs) -> Result<Self> {
        let sizes = match (&args.size, args.all) {
            (Some(spec), _) => spec.sizes().to_vec(),
            (None, true) => SizeSpec::doubling(SWEEP.0, SWEEP.1).sizes().to_vec(),
            (None, false) => SIZES.to_vec(),
        };
        let stop = match args.iters {
            Some(count) => Stop::Count(count),
            None => Stop::After(args.duration.unwrap_or(DURATION)),
        };
        let outputs = Outputs { json: args.json, csv: args.csv, hlog: None };
        outputs.check()?;
        Ok(Self {
            device: args.device,
            numa: args.numa,
            core: args.cpu,
            sizes,
            stop,
            pages: match args.touch {
                Touch::Both => vec![Pages::Touched, Pages::Untouched],
                Touch::Yes => vec![Pages::Touched],
                Touch::No => vec![Pages::Untouched],
            },
            paging: if args.odp { vec![Paging::OnDemand] } else { vec![Paging::Pinned, Paging::OnDemand] },
            memory: if args.hugepages { MemoryKind::HugePages } else { MemoryKind::Anonymous },
            outputs,
            labels: args.labels,
            verbose: args.verbose,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::registration::parse;

    #[test]
    fn a_sweep_doubles_from_a_page_to_a_gibibyte_and_the_default_is_short() {
        let plan = |line: &str| Plan::resolve(parse(line.split(' ').map(Into::into)).unwrap()).unwrap();
        let all = plan("reg_mr_lat -a").sizes;
        assert_eq!((all.len(), all[0], all[18]), (19, 4096, 1 << 30));
        let default = plan("reg_mr_lat");
        assert_eq!(default.stop, Stop::After(DURATION));
        // Each kind of memory, and the copy.
        let measurements = default.sizes.len() * (default.pages.len() * default.paging.len() + 1);
        assert!(DURATION * measurements as u32 <= Duration::from_secs(10), "{measurements}");
        assert_eq!(plan("reg_mr_lat --odp -n 3").stop, Stop::Count(3));
    }
}
