// SPDX-License-Identifier: Apache-2.0
//! The command line.

mod files;
mod values;

pub(crate) use files::{Merge, Repair, Share};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use gpuwhy_ask::Part;
use gpuwhy_capture::governor::Budget;
use gpuwhy_memory::alerts::Choice;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use values::{address, duration, gigabytes, max_size, memory, moment, ring_size};

/// Find out why a GPU job is slow, stalls or runs out of memory, without changing its code.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  gpuwhy check                                   can this machine be traced?
  sudo gpuwhy demo                               try it without a GPU
  sudo gpuwhy trace -- python3 train.py          start a job and trace it
  sudo gpuwhy trace --pid 4821 --duration 60s    trace a running job for a minute
  gpuwhy explain                                 where did the time go, and why?
  gpuwhy memory                                  what uses GPU memory, and does it leak?
  gpuwhy stacks --op cudaMalloc                  which lines made the calls?
  gpuwhy query \"SELECT op, COUNT(*) FROM events GROUP BY op\"
  gpuwhy merge -o all.db node0.db node1.db       combine run files
  gpuwhy share gpuwhy.db                         make a copy to give to others
  gpuwhy mcp                                     let an AI assistant ask"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print details for a bug report, such as why the verifier refused an eBPF program
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check whether this machine can be traced, and what to do if not
    Check(Check),
    /// Record a job's CUDA calls and the kernel's scheduling of its threads in a run file
    Trace(Trace),
    /// Show where the time went, and why
    Explain(Explain),
    /// Show what used GPU memory: peak, leaks, fragmentation, hidden memory, why it ran out
    Memory(Memory),
    /// Show which lines of Python made the calls, waited or used the CPU
    Stacks(Stacks),
    /// Query a run file with SQL
    Query(Query),
    /// Combine the run files of several ranks or nodes into one
    Merge(Merge),
    /// Turn what a killed gpuwhy left behind into one complete file
    Repair(Repair),
    /// Copy a run file without private details: arguments, folders, user names
    Share(Share),
    /// Analyse files written by torch.profiler and torch.cuda.memory._snapshot
    Profile(Profile),
    /// Let an AI assistant ask: an MCP server on stdin and stdout, or over HTTP
    Mcp(Mcp),
    /// Trace and explain a small training job on a simulated GPU (needs root and Python, no GPU)
    Demo(Demo),
    /// Wait for a byte on a file descriptor, then run the traced command (internal)
    #[command(name = "__hold", hide = true)]
    Hold(Hold),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 1 if something required is missing. Run it with sudo if you trace with sudo.

Examples:
  sudo gpuwhy check
  gpuwhy check --json | jq '.[] | select(.status != \"ok\")'
  gpuwhy check -v                                why did the kernel refuse a program?")]
