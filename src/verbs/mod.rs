//! RDMA verbs: devices, memory, completion queues and queue pairs as types that own what they stand for.
//!
//! This is the one place that talks to libibverbs. It is thin on purpose: a method here is a verb, its values checked
//! where the device would only say `EINVAL`, its error told with the values it was called with.
//!
//! * **Control path** ([`Device`], [`Context`], [`Pd`], [`Mr`], [`Cq`], [`Channel`], [`Qp`], [`UdQp`], [`Srq`],
//!   [`AddressHandle`]). Each type holds what it was made from, so whatever the order in which a caller drops them,
//!   libibverbs sees queue pairs, memory regions and address handles go before their protection domain, completion
//!   queues and shared receive queues after the queue pairs that use them, and the context last. Dropping reports
//!   nothing and never panics; what the device refuses to destroy is leaked along with all it stands on, because memory
//!   that a device may still reach must not be given to somebody else.
//! * **Data path** ([`Sender`], [`SendList`], [`Receiver`], [`ReceiveRing`], [`Cq::poll`], [`Cq::arm`]). Work requests are built once and
//!   patched, if at all. A call loads a function pointer from the operations table of the context and jumps, as the
//!   inline functions of `<infiniband/verbs.h>` do; the compiler sees no error value until the device returns one.
//! * **Kinds.** [`Qp`] is connected, reliably or not ([`Transport`]); [`UdQp`] is not, and has neither a peer nor RDMA.
//!   Either makes [`Sender`]s and [`Receiver`]s, which loops use without a look at where they came from.
//! * **Two providers.** [`ProviderKind::Libibverbs`] is the system's library. [`ProviderKind::Emulated`] is a device in
//!   this process that fills the same operations table, so a loop runs the same machine code on either.
//!
//! Ownership is done here and not by the `ibverbs` crate, because its released version has no access to its raw
//! objects and neither WRITE nor READ, inline data, immediate data or completion channels; it lists the devices.
//!
//! # Threads
//! "By default all verbs objects are safe for multi-threaded access" (`ibv_alloc_td(3)`): a verb may be called on the
//! same object from several threads, but for destroying what another one uses, which ownership excludes. That is what
//! every `Send` and `Sync` here rests on. Providers take locks for it; `MLX5_SINGLE_THREADED=1` and its likes in the
//! environment take them away, and must not be set by who shares objects between threads.
//!
//! # Memory shared with a device
//! A device reads and writes a [`Region`] whenever it likes between the post of a work request and its completion. No
//! reference into a region is therefore ever made: bytes are copied in and out, see [`Region`].

// This module is a room for unsafe code: every call here crosses into C, or hands memory to a device. Each block says
// which contract it relies on, and nothing outside this module needs to know of them.
#![allow(unsafe_code)]

mod async_event;
mod attributes;
mod completion;
mod cycle;
mod datagram;
mod described;
mod device;
mod emulated;
mod extended;
mod gid;
mod libibverbs;
mod mapping;
mod memory;
#[cfg(doctest)]
mod misuse;
mod on_demand;
mod port;
mod post;
mod provider;
mod queue_pair;
mod queues;
mod receive;
mod receive_ring;
mod registration;
mod send_list;
mod shared_receive;
mod slice;
#[cfg(test)]
mod tests;
mod transition;
mod wc;

pub use async_event::{AsyncEvent, TOLD};
pub use attributes::Attributes;
pub use completion::{Channel, Cq, PollFailed};
pub use cycle::Slots;
pub use datagram::{AddressHandle, Destination, GRH_BYTES, UdInit, UdQp};
pub use described::{Description, PortDescription};
pub use device::{Context, Device, NO_DEVICE_REMEDY, ProviderKind, devices, find};
#[cfg(test)]
pub(crate) use emulated::VirtualTime;
pub use gid::{Gid, GidEntry, GidType};
pub use mapping::{Bytes, Placement};
pub use memory::{Access, Mr, Pd, Region, RemoteSlice};
pub use on_demand::OnDemandPaging;
pub use port::{AtomicCap, DeviceAttr, LinkLayer, PhysicalState, PortAttr, PortState};
pub use post::{Opcode, Partial, Patch, Sender};
pub use queue_pair::{Qp, Transport};
pub use queues::{QpCaps, QpInit};
pub use receive::Receiver;
pub use receive_ring::ReceiveRing;
pub use registration::Registration;
pub use send_list::{Linked, SendList};
pub use shared_receive::Srq;
pub use slice::Slice;
pub use transition::{Address, Grh, Init, QpState, Rtr, Rts, rnr_wait};
pub use wc::{Wc, WcStatus};
