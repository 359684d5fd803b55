// SPDX-License-Identifier: Apache-2.0
//! Resources: reference texts for the assistant.

use crate::error::ToolError;
use crate::text::{NOTICE, clean};
use crate::tools::{Asked, Finding};
use gpuwhy_ask::Part;
use gpuwhy_why::Kind;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents};
use std::fmt::Write;

/// Common questions as SQL; a test runs each query.
const QUERIES: &str = include_str!("../../../../docs/sql.md");

/// A resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Schema,
    Queries,
    Glossary,
    Findings,
}

impl Known {
    const ALL: [Self; 4] = [Self::Schema, Self::Queries, Self::Glossary, Self::Findings];

    fn uri(self) -> &'static str {
        match self {
            Self::Schema => "gpuwhy://schema",
            Self::Queries => "gpuwhy://queries",
            Self::Glossary => "gpuwhy://glossary",
            Self::Findings => "gpuwhy://findings",
        }
    }

    fn describe(self) -> Resource {
        let (name, title, what, mime) = match self {
            Self::Schema => {
                ("schema", "SQL schema", "Views, columns and SQL functions of the run file, for run_sql", "text/plain")
            }
            Self::Queries => {
                ("queries", "Ready-made queries", "SQL for common questions about a run, for run_sql", "text/markdown")
            }
            Self::Glossary => {
                ("glossary", "Glossary", "The meaning of each kind of finding, and of gpuwhy's terms", "text/plain")
            }
            Self::Findings => ("findings", "Findings", "All findings of the served run", "application/json"),
        };
        Resource::new(self.uri(), name).with_title(title).with_description(what).with_mime_type(mime)
    }

    pub(super) fn read(self, asked: &Asked<'_>) -> Result<ReadResourceResult, ToolError> {
        let (text, mime) = match self {
            Self::Schema => (schema_text(asked)?, "text/plain"),
            Self::Queries => (QUERIES.to_owned(), "text/markdown"),
            Self::Glossary => (glossary(), "text/plain"),
            Self::Findings => (findings(asked)?, "application/json"),
        };
        Ok(ReadResourceResult::new(vec![ResourceContents::text(text, self.uri()).with_mime_type(mime)]))
    }
}

pub(super) fn list() -> Vec<Resource> {
    Known::ALL.into_iter().map(Known::describe).collect()
}

pub(super) fn find(uri: &str) -> Option<Known> {
    Known::ALL.into_iter().find(|known| known.uri() == uri)
}

/// One line per view.
fn schema_text(asked: &Asked<'_>) -> Result<String, ToolError> {
    let run = asked.runs.get(None)?;
    let lines = gpuwhy_ask::schema::lines(&*run.reader(asked.work)?)?;
    Ok(format!(
        "Times are integer nanoseconds from the start of the run, sizes are bytes. Count with SUM(weight): a row may represent several events.\n\
         Filtering events, off_cpu and allocations by timestamp is fast. seconds has exact sums per second.\n\n{}\n",
        lines.join("\n")
    ))
}

fn glossary() -> String {
    let mut text = String::from(
        "Kinds of findings (kind: what the launching thread waited for; root_cause: the end of the chain):\n",
    );
    for kind in Kind::ALL {
        let _ = writeln!(text, "{}: {}", kind.name(), kind.meaning());
    }
    text.push_str(
        "\nrun: one recording, one run file\nop: a traced function, by its short name\nledger: where a thread's time went, adding up to the whole\n\
         chain: who waited for whom, from the waiting thread to the cause\nlost: time or bytes a cause cost\n\
         loss: events gpuwhy failed to keep, counted by cause\nlive: allocated and not freed\nstuck: free but unusable\n\
         gpu_idle_min_ns, gpu_idle_max_ns: lower and upper bound of the time the GPU was idle\n\
         weight: how many events a row represents\n",
    );
    text
}

fn findings(asked: &Asked<'_>) -> Result<String, ToolError> {
    let explained = asked.runs.get(None)?.explained(&Part::default(), asked.work)?;
    let findings: Vec<Finding> = explained.report.findings.iter().map(|found| Finding::new(found, true)).collect();
    let document =
        serde_json::json!({ "note": NOTICE, "verdict": clean(&explained.report.verdict, 500), "findings": findings });
    serde_json::to_string_pretty(&document).map_err(|wrong| ToolError::Fault(wrong.to_string()))
}
