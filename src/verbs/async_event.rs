//! Asynchronous events: what a device says outside of any completion queue.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ibverbs_sys::{
    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_PKEY_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SM_CHANGE,
    IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_event_type,
};

use super::device::Context;
use crate::error::{Error, Result, Step};

/// Something happened to a device, a port or a queue. `ibv_get_async_event(3)`
///
/// Queue pairs are named by their own numbers (`qpn`), ports by theirs, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields are what the type says they are")]
pub enum AsyncEvent {
    /// A completion queue is in error: a completion was lost for want of room.
    CqError,
    /// A queue pair is in error, and no completion tells why.
    QpFatal { qpn: u32 },
    /// A peer asked for what the queue pair does not do, and it is in error.
    QpRequestError { qpn: u32 },
    /// A peer reached for memory it may not, and the queue pair is in error.
    QpAccessError { qpn: u32 },
    /// The first message arrived at a queue pair that is not yet in RTS.
    CommEstablished { qpn: u32 },
    /// A send queue that was to be drained is.
    SqDrained { qpn: u32 },
    /// A connection went over to its other path.
    PathMigrated { qpn: u32 },
    /// A connection could not go over to its other path.
    PathMigrationFailed { qpn: u32 },
    /// A queue pair in error has taken its last receive from a shared queue.
    LastWqeReached { qpn: u32 },
    /// A shared receive queue is in error.
    SrqError,
    /// A shared receive queue has fewer receives than its limit.
    SrqLimitReached,
    /// The device is in error; nothing of it works any more.
    DeviceFatal,
    /// A port is up.
    PortActive { port: u8 },
    /// A port is down.
    PortError { port: u8 },
    /// A port has another local identifier.
    LidChange { port: u8 },
    /// A port's partition keys changed.
    PkeyChange { port: u8 },
    /// A port has another subnet manager.
    SmChange { port: u8 },
    /// The subnet manager asks everybody to register again.
    ClientReregister { port: u8 },
    /// A port's GIDs changed.
    GidChange { port: u8 },
    /// What this version does not know, by the value of `enum ibv_event_type`.
    Other(u32),
}

impl AsyncEvent {
    /// `number` is the queue pair or port of a kind that has one.
    fn from_raw(kind: ibv_event_type, number: u32) -> Self {
        let qpn = number;
        let port = u8::try_from(number).unwrap_or(0);
        match kind {
            IBV_EVENT_CQ_ERR => Self::CqError,
            IBV_EVENT_QP_FATAL => Self::QpFatal { qpn },
            IBV_EVENT_QP_REQ_ERR => Self::QpRequestError { qpn },
            IBV_EVENT_QP_ACCESS_ERR => Self::QpAccessError { qpn },
            IBV_EVENT_COMM_EST => Self::CommEstablished { qpn },
            IBV_EVENT_SQ_DRAINED => Self::SqDrained { qpn },
            IBV_EVENT_PATH_MIG => Self::PathMigrated { qpn },
            IBV_EVENT_PATH_MIG_ERR => Self::PathMigrationFailed { qpn },
            IBV_EVENT_QP_LAST_WQE_REACHED => Self::LastWqeReached { qpn },
            IBV_EVENT_SRQ_ERR => Self::SrqError,
            IBV_EVENT_SRQ_LIMIT_REACHED => Self::SrqLimitReached,
            IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            IBV_EVENT_PORT_ACTIVE => Self::PortActive { port },
            IBV_EVENT_PORT_ERR => Self::PortError { port },
            IBV_EVENT_LID_CHANGE => Self::LidChange { port },
            IBV_EVENT_PKEY_CHANGE => Self::PkeyChange { port },
            IBV_EVENT_SM_CHANGE => Self::SmChange { port },
            IBV_EVENT_CLIENT_REREGISTER => Self::ClientReregister { port },
            IBV_EVENT_GID_CHANGE => Self::GidChange { port },
            other => Self::Other(other),
        }
    }

    /// Something stopped working, or changed under a run that was planned without it.
    pub fn is_trouble(self) -> bool {
        !matches!(
            self,
            Self::CommEstablished { .. }
                | Self::SqDrained { .. }
                | Self::LastWqeReached { .. }
                | Self::SrqLimitReached
                | Self::PortActive { .. }
        )
    }

    /// Queue pairs stopped working, and it may be that no completion tells of it.
    pub fn is_fatal(self) -> bool {
        self.is_error() && !matches!(self, Self::PortError { .. } | Self::PathMigrationFailed { .. })
    }

    /// Something stopped working.
    pub fn is_error(self) -> bool {
        matches!(
            self,
            Self::CqError
                | Self::QpFatal { .. }
                | Self::QpRequestError { .. }
                | Self::QpAccessError { .. }
                | Self::PathMigrationFailed { .. }
                | Self::SrqError
                | Self::DeviceFatal
                | Self::PortError { .. }
        )
    }
}

