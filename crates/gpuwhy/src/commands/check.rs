// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy check`: what tracing needs, whether it is there, and the fix.

use crate::cli::Check;
use crate::output;
use gpuwhy_capture::needs::{self, Need, Status};
use std::process::ExitCode;

pub(crate) fn run(args: &Check) -> anyhow::Result<ExitCode> {
    let needs = needs::look(!args.json && output::is_verbose());
    if args.json {
        println!("{}", serde_json::to_string_pretty(&needs.iter().map(json).collect::<Vec<_>>())?);
    } else {
        print(&needs);
    }
    let missing = needs.iter().any(|need| need.status == Status::Missing);
    Ok(ExitCode::from(u8::from(missing)))
}

fn json(need: &Need) -> serde_json::Value {
    let status = need.status.name();
    serde_json::json!({ "name": need.name, "status": status, "found": need.found, "fix": need.fix })
}

fn print(needs: &[Need]) {
    let style = output::stdout_style();
    for need in needs {
        let mark = match need.status {
            Status::Ok => style.green("ok     "),
            Status::Optional => style.yellow("absent "),
            Status::Missing => style.red("missing"),
        };
        output::show_hanging(&format!("{mark}  {:<15} {}", need.name, need.found), 25);
        if let Some(fix) = &need.fix {
            output::show_hanging(&format!("         {:<15} fix: {fix}", ""), 25);
        }
        output::details(need.details.iter().cloned());
    }
    let verdict = if needs.iter().any(|need| need.status == Status::Missing) {
        style.red("This machine cannot be traced: fix what is missing above.")
    } else {
        style.green("Ready to trace.")
    };
    println!("\n{verdict}");
}
