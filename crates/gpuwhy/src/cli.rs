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

/// Tells why a GPU job is slow, stalls or runs out of memory, without touching its code.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  gpuwhy check                                   can this machine be traced?
  sudo gpuwhy demo                               see it work, without a GPU
  sudo gpuwhy trace -- python3 train.py          start a job and trace it
  sudo gpuwhy trace --pid 4821 --duration 60s    look at a running one
  gpuwhy explain                                 where did the time go, and why?
  gpuwhy memory                                  what is GPU memory used for, and does it leak?
  gpuwhy stacks --op cudaMalloc                  which lines made the calls?
  gpuwhy query \"SELECT op, COUNT(*) FROM events GROUP BY op\"
  gpuwhy merge -o all.db node0.db node1.db       one run file of several
  gpuwhy share gpuwhy.db                         a copy that can be given to others
  gpuwhy mcp                                     let an AI assistant ask"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print details that help to report a problem, such as the verifier's reason for refusing an eBPF program
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tell whether this machine can be traced, and what to do if not
    Check(Check),
    /// Record the CUDA calls of a job, and what the kernel knows of its threads, into a run file
    Trace(Trace),
    /// Tell where the time went, and why
    Explain(Explain),
    /// Tell what GPU memory was used for: peak, leaks, fragmentation, what is hidden, why it ran out
    Memory(Memory),
    /// Tell which lines of Python made the calls, waited or were running
    Stacks(Stacks),
    /// Ask a run file with SQL
    Query(Query),
    /// Make one run file of several: ranks, nodes
    Merge(Merge),
    /// Make one closed file of what a killed gpuwhy left
    Repair(Repair),
    /// Copy a run file without what others should not see: arguments, folders, names of users
    Share(Share),
    /// Analyse what torch.profiler and torch.cuda.memory._snapshot wrote
    Profile(Profile),
    /// Let an AI assistant ask: an MCP server on standard input and output, or over HTTP
    Mcp(Mcp),
    /// Trace and explain a small training job on a simulated GPU: needs root and Python, no GPU
    Demo(Demo),
    /// Waits for a byte on a file descriptor, then becomes the traced command (internal)
    #[command(name = "__hold", hide = true)]
    Hold(Hold),
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
With neither --pid nor a command, every process that uses CUDA is traced, also those started later.
The command runs as the user who called sudo, and gpuwhy exits with its exit code (125: gpuwhy failed).

Examples:
  sudo gpuwhy trace -- python3 train.py --epochs 1
  sudo gpuwhy trace --pid 4821 --pid 4822 --duration 60s
  sudo gpuwhy trace --host sched,samples -- ./train
  sudo gpuwhy trace --max-size 500MB --db night.db
  sudo gpuwhy trace --alert 'memory>90%' --alert 'growth>500MB/s' \
      --on-alert 'logger \"$GPUWHY_ALERT_TEXT\"' -- python3 train.py
  sudo gpuwhy trace --db night.db --json > progress.jsonl")]
pub(crate) struct Trace {
    /// Trace this process and its children (may be given several times)
    #[arg(long, value_name = "PID", conflicts_with = "cmd")]
    pub(crate) pid: Vec<u32>,
    /// Stop after this long: 500ms, 60s, 5m, 2h
    #[arg(long, value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// The run file; one that exists is renamed, never overwritten
    #[arg(long, value_name = "FILE", default_value = "gpuwhy.db")]
    pub(crate) db: PathBuf,
    /// The most the run file may take: 500MB, 2GB, 1GiB, none. As it fills, bursts of fast calls become rows that stand for
    /// several (the column weight); slow calls and sums are kept
    #[arg(long, value_name = "SIZE", default_value = "2GB", value_parser = max_size)]
    pub(crate) max_size: MaxSize,
    /// Which calls to keep: those the program made, or also those CUDA's libraries made inside them
    #[arg(long, value_enum, default_value = "outer")]
    pub(crate) layers: Layers,
    /// What to record of the host besides CUDA calls
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…", default_values_t = HostPart::ALL)]
    pub(crate) host: Vec<HostPart>,
    /// Record CUDA calls only
    #[arg(long, conflicts_with = "host")]
    pub(crate) no_host: bool,
    /// Leave out Python stacks
    #[arg(long)]
    pub(crate) no_stack: bool,
    /// What tracing may cost the job: 2%, 0.5%, none. Beyond it bursts of launches are counted instead of followed, then the
    /// hottest functions are let go, and that is said
    #[arg(long, value_name = "PART", default_value = "2%", overrides_with = "budget")]
    pub(crate) budget: Budget,
    /// Raise an alert (may be given several times): memory>85% or memory>10GB of a GPU in use, growth>500MB/s over five
    /// seconds, leak, oom. It takes the place of those of its kind that hold by themselves, which are memory>85%,
    /// memory>95%, leak and oom; none turns these off
    #[arg(long, value_name = "RULE")]
    pub(crate) alert: Vec<Choice>,
    /// Run this shell command for each alert, with GPUWHY_ALERT_TEXT, _KIND, _LEVEL, _RULE, _PID, _DEVICE, _GPU, _VALUE,
    /// _THRESHOLD and _RUN in its environment; as the user who called sudo, one at a time, for 30 s at most
    #[arg(long, value_name = "CMD")]
    pub(crate) on_alert: Option<std::ffi::OsString>,
    /// Print JSON lines to stdout, one a second, one for each alert, and a summary (the command's stdout then goes to stderr)
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing but errors, alerts and the summary
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// How to attach probes; by default the cheapest way this kernel has
    #[arg(long, value_enum, hide = true)]
    pub(crate) probes: Option<Probes>,
    /// Look up in /proc which library made a call, as on kernels that cannot tell
    #[arg(long, hide = true)]
    pub(crate) callers_from_proc: bool,
    /// Size of the buffer between kernel and gpuwhy, KiB, a power of two
    #[arg(long, default_value_t = 16 * 1024, hide = true, value_parser = ring_size)]
    pub(crate) ring_kib: u32,
    /// The command to trace and its arguments; `--` before it may be left out
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) cmd: Vec<std::ffi::OsString>,
}

