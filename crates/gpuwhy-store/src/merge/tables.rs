// SPDX-License-Identifier: Apache-2.0
//! Which tables are copied, and what becomes of each of their columns.

/// What a column holds, and so what a merge makes of it. Anything may be NULL that its table allows to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An integer that means the same in every run; a stack's id, which is a hash, too.
    Int,
    /// An integer or a fraction.
    Real,
    Text(Says),
    Histogram,
    /// Nanoseconds since the run began.
    Time,
    /// The same, where the largest is never.
    Until,
    /// Whole seconds since the run began.
    Second,
    /// A process or a thread; 0 is nobody.
    Pid,
    /// The same as NVML says it, which may be a number that no process has.
    AnyPid,
    Cpu,
    /// Two CPUs in one number, as `off_.cpus` has them.
    Cpus,
    Gpu,
    /// A row of `op_`; -1 is none.
    Op,
    /// A row of `cause_`.
    Cause,
    /// Of which run a row is that names nothing else.
    Input,
    /// A row of a table that is copied, too.
    Id(Ids),
    /// A cgroup's path, which is another in every run.
    CgroupPath,
}

impl Kind {
    /// What a text of this kind says.
    pub(crate) fn says(self) -> Option<Says> {
        match self {
            Self::Text(says) => Some(says),
            Self::CgroupPath => Some(Says::Identity),
            _ => None,
        }
    }
}

/// What a text says, and so what becomes of it in a copy for others (`share`). A merge leaves it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    /// A word of gpuwhy's or the kernel's own, a version, a model of hardware: stays.
    Word,
    /// A name of a function or a kernel: stays.
    Name,
    /// Numbers as JSON: stays, if that is all it is.
    Figures,
    /// A sentence of gpuwhy's: the paths in it lose their folders.
    Sentence,
    /// A process or a thread: its program's own name stays.
    Program,
    /// A command line: as a program; what follows goes.
    Command,
    /// A file: its folders go, but for those of an installed package.
    Path,
    /// A line of code, `/home/me/train.py:74 step`: as a file.
    Line,
    /// Several of them.
    Frames,
    /// What tells one container, cgroup or GPU from another: a number takes its place.
    Identity,
    /// What was typed in: goes.
    Flags,
    /// A line of source: goes, unless it is asked for.
    Source,
}

/// Tables whose rows others refer to by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    Context,
    OffContext,
    Waker,
    Runner,
    Cgroup,
}

impl Ids {
    pub(crate) const ALL: [Self; 5] = [Self::Context, Self::OffContext, Self::Waker, Self::Runner, Self::Cgroup];

    pub(crate) fn table(self) -> &'static str {
        match self {
            Self::Context => "context_",
            Self::OffContext => "off_context_",
            Self::Waker => "waker_",
            Self::Runner => "runner_",
            Self::Cgroup => "cgroup_",
        }
    }
}

/// A table and its columns.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The first version that has it.
    pub(crate) since: i32,
    pub(crate) columns: &'static [(&'static str, Kind)],
    /// What to do about a row that is there already.
    pub(crate) conflict: &'static str,
}

use Kind::{
    AnyPid, Cause, CgroupPath, Cpu, Cpus, Gpu, Histogram, Id, Input, Int, Op, Pid, Real, Second, Text, Time, Until,
};
use Says::{Command, Figures, Flags, Frames, Identity, Line, Name, Path, Program, Sentence, Source, Word};

