//! `verbmark explain`: what zero copy and kernel bypass gain over TCP between two ends, and what they cost, in about a
//! minute: runs of the suite's own tests, what follows from them, and claims that stand on a number or are withheld.

use std::io::Write;
use std::sync::atomic::AtomicBool;

use super::audit::{self, Request};
use super::sibling;
use crate::cli::tool::ExplainArgs;
use crate::error::{Error, Kind, Result, Step};
use crate::report::{Target, files};
use crate::suite;

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
    let target = args.json.as_deref().map(Target::from);
    if let Some(target) = &target {
        target.check()?;
    }
    let story = Story::new(args)?;
    let explanation = tell(&story, suite::catch_signals()?);
    if target != Some(Target::Stdout) && !explanation.scenes.is_empty() {
        // Who closed the pipe has seen enough.
        let _ = std::io::stdout().write_all(render(&explanation, suite::width()).as_bytes());
    }
    if let Some(target) = &target {
        match target.write(to_json(&explanation)?.as_bytes()) {
            Err(error) if !files::reader_gone(&error) => return Err(error),
            _ => {}
        }
    }
    explanation.error.map_or(Ok(0), Err)
}

/// Runs the whole story. What went wrong is in the explanation, beside what was measured before; `signalled` ends it.
pub fn tell(story: &Story, signalled: &AtomicBool) -> Explanation {
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
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
        let program = sibling::beside_us(scene.binary)?;
        let document = sibling::measure(&program, &scene.words, story.timeout, signalled)?;
        explanation.scenes.push(Scene { name: scene.name.into(), document });
    }
    for (index, audited) in story.audits.iter().enumerate() {
        let number = story.scenes.len() + index + 1;
        say(&format!("{number} of {}: {}", story.scenes.len() + story.audits.len(), audited.what));
        let audit = audit::run_traced(&Request::new(&audited.words, story.timeout)?, signalled);
        match &audit.error {
            Some(error) if error.kind == Kind::Interrupted => return Err(error.clone()),
            // The story stands without it; what it would have shown is withheld.
            Some(error) => explanation.miss("audits", &error.message),
            None => explanation.audits.push(audit),
        }
    }
    Ok(())
}

fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn to_json(explanation: &Explanation) -> Result<String> {
    serde_json::to_string_pretty(explanation)
        .map(|text| text + "\n")
        .map_err(|error| Error::failed(Step::Output, format!("cannot write JSON: {error}")))
}
