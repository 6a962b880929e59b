//! What a user types and sees, through the binaries, and what the library promises to them: one test executable, since
//! each costs a build and a link.

mod atomics;
mod audit;
mod bidirectional;
mod coming_from_perftest;
mod compare_wait;
mod cpu_report;
mod devices;
mod documents;
mod emulated_faults;
mod explain;
mod layout;
mod limited_by;
mod loopback;
mod manual;
mod open_loop;
mod peer_dies;
mod product;
mod queue_shapes;
mod registration;
mod report_again;
mod report_files;
mod report_hlog;
mod report_properties;
mod report_table;
mod result_schema;
mod results;
mod schema;
mod serve;
mod suite;
mod tcp_options;
mod threads;
mod two_processes;
mod uncertainty;
mod unreliable;
mod usage;