/// How an event is introduced to a person.
pub const TOLD: &str = "the device told";

fn lock(events: &Mutex<Vec<AsyncEvent>>) -> MutexGuard<'_, Vec<AsyncEvent>> {
    events.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CqError => f.write_str("a completion queue overflowed"),
            Self::QpFatal { qpn } => write!(f, "QP {qpn:#08x} is in error"),
            Self::QpRequestError { qpn } => write!(f, "QP {qpn:#08x} was asked for what it does not do"),
            Self::QpAccessError { qpn } => {
                write!(f, "QP {qpn:#08x} was asked for memory that is not the peer's")
            }
            Self::CommEstablished { qpn } => write!(f, "QP {qpn:#08x} has its first message"),
            Self::SqDrained { qpn } => write!(f, "the send queue of QP {qpn:#08x} is drained"),
            Self::PathMigrated { qpn } => write!(f, "QP {qpn:#08x} went over to its other path"),
            Self::PathMigrationFailed { qpn } => {
                write!(f, "QP {qpn:#08x} could not go over to its other path")
            }
            Self::LastWqeReached { qpn } => write!(f, "QP {qpn:#08x} takes no more shared receives"),
            Self::SrqError => f.write_str("a shared receive queue is in error"),
            Self::SrqLimitReached => f.write_str("a shared receive queue is below its limit"),
            Self::DeviceFatal => f.write_str("the device failed"),
            Self::PortActive { port } => write!(f, "port {port} is up"),
            Self::PortError { port } => write!(f, "port {port} is down"),
            Self::LidChange { port } => write!(f, "the LID of port {port} changed"),
            Self::PkeyChange { port } => write!(f, "the partition keys of port {port} changed"),
            Self::SmChange { port } => write!(f, "the subnet manager of port {port} changed"),
            Self::ClientReregister { port } => write!(f, "the subnet manager of port {port} started anew"),
            Self::GidChange { port } => write!(f, "the GIDs of port {port} changed"),
            Self::Other(kind) => write!(f, "asynchronous event {kind}"),
        }
    }
}

impl Context {
    /// All events so far, oldest first: what was taken by this or by [`Context::check_device`], and what there is now.
    pub fn events(&self) -> Vec<AsyncEvent> {
        // A device that is gone has no more; who looks for an error asks `check_device`.
        let _ = self.keep_events();
        lock(&self.0.events).clone()
    }

    /// Looks whether the device has told of something after which completions may never come.
    ///
    /// # Errors
    /// [`Step::Measure`]: it has, or it is gone.
    #[cold]
    pub fn check_device(&self) -> Result<()> {
        self.keep_events()?;
        match lock(&self.0.events).iter().find(|event| event.is_fatal()) {
            None => Ok(()),
            Some(event) => Err(Error::failed(Step::Measure, format!("{TOLD}: {event}")).with_remedy(
                "see the device's log (dmesg): the device, its driver or its firmware failed, or it was removed or reset",
            )),
        }
    }

    fn keep_events(&self) -> Result<()> {
        let mut events = lock(&self.0.events);
        while let Some(event) = self.take_async_event()? {
            events.push(event);
        }
        Ok(())
    }

    /// Takes the oldest asynchronous event and acknowledges it; `None` when there is none. Never blocks: wait on
    /// [`Context::async_fd`]. `ibv_get_async_event(3)`, `ibv_ack_async_event(3)`
    ///
    /// # Errors
    /// [`Step::Measure`]: the device is gone.
    pub fn take_async_event(&self) -> Result<Option<AsyncEvent>> {
        // SAFETY: the context is open and of this provider.
        match unsafe { self.0.provider.next_async_event(self.0.raw) } {
            Ok((kind, number)) => Ok(Some(AsyncEvent::from_raw(kind, number))),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(Error::failed(
                Step::Measure,
                format!("ibv_get_async_event({}): {error}", self.device().name()),
            )
            .with_remedy("see the device's log (dmesg): it may have been removed or reset")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_of_the_library() {
        let told: Vec<String> = (0..=19).map(|kind| AsyncEvent::from_raw(kind, 1).to_string()).collect();
        assert_eq!(told[0], "a completion queue overflowed");
        assert_eq!(told[4], "QP 0x000001 has its first message");
        assert_eq!(told[10], "port 1 is down");
        assert_eq!(told[19], "asynchronous event 19");
        let distinct: std::collections::BTreeSet<&String> = told.iter().collect();
        assert_eq!(distinct.len(), told.len());
        let errors: Vec<u32> = (0..=19).filter(|&kind| AsyncEvent::from_raw(kind, 1).is_error()).collect();
        assert_eq!(errors, [0, 1, 2, 3, 7, 8, 10, 14]);
        let fatal: Vec<u32> = (0..=19).filter(|&kind| AsyncEvent::from_raw(kind, 1).is_fatal()).collect();
        assert_eq!(fatal, [0, 1, 2, 3, 8, 14]);
    }
}
