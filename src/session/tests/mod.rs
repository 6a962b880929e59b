//! Sessions with an end that does not keep to the rules.

mod rogue;
