//! What the types refuse, as doctests: beside each misuse that must not compile stands the use that does, which differs
//! in little else, so that the misuse fails for what it does wrong. The codes are compared where rustdoc may use
//! unstable features (`RUSTC_BOOTSTRAP=1 cargo test --doc misuse`); a stable one asks only for a failure.
//!
//! # A work request is posted by one thread at a time
//! The library reads it while it is posted, and posting patches it.
//! ```
//! # use verbmark::verbs::{Opcode, Qp, Slice};
//! fn post(qp: Qp, memory: Slice) {
//!     let mut one = qp.sender(Opcode::Send, memory.clone(), None, false);
//!     let mut other = qp.sender(Opcode::Send, memory, None, false);
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| one.post());
//!         scope.spawn(|| other.post());
//!     });
//! }
//! ```
//! ```compile_fail,E0499
//! # use verbmark::verbs::{Opcode, Qp, Slice};
//! fn post(qp: Qp, memory: Slice) {
//!     let mut one = qp.sender(Opcode::Send, memory.clone(), None, false);
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| one.post());
//!         scope.spawn(|| one.post());
//!     });
//! }
//! ```
//! ```compile_fail,E0596
//! # use verbmark::verbs::Sender;
//! fn post(sender: &Sender) {
//!     sender.post().unwrap();
//! }
//! ```
//! A receive likewise; one thread may post it after the other.
//! ```
//! # use verbmark::verbs::Receiver;
//! fn post(mut receiver: Receiver) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| receiver.post());
//!     });
//!     receiver.post().unwrap();
//! }
//! ```
//! ```compile_fail,E0499
//! # use verbmark::verbs::Receiver;
//! fn post(mut receiver: Receiver) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| receiver.post());
//!         receiver.post().unwrap();
//!     });
//! }
//! ```
//!
//! # A work request has one owner
//! A second one would free it a second time.
//! ```
//! # use verbmark::verbs::{Qp, Slice};
//! fn two(qp: Qp, memory: Slice) {
//!     let _two = (qp.receiver(memory.clone()), qp.receiver(memory));
//! }
//! ```
//! ```compile_fail,E0599
//! # use verbmark::verbs::{Qp, Slice};
//! fn two(qp: Qp, memory: Slice) {
//!     let one = qp.receiver(memory);
//!     let _two = (one.clone(), one);
//! }
//! ```
//!
//! # Registered memory belongs to its registration
//! ```
//! # use verbmark::verbs::{Access, Pd, Region};
//! fn register(pd: Pd, region: Region) {
//!     let mr = pd.register(region, Access::default()).unwrap();
//!     drop(mr);
//! }
//! ```
//! ```compile_fail,E0382
//! # use verbmark::verbs::{Access, Pd, Region};
//! fn register(pd: Pd, region: Region) {
//!     let mr = pd.register(region, Access::default()).unwrap();
//!     drop(region);
//! }
//! ```
//! Nobody looks at it once that has ended.
//! ```
//! # use verbmark::verbs::Mr;
//! fn look(mr: Mr) -> u8 {
//!     let region = mr.region();
//!     let seen = region.load_acquire(0);
//!     drop(mr);
//!     seen
//! }
//! ```
//! ```compile_fail,E0505
//! # use verbmark::verbs::Mr;
//! fn look(mr: Mr) -> u8 {
//!     let region = mr.region();
//!     drop(mr);
//!     region.load_acquire(0)
//! }
//! ```
//!
//! # No reference into memory that a device may write
//! ```
//! # use verbmark::verbs::Mr;
//! fn copy(mr: &Mr) -> [u8; 8] {
//!     let mut bytes = [0; 8];
//!     mr.region().read(0, &mut bytes);
//!     bytes
//! }
//! ```
//! ```compile_fail,E0608
//! # use verbmark::verbs::Mr;
//! fn refer(mr: &Mr) -> &[u8] {
//!     &mr.region()[..8]
//! }
//! ```
//!
//! # A part of memory is within it
//! Its bounds were checked where it was made.
//! ```
//! # use verbmark::verbs::{Mr, Slice};
//! fn part(mr: Mr) -> Slice {
//!     mr.slice(0, 1 << 20)
//! }
//! ```
//! ```compile_fail
//! # use verbmark::verbs::{Mr, Slice};
//! fn part(mr: Mr) -> Slice {
//!     Slice { mr, offset: 0, len: 1 << 20 }
//! }
//! ```
//!
//! # A descriptor is not used after what it belongs to
//! ```
//! # use std::os::fd::{AsFd, AsRawFd};
//! # use verbmark::verbs::Channel;
//! fn wait(channel: Channel) {
//!     let descriptor = channel.as_fd();
//!     println!("{}", descriptor.as_raw_fd());
//!     drop(channel);
//! }
//! ```
//! ```compile_fail,E0505
//! # use std::os::fd::{AsFd, AsRawFd};
//! # use verbmark::verbs::Channel;
//! fn wait(channel: Channel) {
//!     let descriptor = channel.as_fd();
//!     drop(channel);
//!     println!("{}", descriptor.as_raw_fd());
//! }
//! ```
//! ```
//! # use std::os::fd::AsRawFd;
//! # use verbmark::verbs::Context;
//! fn wait(context: Context) {
//!     let descriptor = context.async_fd();
//!     println!("{}", descriptor.as_raw_fd());
//!     drop(context);
//! }
//! ```
//! ```compile_fail,E0505
//! # use std::os::fd::AsRawFd;
//! # use verbmark::verbs::Context;
//! fn wait(context: Context) {
//!     let descriptor = context.async_fd();
//!     drop(context);
//!     println!("{}", descriptor.as_raw_fd());
//! }
//! ```
//!
//! # A queue pair's completion queues are there when it is made
//! And stay, since it holds them.
//! ```
//! # use verbmark::verbs::{Cq, Pd, Qp, QpInit, Transport};
//! fn make(pd: Pd, cq: Cq) -> Qp {
//!     let init = QpInit::new(&cq, &cq);
//!     let qp = pd.create_qp(Transport::Rc, &init).unwrap();
//!     drop(cq);
//!     qp
//! }
//! ```
//! ```compile_fail,E0505
//! # use verbmark::verbs::{Cq, Pd, Qp, QpInit, Transport};
//! fn make(pd: Pd, cq: Cq) -> Qp {
//!     let init = QpInit::new(&cq, &cq);
//!     drop(cq);
//!     pd.create_qp(Transport::Rc, &init).unwrap()
//! }
//! ```
//!
//! # Completions are a device's word
//! Nobody else makes them up, and none changes while it is looked at.
//! ```
//! # use verbmark::verbs::{Cq, Wc, WcStatus};
//! fn first(cq: &Cq) -> WcStatus {
//!     let mut room = [Wc::EMPTY; 4];
//!     cq.poll(&mut room).unwrap();
//!     let first = &room[0];
//!     if first.id() == 7 { first.status() } else { WcStatus::SUCCESS }
//! }
//! ```
//! ```compile_fail,E0502
//! # use verbmark::verbs::{Cq, Wc, WcStatus};
//! fn first(cq: &Cq) -> WcStatus {
//!     let mut room = [Wc::EMPTY; 4];
//!     let first = &room[0];
//!     cq.poll(&mut room).unwrap();
//!     if first.id() == 7 { first.status() } else { WcStatus::SUCCESS }
//! }
//! ```
//! ```compile_fail,E0451
//! # use verbmark::verbs::Wc;
//! fn made_up() -> Wc {
//!     Wc { wr_id: 7, ..Wc::EMPTY }
//! }
//! ```
//! ```compile_fail,E0423
//! # use verbmark::verbs::WcStatus;
//! fn made_up() -> WcStatus {
//!     WcStatus(0)
//! }
//! ```
//!
//! # What is unsafe stays inside
//! ```
//! # use verbmark::verbs::Cq;
//! fn look(cq: &Cq) -> u32 {
//!     cq.depth()
//! }
//! ```
//! ```compile_fail,E0624
//! # use verbmark::verbs::Cq;
//! fn look(cq: &Cq) {
//!     cq.raw();
//! }
//! ```
//! ```
//! use verbmark::verbs::ProviderKind;
//! ```
//! ```compile_fail,E0603
//! use verbmark::verbs::provider::Provider;
//! ```