/// How large a run file may become, bytes; `None` for any size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaxSize(pub(crate) Option<u64>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layers {
    /// The program's own calls
    Outer,
    /// Also calls inside them, in the view inner_events
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostPart {
    /// What every thread does: running, ready, blocked on what, woken by whom, who had the CPU
    Sched,
    /// Page faults that need the disk, reclaim, page allocations, waits for the address space's lock
    Memory,
    /// Disk requests and TCP retransmits
    Io,
    /// Every second: CPU, memory, pressure, cgroups, GPUs
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
An event belongs to the time at which it began. The JSON is described in docs/stacks-json.md.

Examples:
  gpuwhy stacks --op cudaMalloc                        which lines allocate?
  gpuwhy stacks --op sched_switch --by line            where do threads wait, and what for?
  gpuwhy stacks --op cpu_sample --by library           which package uses the CPU?
  gpuwhy stacks --op cudaMemcpyAsync --sort bytes --since 30s
  gpuwhy stacks --json | jq '.groups[0].frames'")]
pub(crate) struct Stacks {
    #[command(flatten)]
    pub(crate) of: Of,
    /// Only this op: cudaMalloc, cudaStreamSynchronize, sched_switch (waits), cpu_sample (running); default: all of CUDA
    #[arg(long, value_name = "OP")]
    pub(crate) op: Option<String>,
    /// What to put together
    #[arg(long, value_enum, default_value = "stack")]
    pub(crate) by: StacksBy,
    /// Which figure comes first, largest on top
    #[arg(long, value_enum, default_value = "total")]
    pub(crate) sort: StacksSort,
    /// How many to show
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Show all frames of long stacks
    #[arg(long)]
    pub(crate) full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up after this long
    #[arg(long, value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StacksBy {
    /// Whole stacks, one process each
    Stack,
    /// Lines of your code; where there is none, of a package
    Line,
    /// The functions they are in
    Function,
    /// Packages, your code, Python itself
    Library,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StacksSort {
    /// Time in all
    Total,
    /// How many
    Calls,
    /// The longest
    Max,
    /// Bytes
    Bytes,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The verdict first, then each finding, worst first: who waited for whom, what it cost, what to do; then what is well.
Several jobs in one run are listed, worst first; --pid shows the job of a process.
Explaining a whole run that has ended stores its findings in it (the view causal_chains).
Exits with 3 if --fail-on finds something. The JSON is described in docs/explain-json.md.

Examples:
  gpuwhy explain
  gpuwhy explain night.db
  gpuwhy explain --since 120s --pid 3821 --json --fail-on high
  gpuwhy explain --per-process")]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) of: Of,
    /// Also show each process's calls: how many, how long, bytes allocated and freed
    #[arg(long)]
    pub(crate) per_process: bool,
    /// Exit with 3 if a finding is as bad as this, or worse
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub(crate) fail_on: Option<FailOn>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without a section: the verdict, what was found, and all sections, the most important first.
Leaks are lines whose allocations stay from step to step; caches that fill, warm-up and what is given back are none.
The JSON has everything and is described in docs/memory-json.md. A bundle is a folder with every
allocation and free (JSON, CSV), the timeline (JSON, PNG, and an HTML page that zooms and shows
who held memory when), figures, alerts and a manifest, see docs/memory-bundle.md; its events.json
gives the same answers as the run file.

Examples:
  gpuwhy memory
  gpuwhy memory --leaks                                which lines keep what they allocate?
  gpuwhy memory --at-peak --pid 3821                   who held memory when most was in use?
  gpuwhy memory --oom                                  why did it run out?
  gpuwhy memory --live                                 while it runs: what grows, when is it full?
  gpuwhy memory --compare healthy.db leaky.db fixed.db what changed, and at which line?
  gpuwhy memory --since 120s --json | jq .leaks
  gpuwhy memory --bundle out/                          everything as files, to keep or hand on
  gpuwhy memory out/ --leaks                           and read back from them")]
pub(crate) struct Memory {
    #[command(flatten)]
    pub(crate) of: Of,
    /// Lines that keep what they allocate, and those that only look like it
    #[arg(long)]
    pub(crate) leaks: bool,
    /// What was in use when most was, by line
    #[arg(long)]
    pub(crate) at_peak: bool,
    /// Memory reserved and not used, and what goes back and forth between PyTorch and the driver
    #[arg(long)]
    pub(crate) fragmentation: bool,
    /// What the device uses beyond what PyTorch reserved
    #[arg(long)]
    pub(crate) gap: bool,
    /// Every time memory ran out: what was asked, what was in use
    #[arg(long)]
    pub(crate) oom: bool,
    /// Write everything into this folder, which is new, empty or an earlier bundle, and print what was written
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = ["json", "leaks", "at_peak", "fragmentation", "gap", "oom", "live", "compare"]
    )]
    pub(crate) bundle: Option<PathBuf>,
    /// Show a run that is being recorded, every second: in use, reserved, what grows at which line, time until memory is full.
    /// Waits for one to begin, and ends with it, or by q or Ctrl-C
    #[arg(
        long,
        conflicts_with_all = ["leaks", "at_peak", "fragmentation", "gap", "oom", "from", "to", "since", "compare"]
    )]
    pub(crate) live: bool,
    /// Compare runs, the first being what the others are held against: peaks, growth, memory by line. Of --pid each has its own
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
    /// The file that is asked about; of a bundle, its events.
    pub(crate) fn run(&self) -> PathBuf {
        let named = self.of.run.path();
        let events = named.join(crate::output::BUNDLE_EVENTS);
        if named.is_dir() && events.is_file() { events } else { named.to_owned() }
    }
}

