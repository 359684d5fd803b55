// SPDX-License-Identifier: Apache-2.0
//! The tools: one file per tool, with arguments and answer as types, from which the schemas are generated.

mod chains;
mod check;
mod compare;
mod memory;
mod page;
mod place;
mod profile;
mod runs;
mod schema;
mod sql;
mod stacks;
mod stats;
mod timeline;

use crate::error::ToolError;
use crate::runs::Runs;
use crate::work::Work;
use page::Answer;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

pub(crate) use chains::Finding;

/// The context of a tool call.
pub(crate) struct Asked<'a> {
    /// The run files.
    pub(crate) runs: &'a Runs,
    /// This question.
    pub(crate) work: &'a Work,
    /// What `gpuwhy check` finds.
    pub(crate) check: &'a (dyn Fn() -> Vec<crate::Need> + Send + Sync),
}

type Call = dyn Fn(&Asked<'_>, JsonObject) -> Result<Value, ToolError> + Send + Sync;

/// A tool: its description and its function.
#[derive(Clone)]
pub(crate) struct ToolEntry {
    pub(crate) tool: Tool,
    call: Arc<Call>,
}

impl ToolEntry {
    /// Calls it.
    pub(crate) fn call(&self, asked: &Asked<'_>, arguments: JsonObject) -> Result<Value, ToolError> {
        self.check_names(&arguments)?;
        (self.call)(asked, arguments)
    }

    /// An unknown argument is an error: ignoring it would answer a different question.
    fn check_names(&self, arguments: &JsonObject) -> Result<(), ToolError> {
        // A tool without arguments has no list of them.
        let known = self.tool.input_schema.get("properties").and_then(Value::as_object);
        let is_known = |name: &str| known.is_some_and(|known| known.contains_key(name));
        match arguments.keys().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(wrong) => {
                let known: Vec<&str> = known.into_iter().flat_map(|known| known.keys()).map(String::as_str).collect();
                let wrong = crate::text::clean(wrong, 40);
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(ToolError::Arguments(format!("unknown argument {wrong:?}; {} takes {known}", self.tool.name)))
            }
        }
    }
}

/// Makes a tool from a function.
fn tool<A, R>(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    answer: fn(&Asked<'_>, A) -> Result<R, ToolError>,
) -> ToolEntry
where
    A: DeserializeOwned + JsonSchema + 'static,
    R: Answer + JsonSchema + 'static,
{
    let read_only = ToolAnnotations::new().read_only(true).open_world(false);
    let tool = Tool::new(name, description, JsonObject::new()).with_title(title).annotate(read_only);
    let mut tool = tool.with_input_schema::<A>().with_output_schema::<R>();
    tool.input_schema = Arc::new(schema::of_arguments(&tool.input_schema));
    tool.output_schema = tool.output_schema.as_deref().map(schema::of_answer).map(Arc::new);
    let arguments = Arc::clone(&tool.input_schema);
    let call = move |asked: &Asked<'_>, given: JsonObject| {
        let given = schema::as_typed(name, &arguments, given)?;
        let bytes = page::budget(&given);
        let read: A = serde_json::from_value(Value::Object(given)).map_err(|wrong| {
            ToolError::Arguments(format!("{name}: {}", crate::text::clean(&wrong.to_string(), 300)))
        })?;
        page::fit(answer(asked, read)?, bytes)
    };
    ToolEntry { tool, call: Arc::new(call) }
}

/// All tools, in the recommended order of use.
pub(crate) fn all() -> Vec<ToolEntry> {
    vec![
        tool(
            "get_trace_stats",
            "The run in figures",
            "Start here. What was recorded (command, GPU, length, whether it still runs), the verdict, per CUDA op the count, p50, p95, \
             p99, max and bytes, the processes, and lost events. Durations are in nanoseconds.",
            stats::answer,
        ),
        tool(
            "get_causal_chains",
            "Why it is slow",
            "The causes found, worst first: what the GPU waited for, who waited for whom down to the root cause, the line of code, \
             the cost (lost_ns, lost_bytes), and fixes with the most each can save (saves_ns, saves_bytes). detail=true adds all \
             fixes, whole chains and SQL evidence.",
            chains::answer,
        ),
        tool(
            "get_stacks",
            "Which lines",
            "Which lines of Python made the calls of an op, waited (op=sched_switch) or used the CPU (op=cpu_sample). Without op: all \
             CUDA calls.",
            stacks::answer,
        ),
        tool(
            "get_timeline",
            "When",
            "The run in equal time buckets: launches, calls, time waiting for the GPU, bytes moved, GPU utilization, time threads were \
             blocked or ready without a CPU. With at: what happened around that time, the longest calls and waits with their \
             lines, who held the CPUs, which processes started and ended.",
            timeline::answer,
        ),
        tool(
            "get_memory",
            "GPU memory",
            "GPU memory by process and device: in use, reserved, exact peak and the lines that held it, leaks by line with MB per step \
             and when memory runs out, out-of-memory records.",
            memory::answer,
        ),
        tool(
            "compare_runs",
            "Compare two runs",
            "What improved and what got worse between two run files: findings gone and new, launch rate, time per op.",
            compare::answer,
        ),
        tool(
            "get_profile",
            "PyTorch's own files",
            "Analyses torch.profiler traces (.json, .json.gz) and CUDA memory snapshots (.pickle, never executed) in the folders this \
             server may read: findings with lines and fixes.",
            profile::answer,
        ),
        tool(
            "list_runs",
            "Available runs",
            "The run files in the folders this server may read, newest first.",
            runs::answer,
        ),
        tool(
            "run_sql",
            "Query with SQL",
            "One read-only SELECT on the run's views (resource gpuwhy://schema lists them, gpuwhy://queries has examples). Extra \
             functions: p50(x), p95(x), p99(x), quantile(x, q), human_time(ns), human_bytes(n).",
            sql::answer,
        ),
        tool(
            "get_check",
            "Can this machine be traced?",
            "What tracing needs on this machine, what is missing, and how to fix it.",
            check::answer,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_documented_and_has_schemas() {
        let text = include_str!("../../../../docs/mcp.md");
        let told: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        let tools = all();
        let names: Vec<&str> = tools.iter().map(|entry| entry.tool.name.as_ref()).collect();
        assert_eq!(told, names, "docs/mcp.md has the tools in this order");
        for entry in &tools {
            let described = |schema: &JsonObject| schema.get("type").is_some_and(|kind| kind == "object");
            assert!(described(&entry.tool.input_schema), "{}", entry.tool.name);
            assert!(entry.tool.output_schema.as_deref().is_some_and(described), "{}", entry.tool.name);
            let hints = entry.tool.annotations.as_ref().unwrap();
            assert_eq!((hints.read_only_hint, hints.open_world_hint), (Some(true), Some(false)));
        }
    }
}
