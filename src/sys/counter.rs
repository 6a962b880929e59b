//! The processor's free-running counter: TSC on x86-64, CNTVCT on 64-bit Arm.

/// Reads the counter. Not ordered against surrounding loads and stores: a serialising read costs as much again, and
/// a wait that ends by a mispredicted branch orders it anyway.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn read() -> u64 {
    // SAFETY: RDTSC has no precondition on x86-64; Linux does not set CR4.TSD for ordinary processes.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads the counter. The barrier keeps the read from moving ahead of the wait before it.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn read() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets user space read CNTVCT_EL0; the read has no side effect.
    unsafe { core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, nomem)) };
    ticks
}

/// Reads the counter: there is none on this architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
pub fn read() -> u64 {
    0
}

/// The counter ticks at a constant rate in every power state, by the processor's own word (Intel SDM 18.17, AMD APM
/// 3 appendix E: CPUID 8000_0007h EDX bit 8). Arm's generic timer always does.
pub fn is_invariant() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // Marked unsafe in the older of the compilers that build this, and safe in the newer.
        #[allow(unused_unsafe)]
        // SAFETY: every x86-64 processor has CPUID, and a leaf it does not know reads as zeros or as another.
        let leaf = |leaf| unsafe { core::arch::x86_64::__cpuid(leaf) };
        leaf(0x8000_0000).eax >= 0x8000_0007 && leaf(0x8000_0007).edx & (1 << 8) != 0
    }
    #[cfg(target_arch = "aarch64")]
    {
        true
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        false
    }
}
