// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy demo`: a small training job on a simulated GPU, really traced and explained. Only the GPU is simulated:
//! the processes, the scheduler and the eBPF probes are real.

use crate::cli::{Demo, Scenario};
use crate::commands::explain as command;
use crate::output;
use crate::trace::sudo::Caller;
use crate::trace::{self, AlertSettings, Display, Settings, privileges};
use anyhow::{Context, bail};
use gpuwhy_ask::{Part, explain, memory};
use gpuwhy_capture::governor::Budget;
use gpuwhy_capture::{Options, Targets, needs};
use gpuwhy_store::Reader;
use gpuwhy_view::MemoryView;
use gpuwhy_view::finding_view::Detail;
use simgpu::Installed;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) fn run(args: &Demo) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.unpack {
        let sim = simgpu::install(folder).with_context(|| format!("cannot write to {}", folder.display()))?;
        println!("{}", sim.dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    needs::require()?;
    let folder = Folder::new().context("cannot create a temporary folder")?;
    // The job may run as the user who called sudo, and must be able to read its program.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let sim = simgpu::install(folder.path()).context("cannot unpack the simulated GPU")?;
    let play = Play::of(args.scenario);
    let title = format!("A small training job ({}) runs on a simulated GPU. Everything else is real.", play.name);
    output::show([title, String::new()])?;
    let settings = settings(args, &play, &sim)?;
    let neighbours = if play.has_neighbours() { Neighbours::start(&sim)? } else { Neighbours::default() };
    let ended = trace::record(&settings)?;
    drop(neighbours);
    if (ended.exit_code != 0) != play.fails {
        bail!("the demo's job ended with exit code {}", ended.exit_code);
    }
    if play.is_memory {
        show_memory(&ended.summary.path)?
    } else {
        show_explanation(&ended.summary.path)?
    }
    Ok(ExitCode::SUCCESS)
}

/// A demo scenario: which simulated job runs, and how it ends.
struct Play {
    name: &'static str,
    /// A memory scenario runs another job and prints the memory report.
    is_memory: bool,
    /// The scenario's name in the job's command line.
    mode: &'static str,
    /// The job is expected to fail.
    fails: bool,
}

impl Play {
    fn of(scenario: Scenario) -> Self {
        let time = |name| Self { name, is_memory: false, mode: name, fails: false };
        let memory = |name, mode| Self { name, is_memory: true, mode, fails: mode == "oom" };
        match scenario {
            Scenario::Dataloader => time("dataloader"),
            Scenario::CpuContention => time("cpu-contention"),
            Scenario::Healthy => time("healthy"),
            Scenario::Leak => memory("leak", "leak"),
            Scenario::Fragmentation => memory("fragmentation", "churn"),
            Scenario::Oom => memory("oom", "oom"),
        }
    }

    /// The program and its arguments.
    fn command(&self, sim: &Installed, length: Duration) -> Vec<OsString> {
        let seconds = length.as_secs_f64();
        if !self.is_memory {
            let seconds = seconds.to_string();
            let program = sim.train_py.clone().into_os_string();
            return vec![
                "python3".into(),
                program,
                "--scenario".into(),
                self.mode.into(),
                "--seconds".into(),
                seconds.into(),
            ];
        }
        // A job that runs out of memory ends on its own: give it more steps than it needs.
        let steps = if self.fails { 10_000 } else { ((seconds / STEP.as_secs_f64()) as u64).max(40) }.to_string();
        let step_ms = STEP.as_millis().to_string();
        let mut command: Vec<OsString> =
            vec!["python3".into(), sim.memjob_py.clone().into_os_string(), self.mode.into()];
        command.extend(["--steps", &steps, "--step-ms", &step_ms, "--onset", "10", "--words"].map(OsString::from));
        command
    }

    /// Whether other programs compete for the CPU.
    fn has_neighbours(&self) -> bool {
        self.mode == "cpu-contention"
    }

    /// The GPU's memory, bytes.
    fn gpu_memory(&self) -> u64 {
        if self.mode == "oom" { LITTLE } else { ENOUGH }
    }
}

/// One step of the memory job.
const STEP: Duration = Duration::from_millis(20);
/// GPU memory of the `oom` scenario and of all others, bytes.
const LITTLE: u64 = 160 << 20;
const ENOUGH: u64 = 16 << 30;
/// Time a driver under load needs to allocate memory, µs.
const SLOW_ALLOC_US: &str = "300";

/// Unrelated programs that keep every core busy once the job uses the GPU.
#[derive(Default)]
struct Neighbours(Vec<Child>);

const NEIGHBOURS_PER_CORE: usize = 4;

impl Neighbours {
    fn start(sim: &Installed) -> anyhow::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut neighbours = Self::default();
        for _ in 0..cores * NEIGHBOURS_PER_CORE {
            let mut program = Command::new("python3");
            program.arg(&sim.bystander_py).args(["--name", "cpu_hog", "--when"]).arg(log_folder(sim));
            program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            neighbours.0.push(program.spawn().context("cannot start python3: install Python 3")?);
        }
        Ok(neighbours)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // With sudo, gpuwhy may run as its caller by now and lack the right to kill them; they end when gpuwhy
            // ends.
            if child.kill().is_ok() {
                let _ = child.wait();
            }
        }
    }
}

