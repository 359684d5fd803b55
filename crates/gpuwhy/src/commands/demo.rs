// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy demo`: a small training job on a simulated GPU, really traced and explained. Only the GPU is simulated:
//! the processes, the scheduler and the eBPF probes are real.

use crate::cli::{Demo, Scenario};
use crate::commands::explain as command;
use crate::output;
use crate::trace::sudo::Caller;
use crate::trace::{self, Display, Settings};
use anyhow::{Context, bail};
use gpuwhy_ask::{Part, explain};
use gpuwhy_capture::governor::Budget;
use gpuwhy_capture::{Options, Targets, needs};
use gpuwhy_store::Reader;
use simgpu::Installed;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use tempfile::TempDir;

pub(crate) fn run(args: &Demo) -> anyhow::Result<ExitCode> {
    needs::require()?;
    let folder = Folder::new().context("cannot make a temporary folder")?;
    // The job may run as the user who called sudo, and must be able to read its program.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let sim = simgpu::install(folder.path()).context("cannot unpack the simulated GPU")?;
    let scenario = match args.scenario {
        Scenario::Dataloader => "dataloader",
        Scenario::CpuContention => "cpu-contention",
        Scenario::Healthy => "healthy",
    };
    println!("A small training job ({scenario}) runs on a simulated GPU; everything else about it is real.\n");
    let ended = trace::record(&settings(args, scenario, &sim)?)?;
    if ended.exit_code != 0 {
        bail!("the demo's job failed with exit code {}", ended.exit_code);
    }
    answer(&ended.summary.path)?;
    Ok(ExitCode::SUCCESS)
}

/// A temporary folder of root's. With sudo gpuwhy becomes its caller while it traces and could not remove it any more,
/// and it must not be the caller's, because gpuwhy loads a library from it. So a shell that stays root removes it.
struct Folder {
    folder: TempDir,
    remover: Option<Child>,
}

impl Folder {
    fn new() -> std::io::Result<Self> {
        let mut folder = tempfile::Builder::new().prefix("gpuwhy-demo-").tempdir()?;
        let mut remover = None;
        if Caller::from_env().is_some() {
            // It waits for the end of its input, which also comes if gpuwhy is killed.
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

fn settings(args: &Demo, scenario: &str, sim: &Installed) -> anyhow::Result<Settings> {
    let log = simulated_nvml(sim).context("cannot prepare the simulated GPU")?;
    let [scenario, seconds] = [scenario.to_owned(), args.duration.as_secs_f64().to_string()];
    let command = ["python3".into(), sim.train_py.clone().into_os_string(), "--scenario".into(), scenario.into()];
    let environment = [
        ("LD_LIBRARY_PATH", sim.dir.clone().into_os_string()),
        ("SIMGPU_LOG", log),
        ("SIMGPU_LOG_LEVEL", "full".into()),
    ];
    Ok(Settings {
        budget: Budget::default(),
        capture: Options { targets: Targets::Pids(Vec::new()), ..Default::default() },
        samples: true,
        nvml: Some(sim.nvml.clone()),
        command: command.into_iter().chain(["--seconds".into(), seconds.into()]).collect(),
        extra_env: environment.into_iter().map(|(name, value)| (OsString::from(name), value)).collect(),
        duration: None,
        db: args.db.clone(),
        max_size: None,
        display: Display::Human,
        explain: false,
    })
}

/// The simulated GPU says how busy it is through an NVML of its own, as a real one does. Returns the folder it learns
/// that from, which the job, whoever's it is, writes into.
fn simulated_nvml(sim: &Installed) -> std::io::Result<OsString> {
    let log = sim.dir.join("log");
    std::fs::create_dir_all(&log)?;
    std::fs::set_permissions(&log, Permissions::from_mode(0o777))?;
    std::fs::write(sim.dir.join("nvml.conf"), format!("count 1\nlogs {}\n", log.display()))?;
    Ok(log.into_os_string())
}

/// Explains what was traced.
fn answer(db: &Path) -> anyhow::Result<()> {
    let explained = output::patiently("explaining", || explain::explain(&Reader::open(db)?, &Part::default()))?;
    explain::keep(db, &explained);
    println!();
    for line in command::text(&explained, &[]) {
        println!("{line}");
    }
    let style = output::stdout_style();
    let sql = "SELECT op, COUNT(*) AS calls, SUM(duration_ns)/1000000 AS ms FROM events GROUP BY op ORDER BY ms DESC";
    println!(
        "\n{}",
        style.dim(&format!(
            "gpuwhy explain --db {} says this again; anything else can be asked with SQL:",
            db.display()
        ))
    );
    println!("{}", style.dim(&format!("gpuwhy query --db {} \"{sql}\"", db.display())));
    Ok(())
}