/// Which run: as an argument, or with --db.
#[derive(Debug, Args)]
pub(crate) struct RunFile {
    /// The run file; for `memory` also a bundle's folder, or its events.json [default: gpuwhy.db]
    #[arg(value_name = "FILE", conflicts_with = "db")]
    file: Option<PathBuf>,
    /// The run file, as an option
    #[arg(long, value_name = "FILE", default_value = "gpuwhy.db")]
    db: PathBuf,
}

impl RunFile {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(&self.db)
    }
}

/// What of which run.
#[derive(Debug, Args)]
pub(crate) struct Of {
    #[command(flatten)]
    pub(crate) run: RunFile,
    /// Only these processes (may be given several times); explain takes their whole jobs
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// From this moment on, counted from the run's beginning: 90s, 2m
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Duration>,
    /// Up to this moment
    #[arg(long, value_name = "TIME", value_parser = duration)]
    to: Option<Duration>,
    /// Only the last part of the run, so long
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["from", "to"])]
    since: Option<Duration>,
}

impl Of {
    /// The processes asked for; none for all.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pid
    }

    /// The part of the run.
    pub(crate) fn part(&self) -> Part {
        Part { from: self.from, to: self.to, since: self.since, pids: self.pid.clone() }
    }

    /// Whether a part of the run's time is asked about.
    pub(crate) fn has_times(&self) -> bool {
        self.from.is_some() || self.to.is_some() || self.since.is_some()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    /// Anything that cost time
    Low,
    /// 3 % of the time or more
    Medium,
    /// 10 % of the time or more
    High,
    /// The job ended by it
    Critical,
}

