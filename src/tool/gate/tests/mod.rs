//! All outputs of a gate beside each other: the text of a terminal and those for programs.

mod every_kind;
