// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy stacks`: which lines made calls, waited or ran.

use crate::cli::{Stacks, StacksBy, StacksSort};
use crate::output;
use clap::ValueEnum;
use gpuwhy_model::units;
use gpuwhy_store::{
    GroupKey, Limits, PartSums, Reader, StackAnswer, StackFrame, StackGroup, StackKey, StackQuestion, StackSort,
    StackSums, StackUnit,
};
use gpuwhy_view::StacksReport;
use gpuwhy_view::stacks_view::{CountedUnit, FrameView, GroupView, MoreGroups, OpView, ProcessView, WaitView};
use std::cmp::Reverse;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

pub(crate) fn run(args: &Stacks) -> anyhow::Result<ExitCode> {
    let reader = output::open(args.of.run.path())?;
    let answer = reader.stacks(&question(args, &reader)?)?;
    let lost = reader.events_lost(answer.span.0.unwrap_or(0), answer.span.1)?;
    let report = report(answer, args, lost);
    if args.json {
        let mut out = BufWriter::new(std::io::stdout().lock());
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        out.flush()?;
    } else {
        output::show(report.lines(args.full, output::stdout_style()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn question(args: &Stacks, reader: &Reader) -> anyhow::Result<StackQuestion> {
    let part = args.of.part();
    let span = part.stack_span(reader.session()?.duration_ns)?;
    Ok(StackQuestion {
        op: args.op.clone(),
        pids: part.pids,
        by: match args.by {
            StacksBy::Stack => StackKey::Stack,
            StacksBy::Line => StackKey::Line,
            StacksBy::Function => StackKey::Function,
            StacksBy::Library => StackKey::Library,
        },
        sort: match args.sort {
            StacksSort::Total => StackSort::Total,
            StacksSort::Calls => StackSort::Calls,
            StacksSort::Max => StackSort::Max,
            StacksSort::Bytes => StackSort::Bytes,
        },
        span,
        limits: Limits { time: args.timeout, ..Limits::default() },
    })
}

fn report(answer: StackAnswer, args: &Stacks, lost: u64) -> StacksReport {
    let without = answer.without_stack.as_ref().map_or(0, |group| group.sums.calls);
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let rest = answer.groups.get(limit..).unwrap_or_default();
    let none = "this run has no Python stacks: it was recorded with --no-stack, or the job ran no Python";
    let events = match lost {
        1 => "1 event was lost and is".to_owned(),
        n => format!("{} events were lost and are", units::count(n)),
    };
    let lossy = format!("{events} not counted here");
    let notes = [(!answer.file_has_stacks).then_some(none), (lost > 0).then_some(lossy.as_str())];
    let notes: Vec<&str> = notes.into_iter().flatten().collect();
    StacksReport {
        schema: "gpuwhy.stacks/1",
        run: args.of.run.path().display().to_string(),
        by: word(args.by),
        sort: word(args.sort),
        unit: match answer.unit {
            StackUnit::Call => CountedUnit::Calls,
            StackUnit::Sample => CountedUnit::Samples,
            StackUnit::OffCpu => CountedUnit::OffCpu,
            StackUnit::Event => CountedUnit::Events,
        },
        from_ns: answer.span.0,
        to_ns: answer.span.1,
        calls: answer.all.calls,
        total_ns: answer.all.total_ns,
        with_stack: answer.all.calls.saturating_sub(without),
        note: (!notes.is_empty()).then(|| notes.join("; ")),
        more: MoreGroups { groups: rest.len(), calls: rest.iter().map(|group| group.sums.calls).sum() },
        op: answer.op,
        without_stack: answer.without_stack.map(group),
        groups: answer.groups.into_iter().take(limit).map(group).collect(),
    }
}

/// A choice as written on the command line.
fn word(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn group(group: StackGroup) -> GroupView {
    let name = group.name();
    let sums = group.sums;
    let frame = |frame: StackFrame| FrameView {
        file: frame.file,
        line: frame.line,
        function: frame.function,
        yours: frame.yours,
    };
    GroupView {
        name,
        calls: sums.calls,
        total_ns: sums.total_ns,
        avg_ns: sums.total_ns.checked_div(sums.calls).unwrap_or(0),
        max_ns: sums.max_ns,
        bytes: sums.bytes,
        pids: group.processes.into_iter().map(|(pid, name)| ProcessView { pid, name }).collect(),
        ops: ops(&sums),
        waits: waits(&sums),
        stack_id: if let GroupKey::Stack { stack_id, .. } = group.key { Some(stack_id) } else { None },
        stacks: group.stacks,
        top_line: group.top_line,
        frames: group.frames.into_iter().map(frame).collect(),
    }
}

/// The ops of a group, most time first.
fn ops(sums: &StackSums) -> Vec<OpView> {
    let view = |(op, part): (&String, &PartSums)| OpView { op: op.clone(), calls: part.times, total_ns: part.total_ns };
    let mut ops: Vec<OpView> = sums.ops.iter().map(view).collect();
    ops.sort_by_key(|op| Reverse((op.total_ns, op.calls)));
    ops
}

/// Why threads were off the CPU, most time first.
fn waits(sums: &StackSums) -> Vec<WaitView> {
    let mut waits: Vec<WaitView> = sums
        .waits
        .iter()
        .map(|((reason, wait), part)| WaitView {
            reason: reason.clone(),
            wait: wait.clone(),
            times: part.times,
            total_ns: part.total_ns,
        })
        .collect();
    waits.sort_by_key(|wait| Reverse((wait.total_ns, wait.times)));
    waits
}