#[derive(Debug, Args)]
#[command(
    after_help = "\
Read-only: SQLite itself refuses to write. The views are described in docs/run-file.md, ready
queries are in docs/sql.md. Beside SQLite's functions there are p50, p95, p99, quantile, human_time
and human_bytes; --schema lists them with the views.

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
    /// Stop after so many rows [default: 1,000 for a table on a terminal, else all]
    #[arg(long, value_name = "N")]
    pub(crate) rows: Option<u64>,
    /// Give up after this long; waiting for whoever reads the output does not count
    #[arg(long, value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// The most memory it may take: 500MB, 4GB. What it sorts is kept in memory, never on a disk
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
A folder stands for the profiler traces (.json, .json.gz) and memory snapshots (.pickle) in it.
Nothing in a pickle is executed. The JSON is described in docs/profile-json.md.

Examples:
  gpuwhy profile outputs/run/
  gpuwhy profile rank0.pt.trace.json.gz rank1.pt.trace.json.gz
  gpuwhy profile snapshot.pickle --gpu-gb 80
  gpuwhy profile run/ --json | jq .trace.devices")]
pub(crate) struct Profile {
    /// Folders or files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Let findings and rankings cover warm-up steps, too
    #[arg(long)]
    pub(crate) include_warmup: bool,
    /// Only memory snapshots
    #[arg(long, conflicts_with = "trace_only")]
    pub(crate) memory_only: bool,
    /// Only profiler traces
    #[arg(long)]
    pub(crate) trace_only: bool,
    /// Leave out CPU ops and Python functions: quicker, and idle time is not traced back to lines
    #[arg(long)]
    pub(crate) quick: bool,
    /// Memory of the GPU as its box says it (80 is 80 GiB), to tell how much room is left; a trace tells it, too
    #[arg(long, value_name = "GB", value_parser = gigabytes)]
    pub(crate) gpu_gb: Option<f64>,
    /// Only this device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..1024))]
    pub(crate) device: Option<u32>,
    /// Kernel categories to use instead of the built-in ones (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads run files, profiler traces and memory snapshots in the folders given; writes nothing. (To choose
the fix for a leak it looks at the line of a .py file that a stack names, and shows nothing of it.)
:PORT listens on this machine alone. Clients send a token as `Authorization: Bearer TOKEN`: that in
GPUWHY_TOKEN or --token-file, else one is made and printed. The server is at /mcp.
docs/mcp.md has the tools and how to set up assistants.

Examples:
  gpuwhy mcp                                        for an assistant to start: the newest run here
  gpuwhy mcp --db night.db --dir outputs/           this run, and files in outputs/, too
  gpuwhy mcp --http :8090                           http://127.0.0.1:8090/mcp
  GPUWHY_TOKEN=$(openssl rand -hex 32) gpuwhy mcp --http 0.0.0.0:8090 --tls-cert cert.pem --tls-key key.pem")]
pub(crate) struct Mcp {
    /// The run file that is meant where none is named; it need not be there yet. Default: the newest in the folders
    #[arg(value_name = "FILE", conflicts_with = "db")]
    pub(crate) file: Option<PathBuf>,
    /// The same as an option
    #[arg(long, value_name = "FILE")]
    pub(crate) db: Option<PathBuf>,
    /// A folder whose files may be read (may be given several times). Default: the run file's, or this one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Vec<PathBuf>,
    /// Serve streamable HTTP here instead of standard input and output: :8090, 127.0.0.1:8090, 0.0.0.0:8090
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) http: Option<SocketAddr>,
    /// A file with the token that clients must send; it is made if it is not there
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,
    /// The certificate for TLS, PEM
    #[arg(long, value_name = "FILE", requires_all = ["http", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires_all = ["http", "tls_cert"])]
    pub(crate) tls_key: Option<PathBuf>,
    /// Another name under which clients reach this machine (may be given several times)
    #[arg(long, value_name = "NAME", requires = "http")]
    pub(crate) allow_host: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// What the simulated job suffers from
    #[arg(value_enum, default_value = "dataloader")]
    pub(crate) scenario: Scenario,
    /// How long to run
    #[arg(long, value_parser = duration, default_value = "6s")]
    pub(crate) duration: Duration,
    /// The run file it leaves behind
    #[arg(long, value_name = "FILE", default_value = "gpuwhy-demo.db")]
    pub(crate) db: PathBuf,
    /// Only write the simulated GPU's libraries and programs into this folder, for jobs of your own (examples/leak-tutorial)
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["scenario", "duration", "db"])]
    pub(crate) unpack: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Data workers that cannot keep up
    Dataloader,
    /// Other programs on every core
    CpuContention,
    /// A GPU kept busy
    Healthy,
    /// Every step keeps a tensor
    Leak,
    /// The allocator's cache is emptied in every step
    Fragmentation,
    /// Memory runs out
    Oom,
}

#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// Descriptor to read the byte from
    #[arg(long)]
    pub(crate) fd: i32,
    /// Run as this user and group
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
