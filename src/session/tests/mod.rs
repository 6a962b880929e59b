//! Sessions with an end that does not keep to the rules.

mod doorway;
mod rogue;

use std::sync::Mutex;

use super::Observer;
use crate::result::Document;

/// What a server said.
#[derive(Default)]
pub(super) struct Ears(pub(super) Mutex<Vec<String>>);

impl Observer for Ears {
    fn say(&self, line: &str) {
        self.0.lock().unwrap().push(line.into());
    }

    fn explain(&self, _: &str) {}
    fn connected(&self, _: &Document) {}
    fn measuring(&self, _: &str, _: usize, _: usize) {}
    fn measured(&self, _: &Document) {}
}