pub(crate) struct Check {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
With neither --pid nor a command, gpuwhy traces every process that uses CUDA, including those started later. The \
command runs as the user who called sudo; gpuwhy exits with its exit code, or 125 if gpuwhy itself fails.

Examples:
  sudo gpuwhy trace -- python3 train.py --epochs 1
  sudo gpuwhy trace --pid 4821 --pid 4822 --duration 60s
  sudo gpuwhy trace --host sched,samples -- ./train
  sudo gpuwhy trace --max-size 500MB --db night.db
  sudo gpuwhy trace --alert 'memory>90%' --on-alert 'logger \"$GPUWHY_ALERT_TEXT\"' -- python3 train.py
  sudo gpuwhy trace --db night.db --json > progress.jsonl")]
pub(crate) struct Trace {
    /// Trace this process and its children (repeatable)
    #[arg(long, value_name = "PID", conflicts_with = "cmd")]
    pub(crate) pid: Vec<u32>,
    /// Stop after this long: 500ms, 60s, 5m, 2h
    #[arg(long, value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// The run file to write; an existing one is renamed, never overwritten
    #[arg(long, value_name = "FILE", default_value = "gpuwhy.db")]
    pub(crate) db: PathBuf,
    /// Maximum size of the run file: 500MB, 2GB, 1GiB or none
    ///
    /// As the file fills, bursts of fast calls are stored as rows that represent several calls (the column weight).
    /// Slow calls and sums are kept.
    #[arg(long, value_name = "SIZE", default_value = "2GB", value_parser = max_size)]
    pub(crate) max_size: MaxSize,
    /// Which calls to keep: only the program's own, or also those CUDA's libraries make inside them
    #[arg(long, value_enum, default_value = "outer")]
    pub(crate) layers: Layers,
    /// What else to record on the host, beyond CUDA calls
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…", default_values_t = HostPart::ALL)]
    pub(crate) host: Vec<HostPart>,
    /// Record CUDA calls only
    #[arg(long, conflicts_with = "host")]
    pub(crate) no_host: bool,
    /// Do not record Python stacks
    #[arg(long)]
    pub(crate) no_stack: bool,
    /// How much tracing may slow the job down: 2%, 0.5% or none
    ///
    /// To stay within it, gpuwhy first counts bursts of launches instead of recording each, then removes probes from
    /// the busiest functions, and says so.
    #[arg(long, value_name = "PART", default_value = "2%", overrides_with = "budget")]
    pub(crate) budget: Budget,
    /// Raise an alert (repeatable): memory>85%, memory>10GB, growth>500MB/s, leak, oom or none
    ///
    /// memory is what is in use on one GPU, growth is measured over five seconds. The defaults are memory>85%,
    /// memory>95%, leak and oom. A rule replaces the default rules of its kind; none turns the defaults off.
    #[arg(long, value_name = "RULE")]
    pub(crate) alert: Vec<Choice>,
    /// Run this shell command for each alert
    ///
    /// Its environment has GPUWHY_ALERT_TEXT, _KIND, _LEVEL, _RULE, _PID, _DEVICE, _GPU, _VALUE, _THRESHOLD and _RUN.
    /// Commands run as the user who called sudo, one at a time, for at most 30 s each.
    #[arg(long, value_name = "CMD")]
    pub(crate) on_alert: Option<std::ffi::OsString>,
    /// Print JSON lines: one per second, one per alert, and a summary (the command's stdout goes to stderr)
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only errors, alerts and the summary
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// How to attach probes; the default is the cheapest way this kernel supports
    #[arg(long, value_enum, hide = true)]
    pub(crate) probes: Option<Probes>,
    /// Look up in /proc which library made a call, as on kernels whose eBPF cannot
    #[arg(long, hide = true)]
    pub(crate) callers_from_proc: bool,
    /// Size of the ring buffer between kernel and gpuwhy in KiB, a power of two
    #[arg(long, default_value_t = 16 * 1024, hide = true, value_parser = ring_size)]
    pub(crate) ring_kib: u32,
    /// The command to trace, with its arguments (the `--` before it is optional)
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) cmd: Vec<std::ffi::OsString>,
}

/// Maximum size in bytes; `None`: unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaxSize(pub(crate) Option<u64>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layers {
    /// Only the program's own calls
    Outer,
    /// Also the calls inside them, in the view inner_events
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostPart {
    /// What each thread did: running, ready, blocked on what, woken by whom, who had the CPU
    Sched,
    /// Page faults that read the disk, reclaim, page allocations, waits for the address-space lock
    Memory,
    /// Disk requests and TCP retransmits
    Io,
    /// Once a second: CPU, memory, pressure, cgroups, GPUs
    Samples,
}

