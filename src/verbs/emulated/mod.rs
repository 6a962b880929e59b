//! The emulated device: not there yet.

use super::provider::Provider;

/// The provider of the emulated devices.
pub(super) fn provider() -> &'static dyn Provider {
    &super::libibverbs::LIBIBVERBS
}

/// The emulated devices, in the order they are listed.
pub(super) fn device_names() -> &'static [&'static str] {
    &[]
}
