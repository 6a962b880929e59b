//! verbmark: RDMA and TCP measured over the same path in one run.
//!
//! Data flows one way: typed options, plan, session, loop, result, report. A module may use those named behind it,
//! and `error` and `units`, which all may use; `tests/behaviour/layout.rs` holds it to that.
//!
//! | module | what it owns | uses |
//! |---|---|---|
//! | [`cli`] | what was typed | |
//! | [`plan`] | what was decided | cli, ops, measure |
//! | [`ops`] | what each verb is | |
//! | [`measure`] | the loops, their clock and histogram | sys |
//! | [`transport`] | the RDMA and the TCP path | verbs, ops, measure, plan, host, sys |
//! | [`verbs`] | libibverbs and the emulated device; unsafe | |
//! | [`sys`] | machine instructions and system calls; unsafe | |
//! | [`oob`] | the control connection | plan, ops, result |
//! | [`host`] | facts of the machine | sys |
//! | [`result`] | the result document | plan, host, measure |
//! | [`session`] | client, server, loopback | all of these |
//! | [`gate`] | limits; whether runs differ, and how sure that is | result |
//! | [`report`] | table, JSON, CSV, interval log | result |
//! | [`suite`] | what every test binary does | session, report, gate |
//! | [`registration`] | what registering memory costs: `reg_mr_lat`, from its options to its table | all but ops, oob, session |
//! | [`tool`] | what `verbmark` does besides | all of these but transport |

pub mod cli;
pub mod error;
pub mod gate;
pub mod host;
pub mod measure;
pub mod oob;
pub mod ops;
pub mod plan;
pub mod registration;
pub mod report;
pub mod result;
pub mod session;
pub mod suite;
pub mod sys;
pub mod tool;
pub mod transport;
pub mod units;
pub mod verbs;