/// A temporary folder owned by root. With sudo, gpuwhy becomes its caller while it traces and could no longer remove
/// the folder. The caller must not own it, because gpuwhy loads a library from it. So a shell that stays root removes
/// it.
struct Folder {
    folder: TempDir,
    remover: Option<Child>,
}

impl Folder {
    fn new() -> std::io::Result<Self> {
        let mut folder = tempfile::Builder::new().prefix("gpuwhy-demo-").tempdir()?;
        let mut remover = None;
        if Caller::from_env().is_some() {
            // It waits for the end of its input, which comes even if gpuwhy is killed.
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", r#"trap '' INT HUP TERM; read -r end; exec /bin/rm -rf -- "$0""#]).arg(folder.path());
            shell.env_clear().stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            remover = Some(shell.spawn()?);
            folder.disable_cleanup(true);
        }
        Ok(Self { folder, remover })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mut remover) = self.remover.take() {
            drop(remover.stdin.take());
            let _ = remover.wait();
        }
    }
}

fn settings(args: &Demo, play: &Play, sim: &Installed) -> anyhow::Result<Settings> {
    let log = simulated_nvml(sim, play).context("cannot prepare the simulated GPU")?;
    let mut environment = vec![
        ("LD_LIBRARY_PATH", sim.dir.clone().into_os_string()),
        ("SIMGPU_LOG", log),
        ("SIMGPU_LOG_LEVEL", "full".into()),
    ];
    environment.push(("SIMGPU_MEM", format!("{}M", play.gpu_memory() >> 20).into()));
    if play.mode == "churn" {
        environment.push(("SIMGPU_ALLOC_US", SLOW_ALLOC_US.into()));
    }
    Ok(Settings {
        budget: Budget::default(),
        capture: Options { targets: Targets::Pids(Vec::new()), ..Default::default() },
        samples: true,
        // The simulated NVML is in a folder of the user, which a gpuwhy with capabilities must not load from.
        nvml: (!privileges::is_trusted_with_more()).then(|| sim.nvml.clone()),
        command: play.command(sim, args.duration),
        extra_env: environment.into_iter().map(|(name, value)| (OsString::from(name), value)).collect(),
        duration: None,
        db: args.db.clone(),
        max_size: None,
        display: Display::Human,
        alerts: AlertSettings::default(),
        explain: false,
    })
}

/// The folder where the simulated GPU logs its work.
fn log_folder(sim: &Installed) -> PathBuf {
    sim.dir.join("log")
}

/// Configures a simulated NVML, which reports utilization and memory use from the logs that the job writes. Returns the
/// log folder, which every user may write to because the job may run as any user.
fn simulated_nvml(sim: &Installed, play: &Play) -> std::io::Result<OsString> {
    let log = log_folder(sim);
    std::fs::create_dir_all(&log)?;
    std::fs::set_permissions(&log, Permissions::from_mode(0o777))?;
    let settings = format!("count 1\nlogs {}\nmemory_total {}\n", log.display(), play.gpu_memory());
    std::fs::write(sim.dir.join("nvml.conf"), settings)?;
    Ok(log.into_os_string())
}

/// Prints the memory report of the traced job.
fn show_memory(db: &Path) -> anyhow::Result<()> {
    let examined = output::patiently("analysing memory", || memory::examine(&Reader::open(db)?, &Part::default()))?;
    let run = db.display().to_string();
    let view = MemoryView { report: &examined.report, sections: &[], detail: Detail::Short, run: &run };
    let again = format!("gpuwhy memory {} shows this again; --json has every number", db.display());
    let mut lines = vec![String::new()];
    lines.extend(view.lines(output::stdout_columns(), output::stdout_style()));
    lines.extend([String::new(), output::stdout_style().dim(&again)]);
    Ok(output::show(lines)?)
}

/// Prints the explanation of the traced job.
fn show_explanation(db: &Path) -> anyhow::Result<()> {
    let explained = output::patiently("explaining", || explain::explain(&Reader::open(db)?, &Part::default()))?;
    explain::keep(db, &explained);
    let style = output::stdout_style();
    let again = format!("gpuwhy explain {} shows this again. For anything else, use SQL:", db.display());
    let query = format!("gpuwhy query --db {} \"SELECT op, COUNT(*) AS calls FROM events GROUP BY op\"", db.display());
    let mut lines = vec![String::new()];
    lines.extend(command::text(db, &explained, &[], Detail::Short));
    lines.extend([String::new(), style.dim(&again), style.dim(&query)]);
    Ok(output::show(lines)?)
}