impl HostPart {
    const ALL: [Self; 4] = [Self::Sched, Self::Memory, Self::Io, Self::Samples];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probes {
    Session,
    Multi,
    Plain,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A time range selects the events that started in it. docs/stacks-json.md describes the JSON.

Examples:
  gpuwhy stacks --op cudaMalloc                        which lines allocate?
  gpuwhy stacks --op sched_switch --by line            where do threads wait, and for what?
  gpuwhy stacks --op cpu_sample --by library           which package uses the CPU?
  gpuwhy stacks --op cudaMemcpyAsync --sort bytes --since 30s
  gpuwhy stacks --json | jq '.groups[0].frames'")]
pub(crate) struct Stacks {
    #[command(flatten)]
    pub(crate) of: Of,
    /// Only this op: cudaMalloc, cudaStreamSynchronize, sched_switch (waits), cpu_sample (running) [default: all CUDA
    /// ops]
    #[arg(long, value_name = "OP")]
    pub(crate) op: Option<String>,
    /// How to group
    #[arg(long, value_enum, default_value = "stack")]
    pub(crate) by: StacksBy,
    /// Sort by this figure, largest first
    #[arg(long, value_enum, default_value = "total")]
    pub(crate) sort: StacksSort,
    /// Show this many groups
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Show every frame of long stacks
    #[arg(long)]
    pub(crate) full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up after this time
    #[arg(long, value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StacksBy {
    /// Whole stacks, per process
    Stack,
    /// Lines of your code; without one, lines of a package
    Line,
    /// Functions
    Function,
    /// Packages, your code, Python itself
    Library,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StacksSort {
    /// Total time
    Total,
    /// Number of calls
    Calls,
    /// The longest call
    Max,
    /// Bytes
    Bytes,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Prints the verdict, then the findings that cost most: what each costs, who waited for whom, and what to do. If the \
run has several jobs, they are listed worst first; --pid shows the job of one process. Explaining a whole run that \
has ended stores its findings in the file (view causal_chains). Exits with 3 if --fail-on finds something. \
docs/explain-json.md describes the JSON.

Examples:
  gpuwhy explain
  gpuwhy explain night.db
  gpuwhy explain --since 120s --pid 3821 --json --fail-on high
  gpuwhy explain --per-process")]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) of: Of,
    /// Show everything: all findings with chains and fixes, passed checks, machine, GPUs, threads
    #[arg(long)]
    pub(crate) full: bool,
    /// Also show the calls of each process: count, time, bytes allocated and freed
    #[arg(long)]
    pub(crate) per_process: bool,
    /// Exit with 3 if a finding has this severity or worse
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub(crate) fail_on: Option<FailOn>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without a section option, prints the verdict and the findings that matter most; --full adds all sections. A leak is \
a line whose allocations stay alive step after step. A cache that fills up, warm-up, and memory that is freed later \
are not leaks. --json has everything (docs/memory-json.md). --bundle writes a folder with every allocation and free \
(JSON, CSV), the timeline (JSON, PNG, and an HTML page that zooms and shows who held memory when), figures, alerts \
and a manifest (docs/memory-bundle.md). Its events.json gives the same answers as the run file.

Examples:
  gpuwhy memory
  gpuwhy memory --leaks                                which lines keep what they allocate?
  gpuwhy memory --at-peak --pid 3821                   who held memory at the peak?
  gpuwhy memory --oom                                  why did it run out?
  gpuwhy memory --live                                 during a run: what grows, when is it full?
  gpuwhy memory --compare healthy.db leaky.db fixed.db what changed, and on which line?
  gpuwhy memory --since 120s --json | jq .leaks
  gpuwhy memory --bundle out/                          everything as files, to keep or pass on
  gpuwhy memory out/ --leaks                           read the bundle back")]
pub(crate) struct Memory {
    #[command(flatten)]
    pub(crate) of: Of,
    /// Show everything: all findings with chains and fixes, and all sections
    #[arg(long)]
    pub(crate) full: bool,
    /// Show lines that leak, and lines that only look like it
    #[arg(long)]
    pub(crate) leaks: bool,
    /// Show what was in use at the peak, by line
    #[arg(long)]
    pub(crate) at_peak: bool,
    /// Show memory reserved but not used, and what PyTorch keeps taking from the driver and returning
    #[arg(long)]
    pub(crate) fragmentation: bool,
    /// Show what the device uses beyond what PyTorch reserved
    #[arg(long)]
    pub(crate) gap: bool,
    /// Show each time memory ran out: what was requested, what was in use
    #[arg(long)]
    pub(crate) oom: bool,
    /// Write everything into this folder (new, empty or an earlier bundle) and list the files written
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = ["json", "leaks", "at_peak", "fragmentation", "gap", "oom", "live", "compare"]
    )]
    pub(crate) bundle: Option<PathBuf>,
    /// Watch a run while it is recorded; q or Ctrl-C quits
    ///
    /// Once a second: in use, reserved, which lines grow, time until memory is full. Waits for a recording to start and
    /// ends with it.
    #[arg(
        long,
        conflicts_with_all = ["leaks", "at_peak", "fragmentation", "gap", "oom", "from", "to", "since", "compare"]
    )]
    pub(crate) live: bool,
    /// Compare runs with the first one: peaks, growth, memory by line. With --pid, name at least one process of each
    /// run
    #[arg(
        long,
        value_name = "RUN",
        num_args = 2..,
        conflicts_with_all = ["file", "db", "leaks", "at_peak", "fragmentation", "gap", "oom"]
    )]
    pub(crate) compare: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Memory {
    /// The run file to read; for a bundle, its events.
    pub(crate) fn run(&self) -> PathBuf {
        let named = self.of.run.path();
        let events = named.join(crate::output::BUNDLE_EVENTS);
        if named.is_dir() && events.is_file() { events } else { named.to_owned() }
    }
}

