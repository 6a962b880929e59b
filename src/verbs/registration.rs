//! Registering memory and ending that: what may be asked of it besides who may do what, and what it takes.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use ibverbs_sys::ibv_access_flags;
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::memory::{Access, Mr, MrInner, Pd, Region};
use crate::error::{Error, Result, Step};
use crate::units::format_size;

/// How memory is registered, beyond who may do what with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registration {
    /// The device may let its writes overtake each other on the way to memory (`IBV_ACCESS_RELAXED_ORDERING`). Kernels
    /// and devices that cannot do that leave it out without a word.
    pub relaxed_ordering: bool,
    /// Pages are not pinned; the device has them brought in when it meets one that is not there
    /// (`IBV_ACCESS_ON_DEMAND`).
    pub on_demand: bool,
}

impl Registration {
    pub(super) fn flags(self) -> c_int {
        let mut flags = ibv_access_flags(0);
        if self.relaxed_ordering {
            flags |= ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        }
        if self.on_demand {
            flags |= ibv_access_flags::IBV_ACCESS_ON_DEMAND;
        }
        flags.0 as c_int
    }
}

impl Pd {
    /// As [`Pd::register`], with more to say about it.
    ///
    /// # Errors
    /// As [`Pd::register`]; the device does not do what is asked for.
    pub fn register_as(&self, region: Region, access: Access, how: Registration) -> Result<Mr> {
        self.register_timed(region, access, how, || ()).map(|(mr, _)| mr)
    }

    /// The same, with what `now` says right before the verb and right after it.
    ///
    /// # Errors
    /// As [`Pd::register_as`].
    #[inline]
    pub fn register_timed<T>(
        &self,
        region: Region,
        access: Access,
        how: Registration,
        now: impl Fn() -> T,
    ) -> Result<(Mr, [T; 2])> {
        let len = region.len();
        let longest = self.0.context.cached_attr()?.max_mr_size;
        if len as u64 > longest {
            return Err(Error::failed(
                Step::RegisterMemory,
                format!(
                    "a buffer of {} is longer than the {longest} bytes the device registers at once",
                    format_size(len as u64)
                ),
            )
            .with_remedy("use smaller messages or fewer outstanding ones"));
        }
        let provider = self.0.context().provider;
        let (base, flags) = (region.base().as_ptr(), access.flags() | how.flags());
        let before = now();
        // SAFETY: the domain is live and of this provider. The memory is mapped, and stays so until the registration has
        // ended, by `Mr::deregister_timed` or `MrInner::drop`.
        let made = unsafe { provider.reg_mr(self.0.raw, base, len, flags) };
        let after = now();
        let raw = made.map_err(|error| register_failed(&format_size(len as u64), access, &error))?;
        // SAFETY: just made, live, and its keys never change.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        let inner = MrInner { raw, lkey, rkey, region: ManuallyDrop::new(region), pd: self.clone() };
        Ok((Mr(Arc::new(inner)), [before, after]))
    }
}

impl Mr {
    /// Ends the registration and gives the memory back, with what `now` says right before the verb and right after it.
    /// `ibv_dereg_mr(3)`
    ///
    /// # Errors
    /// [`Step::RegisterMemory`]: clones or work requests share the registration, which goes on then; or the device does
    /// not let go of the memory, which stays mapped then.
    #[inline]
    pub fn deregister_timed<T>(self, now: impl Fn() -> T) -> Result<(Region, [T; 2])> {
        let inner = Arc::try_unwrap(self.0).map_err(|_| {
            Error::failed(Step::RegisterMemory, "ibv_dereg_mr(): the memory is still used by work requests")
        })?;
        // What `MrInner::drop` would do is done here.
        let mut inner = ManuallyDrop::new(inner);
        let provider = inner.pd.0.context().provider;
        let before = now();
        // SAFETY: the registration is live and ended once, since this value is not dropped.
        let ended = unsafe { provider.dereg_mr(inner.raw) };
        let after = now();
        if let Err(error) = ended {
            // As when it is dropped: the memory stays mapped, and the domain open, for the device may still reach it.
            return Err(Error::failed(Step::RegisterMemory, format!("ibv_dereg_mr(): {error}")));
        }
        // SAFETY: each is taken once, and `inner` is neither used nor dropped after that. The device has let go of the
        // memory.
        let (region, pd) =
            unsafe { (ManuallyDrop::take(&mut inner.region), std::ptr::read(&raw const inner.pd)) };
        drop(pd);
        Ok((region, [before, after]))
    }

    /// The device has registered what it was asked to: this address and length, under a key.
    pub fn is_as_asked(&self) -> bool {
        // SAFETY: the registration is live, and what is read of it never changes.
        let (addr, length) = unsafe { ((*self.0.raw).addr, (*self.0.raw).length) };
        addr.addr() as u64 == self.addr() && length == self.len() && self.lkey() != 0
    }
}

fn register_failed(length: &str, access: Access, error: &std::io::Error) -> Error {
    let call = format!("ibv_reg_mr({length}, {access}): {error}");
    if error.raw_os_error() != Some(Errno::ENOMEM as i32) {
        return Error::failed(Step::RegisterMemory, call);
    }
    let (limit, remedy) = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => (
            "unlimited".to_owned(),
            "use smaller messages or fewer outstanding ones: the machine or its cgroup is short of memory",
        ),
        Ok((soft, _)) => (
            format_size(soft),
            "allow more locked memory: `ulimit -l unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK= in a \
             systemd unit, --ulimit memlock=-1 for a container",
        ),
        Err(_) => ("unknown".to_owned(), "allow more locked memory: `ulimit -l unlimited`"),
    };
    Error::failed(
        Step::RegisterMemory,
        format!("{call}; the limit of locked memory (RLIMIT_MEMLOCK) is {limit}"),
    )
    .with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_memory_is_registered_adds_to_the_flags() {
        let how = Registration { relaxed_ordering: true, on_demand: true };
        assert_eq!((Registration::default().flags(), how.flags()), (0, 1 << 20 | 1 << 6));
    }

    #[test]
    fn a_refused_registration_names_the_limit() {
        let error = std::io::Error::from_raw_os_error(Errno::ENOMEM as i32);
        let told = register_failed("1 MiB", Access::default(), &error);
        assert!(told.message.starts_with("ibv_reg_mr(1 MiB, local write): "), "{}", told.message);
        assert!(told.message.contains("RLIMIT_MEMLOCK"), "{}", told.message);
        assert!(told.remedy.is_some());
    }

    #[test]
    fn memory_comes_back_from_its_registration_unless_somebody_shares_it() {
        let pd = crate::verbs::find("emu0").unwrap().open().unwrap().alloc_pd().unwrap();
        let register =
            |region| pd.register_timed(region, Access::default(), Registration::default(), || 7).unwrap();
        let (mr, told) = register(Region::untouched(5000, Default::default()).unwrap());
        assert!(mr.is_as_asked());
        assert_eq!((told, mr.len()), ([7, 7], 5000));
        mr.region().write(4999, b"x");
        let (region, _) = mr.deregister_timed(|| ()).unwrap();
        assert_eq!(region.load_acquire(4999), b'x');
        let (mr, _) = register(region);
        let shared = mr.clone();
        let error = mr.deregister_timed(|| ()).unwrap_err();
        assert!(error.message.contains("still used"), "{error}");
        assert!(shared.is_as_asked(), "it goes on");
        shared.deregister_timed(|| ()).unwrap();
    }
}