const fn table(name: &'static str, since: i32, columns: &'static [(&'static str, Kind)]) -> Table {
    Table { name, since, columns, conflict: "" }
}

/// Rows whose id is their time: those of all runs are put in one order. The time is the first column.
pub(crate) const EVENTS: [Table; 3] = [
    table(
        "call_",
        1,
        &[
            ("start", Time),
            ("duration", Int),
            ("context", Id(Ids::Context)),
            ("arg0", Int),
            ("arg1", Int),
            ("weight", Int),
        ],
    ),
    table(
        "off_",
        1,
        &[
            ("start", Time),
            ("duration", Int),
            ("ready", Int),
            ("context", Id(Ids::OffContext)),
            ("waker", Id(Ids::Waker)),
            ("cpus", Cpus),
            ("object", Int),
            ("timeout", Int),
            ("weight", Int),
        ],
    ),
    table(
        "tensor_",
        3,
        &[
            ("start", Time),
            ("context", Id(Ids::Context)),
            ("bytes", Int),
            ("address", Int),
            ("allocated", Int),
            ("reserved", Int),
        ],
    ),
];

/// Everything else but the run itself and its findings.
pub(crate) const TABLES: [Table; 29] = [
    // No process is in two runs; who was told of as process 0, which is nobody, is nobody in all.
    Table {
        name: "process_",
        since: 1,
        columns: &[
            ("pid", Pid),
            ("name", Text(Program)),
            ("started", Time),
            ("ended", Time),
            ("parent", Pid),
            ("container", Text(Identity)),
            ("command", Text(Command)),
            ("number", Int),
        ],
        conflict: "ON CONFLICT (pid) DO NOTHING",
    },
    table(
        "context_",
        1,
        &[
            ("id", Id(Ids::Context)),
            ("flags", Int),
            ("op", Op),
            ("pid", Pid),
            ("tid", Pid),
            ("device", Int),
            ("stream", Int),
            ("ret", Int),
            ("stack", Int),
        ],
    ),
    table(
        "off_context_",
        1,
        &[
            ("id", Id(Ids::OffContext)),
            ("pid", Pid),
            ("tid", Pid),
            ("reason", Text(Word)),
            ("wait", Text(Word)),
            ("syscall", Text(Word)),
            ("file", Text(Path)),
            ("io_wait", Int),
            ("unfinished", Int),
            ("stack", Int),
        ],
    ),
    // Nobody, id 0, is in every file.
    Table {
        name: "waker_",
        since: 1,
        columns: &[("id", Id(Ids::Waker)), ("woken_by", Text(Word)), ("pid", Pid), ("tid", Pid)],
        conflict: "ON CONFLICT (id) DO NOTHING",
    },
    table("runner_", 1, &[("id", Id(Ids::Runner)), ("pid", Pid), ("tid", Pid), ("name", Text(Program))]),
    table("cpu_run_", 1, &[("cpu", Cpu), ("start", Time), ("duration", Int), ("runner", Id(Ids::Runner))]),
    table("moved_wait_", 1, &[("tid", Pid), ("start", Time), ("duration", Int), ("pid", Pid), ("cpu", Cpu)]),
    table(
        "thread_",
        1,
        &[
            ("pid", Pid),
            ("tid", Pid),
            ("since", Time),
            ("at", Time),
            ("born", Time),
            ("name", Text(Program)),
            ("on_cpu_ns", Int),
            ("ready_ns", Int),
            ("blocked_ns", Int),
            ("throttled_ns", Int),
            ("switches", Int),
            ("page_allocations", Int),
            ("page_bytes", Int),
            ("ended", Int),
        ],
    ),
    table(
        "second_",
        1,
        &[
            ("second", Second),
            ("pid", Pid),
            ("op", Op),
            ("device", Int),
            ("calls", Int),
            ("errors", Int),
            ("total_ns", Int),
            ("max_ns", Int),
            ("bytes", Int),
            ("histogram", Histogram),
        ],
    ),
    Table {
        name: "loss_",
        since: 1,
        columns: &[("second", Second), ("cause", Cause), ("op", Op), ("count", Int)],
        conflict: "ON CONFLICT (second, cause, op) DO UPDATE SET count = count + excluded.count",
    },
    table(
        "library_",
        1,
        &[
            ("path", Text(Path)),
            ("library", Text(Word)),
            ("inode", Text(Identity)),
            ("functions", Int),
            ("attached_at", Time),
            ("note", Text(Sentence)),
        ],
    ),
    // The same stack has the same id in every run.
    Table {
        name: "stack_",
        since: 1,
        columns: &[("id", Int), ("frames", Text(Frames)), ("top_line", Text(Line))],
        conflict: "ON CONFLICT (id) DO NOTHING",
    },
    Table {
        name: "source_line_",
        since: 6,
        columns: &[("file", Text(Path)), ("line", Int), ("text", Text(Source)), ("around", Text(Source))],
        conflict: crate::source_lines::CONFLICT,
    },
    table(
        "system_second_",
        1,
        &[
            ("at", Time),
            ("span_ns", Int),
            ("user_ns", Int),
            ("system_ns", Int),
            ("iowait_ns", Int),
            ("idle_ns", Int),
            ("steal_ns", Int),
            ("cores", Int),
            ("load1", Real),
            ("runnable", Int),
            ("memory_total", Int),
            ("memory_available", Int),
            ("swap_used", Int),
            ("swap_in", Int),
            ("swap_out", Int),
            ("pressure_cpu_ns", Int),
            ("pressure_memory_some_ns", Int),
            ("pressure_memory_full_ns", Int),
            ("pressure_io_some_ns", Int),
            ("pressure_io_full_ns", Int),
            ("input", Input),
        ],
    ),
    table(
        "process_second_",
        1,
        &[
            ("at", Time),
            ("span_ns", Int),
            ("pid", Pid),
            ("user_ns", Int),
            ("system_ns", Int),
            ("resident", Int),
            ("anonymous", Int),
            ("swapped", Int),
            ("threads", Int),
            ("major_faults", Int),
            ("minor_faults", Int),
            ("read_bytes", Int),
            ("write_bytes", Int),
            ("page_allocations", Int),
            ("page_bytes", Int),
        ],
    ),
    table("cgroup_", 1, &[("id", Id(Ids::Cgroup)), ("path", CgroupPath), ("version", Int)]),
    table(
        "cgroup_second_",
        1,
        &[
            ("at", Time),
            ("cgroup", Id(Ids::Cgroup)),
            ("quota_ns", Int),
            ("period_ns", Int),
            ("periods", Int),
            ("throttled_periods", Int),
            ("throttled_ns", Int),
            ("usage_ns", Int),
            ("memory_used", Int),
            ("memory_limit", Int),
            ("oom_kills", Int),
        ],
    ),
    table("gpu_", 1, &[("gpu", Gpu), ("name", Text(Word)), ("uuid", Text(Identity)), ("bus", Text(Word))]),
    table(
        "gpu_second_",
        1,
        &[
            ("at", Time),
            ("gpu", Gpu),
            ("rate_percent", Int),
            ("memory_rate_percent", Int),
            ("memory_used", Int),
            ("memory_total", Int),
            ("sm_mhz", Int),
            ("memory_mhz", Int),
            ("power_mw", Int),
            ("temperature_c", Int),
            ("throttle_reasons", Int),
        ],
    ),
    table("gpu_busy_", 1, &[("at", Time), ("gpu", Gpu), ("percent", Int)]),
    table(
        "gpu_process_",
        1,
        &[("at", Time), ("gpu", Gpu), ("pid", AnyPid), ("bytes", Int), ("sm_percent", Int), ("name", Text(Program))],
    ),
    table("gpu_error_", 1, &[("at", Time), ("gpu", Gpu), ("xid", Int)]),
    table("ledger_", 2, &[("pid", Pid), ("tid", Pid), ("since", Time), ("state", Text(Word)), ("op", Op), ("ns", Int)]),
    table(
        "communicator_",
        3,
        &[
            ("at", Time),
            ("pid", Pid),
            ("tid", Pid),
            ("op", Op),
            ("device", Int),
            ("handle", Int),
            ("id", Int),
            ("ranks", Int),
            ("rank", Int),
            ("parent", Int),
            ("color", Int),
            ("key", Int),
        ],
    ),
    table(
        "transfer_",
        3,
        &[
            ("at", Time),
            ("duration", Int),
            ("context", Id(Ids::Context)),
            ("bytes", Int),
            ("communicator", Int),
            ("sequence", Int),
            ("peer", Int),
        ],
    ),
    table("function_", 3, &[("pid", Pid), ("handle", Int), ("at", Time), ("name", Text(Name))]),
    table(
        "unwatched_",
        3,
        &[("pid", Pid), ("library", Text(Word)), ("path", Text(Path)), ("from_ns", Time), ("to_ns", Until)],
    ),
    table(
        "governor_",
        3,
        &[("at", Time), ("op", Op), ("action", Text(Word)), ("reason", Text(Sentence)), ("input", Input), ("pid", Pid)],
    ),
    table(
        "alert_",
        5,
        &[
            ("at", Time),
            ("cleared", Time),
            ("level", Text(Word)),
            ("kind", Text(Word)),
            ("rule", Text(Word)),
            ("pid", Pid),
            ("device", Int),
            ("gpu", Gpu),
            ("value", Real),
            ("threshold", Real),
            ("text", Text(Sentence)),
        ],
    ),
];

/// What a copy takes as it is, and a merge makes anew: the run itself, and of which runs it was merged.
pub(crate) const RUN: [Table; 2] = [
    table(
        "session_",
        1,
        &[
            ("id", Int),
            ("version", Text(Word)),
            ("start_unix_ns", Int),
            ("start_monotonic_ns", Int),
            ("stop_unix_ns", Int),
            ("duration_ns", Int),
            ("stop_reason", Text(Word)),
            ("command", Text(Command)),
            ("flags", Text(Flags)),
            ("gpu", Text(Word)),
            ("driver", Text(Word)),
            ("cuda", Text(Word)),
            ("cpu", Text(Word)),
            ("cores", Int),
            ("memory_bytes", Int),
            ("kernel", Text(Word)),
            ("python", Text(Word)),
            ("events_seen", Int),
            ("events_stored", Int),
            ("events_lost", Int),
            ("seconds_missing", Int),
            ("samples_missing", Int),
            ("own_cost", Text(Figures)),
            ("thinned", Int),
            ("max_size", Int),
        ],
    ),
    table(
        "merged_",
        4,
        &[
            ("input", Int),
            ("path", Text(Path)),
            ("pid_offset", Int),
            ("cpu_offset", Int),
            ("gpu_offset", Int),
            ("clock_offset_ns", Int),
            ("start_unix_ns", Int),
            ("duration_ns", Int),
            ("stop_reason", Text(Word)),
            ("command", Text(Command)),
            ("gpu", Text(Word)),
            ("cpu", Text(Word)),
            ("cores", Int),
            ("memory_bytes", Int),
            ("kernel", Text(Word)),
            ("version", Text(Word)),
            ("events_stored", Int),
            ("events_lost", Int),
            ("thinned", Int),
        ],
    ),
];

/// A column in the SQL that reads a file of this version: those it does not have yet are as good as told.
pub(crate) fn read_as(table: &str, column: &'static str, version: i32) -> &'static str {
    match (table, column) {
        ("gpu_process_", "sm_percent" | "name") if version < 2 => "NULL",
        ("system_second_" | "governor_", "input") if version < 4 => "0",
        ("governor_", "pid") if version < 6 => "NULL",
        ("session_", "thinned") if version < 3 => "0",
        ("session_", "max_size") if version < 3 => "NULL",
        _ => column,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;
    use rusqlite::Connection;

    /// A table or column that is added to the schema must not be forgotten here.
    #[test]
    fn every_column_of_every_table_is_merged() {
        let db = Connection::open_in_memory().unwrap();
        schema::create(&db).unwrap();
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
        let names: Vec<String> = db.prepare(sql).unwrap().query_map([], |row| row.get(0)).unwrap().flatten().collect();
        for name in names {
            // Words of gpuwhy's own, and what analysis adds, which a copy leaves out.
            if ["op_", "cause_", "causal_chain_"].contains(&name.as_str()) {
                continue;
            }
            let table = EVENTS.iter().chain(&TABLES).chain(&RUN).find(|table| table.name == name);
            let table = table.unwrap_or_else(|| panic!("{name} is not merged"));
            let sql = format!("SELECT name FROM pragma_table_info('{name}')");
            let columns = db.prepare(&sql).unwrap().query_map([], |row| row.get(0)).unwrap().flatten().collect();
            let mut columns: Vec<String> = columns;
            // Ids that nothing refers to are given anew.
            columns.retain(|column| column != "id" || !["library_", "alert_"].contains(&name.as_str()));
            assert_eq!(table.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>(), columns, "{name}");
            // Of every text it must be said what becomes of it in a copy for others.
            let sql = format!("SELECT name FROM pragma_table_info('{name}') WHERE type = 'TEXT'");
            let texts = db.prepare(&sql).unwrap().query_map([], |row| row.get(0)).unwrap().flatten().collect();
            let mut texts: Vec<String> = texts;
            texts.sort();
            let told = table.columns.iter().filter(|(_, kind)| matches!(kind, Text(_) | CgroupPath));
            let mut told: Vec<&str> = told.map(|(name, _)| *name).collect();
            told.sort_unstable();
            assert_eq!(told, texts, "{name}");
        }
    }
}