/// The run file, as an argument or with --db.
#[derive(Debug, Args)]
pub(crate) struct RunFile {
    /// The run file (`memory` also takes a bundle's folder or its events.json) [default: gpuwhy.db]
    #[arg(value_name = "FILE", conflicts_with = "db")]
    file: Option<PathBuf>,
    /// The same, as an option
    #[arg(long, value_name = "FILE", default_value = "gpuwhy.db")]
    db: PathBuf,
}

impl RunFile {
    pub(crate) fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(&self.db)
    }
}

/// The run file, and which processes and time range to read.
#[derive(Debug, Args)]
pub(crate) struct Of {
    #[command(flatten)]
    pub(crate) run: RunFile,
    /// Only this process (repeatable); explain shows its whole job
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// From this time on, counted from the start of the run: 90s, 2m
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Duration>,
    /// Up to this time, counted from the start of the run
    #[arg(long, value_name = "TIME", value_parser = duration)]
    to: Option<Duration>,
    /// Only the last TIME of the run
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["from", "to"])]
    since: Option<Duration>,
}

impl Of {
    /// The requested processes; empty: all.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pid
    }

    pub(crate) fn part(&self) -> Part {
        Part { from: self.from, to: self.to, since: self.since, pids: self.pid.clone() }
    }

    /// Whether a time range was requested.
    pub(crate) fn has_times(&self) -> bool {
        self.from.is_some() || self.to.is_some() || self.since.is_some()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    /// Anything that costs time
    Low,
    /// 3 % of the time or more
    Medium,
    /// 10 % of the time or more
    High,
    /// It ended the job, or will
    Critical,
}

#[derive(Debug, Args)]
#[command(
    after_help = "\
Read-only: SQLite itself refuses to write. docs/run-file.md describes the views, docs/sql.md has ready-made queries. \
In addition to SQLite's functions there are p50, p95, p99, quantile, human_time and human_bytes. --schema lists all \
views and functions.

