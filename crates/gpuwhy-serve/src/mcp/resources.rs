// SPDX-License-Identifier: Apache-2.0
//! Resources: what an assistant reads once, beside asking.

use crate::error::ToolError;
use crate::text::{NOTICE, clean};
use crate::tools::{Asked, Finding};
use gpuwhy_ask::Part;
use gpuwhy_store::{Limits, Value, schema};
use gpuwhy_why::Kind;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents};
use std::fmt::Write;
use std::ops::ControlFlow;

/// A resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Schema,
    Glossary,
    Findings,
}

impl Known {
    const ALL: [Self; 3] = [Self::Schema, Self::Glossary, Self::Findings];

    fn uri(self) -> &'static str {
        match self {
            Self::Schema => "gpuwhy://schema",
            Self::Glossary => "gpuwhy://glossary",
            Self::Findings => "gpuwhy://findings",
        }
    }

    fn describe(self) -> Resource {
        let (name, title, what, mime) = match self {
            Self::Schema => ("schema", "SQL schema", "Views and columns of the run file, for run_sql", "text/plain"),
            Self::Glossary => {
                ("glossary", "Glossary", "What the kinds of findings mean, and gpuwhy's other words", "text/plain")
            }
            Self::Findings => ("findings", "Findings", "All findings of the run that is served", "application/json"),
        };
        Resource::new(self.uri(), name).with_title(title).with_description(what).with_mime_type(mime)
    }

    pub(super) fn read(self, asked: &Asked<'_>) -> Result<ReadResourceResult, ToolError> {
        let (text, mime) = match self {
            Self::Schema => (schema_text(asked)?, "text/plain"),
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

/// One line a view.
fn schema_text(asked: &Asked<'_>) -> Result<String, ToolError> {
    let run = asked.runs.get(None)?;
    let reader = run.reader(asked.work)?;
    let mut text = String::from(
        "Times are integer nanoseconds since the run began, sizes bytes. Count with SUM(weight): a row may stand for several.\n\
         A range of timestamp is cheap in events, off_cpu and allocations; seconds has exact sums of every second.\n\n",
    );
    for view in schema::VIEWS {
        let mut columns = Vec::new();
        reader.query(&format!("PRAGMA table_info({view})"), &Limits::default(), |_, row| {
            if let Some(Value::Text(name)) = row.get(1) {
                columns.push(clean(name, 60));
            }
            ControlFlow::Continue(())
        })?;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{view}({})", columns.join(", "));
    }
    Ok(text)
}

fn glossary() -> String {
    let mut text = String::from(
        "Kinds of findings (kind: what the launching thread waited for; root_cause: what stood at the chain's end):\n",
    );
    for kind in Kind::ALL {
        let _ = writeln!(text, "{}: {}", kind.name(), kind.meaning());
    }
    text.push_str(
        "\nrun: one recording, one file\nop: a traced function by its short name\nledger: where a thread's time went; it adds up\n\
         chain: who waited for whom, from the one who waited to the one at fault\nlost: time or bytes a cause cost\n\
         loss: events gpuwhy failed to keep, counted by cause\nlive: allocated and not freed\nstuck: free but unusable\n\
         gpu_idle_min_ns, gpu_idle_max_ns: the GPU had no work for at least and at most so long\n\
         weight: how many events a row stands for\n",
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
