//! `verbmark explain`: what zero copy and kernel bypass gain over TCP between two ends, and what they cost, in about a
//! minute: runs of the suite's own tests, what follows from them, and claims that stand on a number or are withheld.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::AtomicBool;

use super::audit::{self, Request};
use super::sibling::{self, Invocation};
use crate::cli::tool::ExplainArgs;
use crate::error::{Kind, Result};
use crate::suite;
use crate::tool::output::Output;

mod claims;
mod record;
mod slope;
mod story;
mod table;

pub use claims::{Claim, Verdict, claims};
pub use record::{Explanation, SCHEMA, Scene};
pub use slope::{Slope, slopes};
pub use story::Story;
pub use table::render;

/// Explains, and gives the exit status.
///
/// # Errors
/// The options are no use, a run failed, or the document could not be written.
pub fn run(args: &ExplainArgs) -> Result<u8> {
    let output = Output::open(args.json.as_deref())?;
    let story = Story::new(args)?;
    let explanation = tell(&story, suite::catch_signals()?);
    if !explanation.scenes.is_empty() {
        output.show(|| render(&explanation, suite::width()));
    }
    output.write(&explanation)?;
    explanation.error.map_or(Ok(0), Err)
}

/// Runs the whole story. What went wrong is in the explanation, beside what was measured before; `signalled` ends it.
pub fn tell(story: &Story, signalled: &AtomicBool) -> Explanation {
    let command = suite::command_line();
    let mut explanation = Explanation::new(command);
    if let Err(error) = act(story, &mut explanation, signalled) {
        explanation.fail(error);
    }
    explanation.conclude();
    explanation
}

fn act(story: &Story, explanation: &mut Explanation, signalled: &AtomicBool) -> Result<()> {
    for (index, scene) in story.scenes.iter().enumerate() {
        say(&format!("{} of {}: {}", index + 1, story.scenes.len() + story.audits.len(), scene.what));
        let invocation = Invocation {
            program: sibling::beside_us(scene.binary)?,
            environment: BTreeMap::new(),
            words: scene.words.clone(),
        };
        let measured = sibling::measure(&invocation, story.timeout, signalled, |_| false)?;
        explanation.scenes.push(Scene { name: scene.name.into(), document: measured.document });
    }
    for (index, audited) in story.audits.iter().enumerate() {
        let number = story.scenes.len() + index + 1;
        say(&format!("{number} of {}: {}", story.scenes.len() + story.audits.len(), audited.what));
        let audit = audit::run_traced(&Request::new(&audited.words, story.timeout)?, signalled);
        match &audit.error {
            Some(error) if error.kind == Kind::Interrupted => return Err(error.clone()),
            // The story stands without it; what it would have shown is withheld.
            Some(error) => {
                let remedy = error.remedy.as_ref().map(|remedy| format!("; try: {remedy}"));
                explanation.miss("audits", &format!("{}{}", error.message, remedy.unwrap_or_default()));
            }
            None => explanation.audits.push(audit),
        }
    }
    Ok(())
}

fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