Examples:
  gpuwhy query \"SELECT op, COUNT(*) AS calls, SUM(duration_ns)/1e6 AS ms FROM events GROUP BY op ORDER BY ms DESC\"
  gpuwhy query \"SELECT op, human_time(p99(duration_ns, weight)) FROM events GROUP BY op\"
  gpuwhy query --csv \"SELECT * FROM seconds\" > seconds.csv
  gpuwhy query \"SELECT * FROM events\" | less -S
  gpuwhy query night.db \"SELECT op, pid FROM events\"
  gpuwhy query --schema",
    override_usage = "gpuwhy query [OPTIONS] [FILE] <SQL>\n       gpuwhy query [OPTIONS] [FILE] --schema"
)]
pub(crate) struct Query {
    /// The run file [default: gpuwhy.db]
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
    /// Print an array of JSON objects
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print comma-separated values
    #[arg(long)]
    pub(crate) csv: bool,
    /// Stop after this many rows [default: 1,000 for a table on a terminal, otherwise all]
    #[arg(long, value_name = "N")]
    pub(crate) rows: Option<u64>,
    /// Give up after this time, not counting time spent waiting for the output to be read
    #[arg(long, value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// Maximum memory for the query: 500MB, 4GB. Sorting uses memory, never the disk
    #[arg(long, value_name = "SIZE", default_value = "2GB", value_parser = memory)]
    pub(crate) memory: MaxSize,
    /// List the views with their columns, and the functions
    #[arg(long)]
    pub(crate) schema: bool,
    /// One SELECT statement; before it the run file, if not given with --db
    #[arg(required_unless_present = "schema", value_names = ["FILE", "SQL"], num_args = 1..=2)]
    asked: Vec<String>,
}

impl Query {
    /// The run file and, unless --schema is given, the statement.
    pub(crate) fn run_and_sql(&self) -> Result<(&Path, Option<&str>), clap::Error> {
        let wrong = |kind, what: String| Err(Cli::command().error(kind, what));
        let (file, sql) = match (self.asked.as_slice(), self.schema) {
            ([], _) => (None, None),
            ([file], true) => (Some(file), None),
            ([sql], false) if Path::new(sql).is_file() => {
                return wrong(
                    ErrorKind::MissingRequiredArgument,
                    format!("{sql} is a file: give SQL after it, or --schema"),
                );
            }
            ([sql], false) => (None, Some(sql.as_str())),
            ([file, sql], false) => (Some(file), Some(sql.as_str())),
            ([_, sql, ..], true) => {
                return wrong(ErrorKind::ArgumentConflict, format!("--schema cannot be used with SQL: {sql}"));
            }
            ([_, _, more, ..], false) => {
                return wrong(ErrorKind::TooManyValues, format!("unexpected argument '{more}' after FILE and SQL"));
            }
        };
        match (file, &self.db) {
            (Some(file), Some(_)) => {
                wrong(ErrorKind::ArgumentConflict, format!("FILE ({file}) cannot be used with --db"))
            }
            (Some(file), None) => Ok((Path::new(file), sql)),
            (None, db) => Ok((db.as_deref().unwrap_or(Path::new("gpuwhy.db")), sql)),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
In a folder, gpuwhy reads all profiler traces (.json, .json.gz) and memory snapshots (.pickle). It never executes \
anything in a pickle. docs/profile-json.md describes the JSON.

Examples:
  gpuwhy profile outputs/run/
  gpuwhy profile rank0.pt.trace.json.gz rank1.pt.trace.json.gz
  gpuwhy profile snapshot.pickle --gpu-gb 80
  gpuwhy profile run/ --json | jq .trace.devices")]
pub(crate) struct Profile {
    /// Show everything: all findings with chains and fixes, and all tables
    #[arg(long)]
    pub(crate) full: bool,
    /// Folders or files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Include warm-up steps in findings and rankings
    #[arg(long)]
    pub(crate) include_warmup: bool,
    /// Read only memory snapshots
    #[arg(long, conflicts_with = "trace_only")]
    pub(crate) memory_only: bool,
    /// Read only profiler traces
    #[arg(long)]
    pub(crate) trace_only: bool,
    /// Skip CPU ops and Python functions: faster, but idle time is not attributed to lines
    #[arg(long)]
    pub(crate) quick: bool,
    /// The GPU's advertised memory (80 means 80 GiB), to show how much is left; a trace has it already
    #[arg(long, value_name = "GB", value_parser = gigabytes)]
    pub(crate) gpu_gb: Option<f64>,
    /// Only this device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..1024))]
    pub(crate) device: Option<u32>,
    /// Kernel categories that replace the built-in ones (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads run files, profiler traces and memory snapshots in the given folders, and writes nothing. (To choose the fix \
for a leak it reads the line of a .py file that a stack names, but never shows it.) With --http, :PORT listens on \
this machine only, and clients must send `Authorization: Bearer TOKEN`. The token comes from GPUWHY_TOKEN or \
--token-file; without either, gpuwhy makes one and prints it. The server is at /mcp. docs/mcp.md describes the tools \
and how to set up assistants.

Examples:
  gpuwhy mcp                                        started by an assistant: the newest run here
  gpuwhy mcp --db night.db --dir outputs/           this run, and the files in outputs/
  gpuwhy mcp --http :8090                           http://127.0.0.1:8090/mcp
  GPUWHY_TOKEN=$(openssl rand -hex 32) gpuwhy mcp --http 0.0.0.0:8090 --tls-cert cert.pem --tls-key key.pem")]
pub(crate) struct Mcp {
    /// The run file to use by default; it may not exist yet [default: the newest in the folders]
    #[arg(value_name = "FILE", conflicts_with = "db")]
    pub(crate) file: Option<PathBuf>,
    /// The same, as an option
    #[arg(long, value_name = "FILE")]
    pub(crate) db: Option<PathBuf>,
    /// A folder whose files may be read (repeatable) [default: the run file's folder, or the current one]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Vec<PathBuf>,
    /// Serve streamable HTTP on this address instead of stdin and stdout: :8090, 127.0.0.1:8090, 0.0.0.0:8090
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) http: Option<SocketAddr>,
    /// A file with the token that clients must send; created if missing
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,
    /// TLS certificate, PEM
    #[arg(long, value_name = "FILE", requires_all = ["http", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// TLS key, PEM
    #[arg(long, value_name = "FILE", requires_all = ["http", "tls_cert"])]
    pub(crate) tls_key: Option<PathBuf>,
    /// Another host name that clients use for this machine (repeatable)
    #[arg(long, value_name = "NAME", requires = "http")]
    pub(crate) allow_host: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Only the GPU is simulated: the processes, the scheduler and the eBPF probes are real.

Examples:
  sudo gpuwhy demo
  sudo gpuwhy demo leak
  sudo gpuwhy demo cpu-contention --duration 10s --db contention.db")]
pub(crate) struct Demo {
    /// What is wrong with the simulated job
    #[arg(value_enum, default_value = "dataloader")]
    pub(crate) scenario: Scenario,
    /// How long the job runs
    #[arg(long, value_parser = duration, default_value = "6s")]
    pub(crate) duration: Duration,
    /// The run file to write
    #[arg(long, value_name = "FILE", default_value = "gpuwhy-demo.db")]
    pub(crate) db: PathBuf,
    /// Only unpack the simulated GPU's libraries and programs into this folder, for your own jobs (see
    /// examples/leak-tutorial)
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["scenario", "duration", "db"])]
    pub(crate) unpack: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// The data workers cannot keep up
    Dataloader,
    /// Other programs keep every core busy
    CpuContention,
    /// Nothing: the GPU is busy
    Healthy,
    /// Each step keeps a tensor
    Leak,
    /// Each step empties the allocator's cache
    Fragmentation,
    /// GPU memory runs out
    Oom,
}

#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// File descriptor to read the byte from
    #[arg(long)]
    pub(crate) fd: i32,
    /// Run the command as this user and group
    #[arg(long, value_name = "UID:GID")]
    pub(crate) user: Option<String>,
    #[arg(last = true, required = true)]
    pub(crate) cmd: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
