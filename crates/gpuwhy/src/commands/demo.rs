// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy demo`: a small training job on a simulated GPU, really traced. Only the GPU is simulated:
//! the processes, the scheduler and the eBPF probes are real.

use crate::cli::{Demo, Scenario};
use crate::commands::query;
use crate::output;
use crate::trace::{self, Display, Settings};
use anyhow::{Context, bail};
use gpuwhy_capture::{Options, Targets, needs};
use gpuwhy_store::{Limits, Reader};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

/// What to ask a run file first.
const QUESTIONS: [(&str, &str); 4] = [
    (
        "Which calls took the time?",
        "SELECT op, COUNT(*) AS calls, SUM(duration_ns)/1000000 AS ms, MAX(duration_ns)/1000 AS max_us \
         FROM events WHERE layer <> 'kernel' GROUP BY op ORDER BY ms DESC LIMIT 4",
    ),
    (
        "What did the launching thread wait for, and in which line?",
        "SELECT COALESCE(wait, reason) AS waited_for, top_line AS line, COUNT(*) AS times, \
         SUM(duration_ns)/1000000 AS ms FROM off_cpu LEFT JOIN stack_traces USING (stack_id) WHERE tid = \
         (SELECT tid FROM events WHERE op = 'cudaLaunchKernel' LIMIT 1) GROUP BY 1, 2 ORDER BY ms DESC LIMIT 3",
    ),
    (
        "Who used the CPU meanwhile, and in which line?",
        "SELECT name, top_line AS line, SUM(duration_ns)/1000000 AS cpu_ms FROM events \
         JOIN process_names USING (pid) LEFT JOIN stack_traces USING (stack_id) WHERE op = 'cpu_sample' \
         GROUP BY 1, 2 ORDER BY cpu_ms DESC LIMIT 5",
    ),
    (
        "How did launches and waits go, second by second?",
        "SELECT second, SUM(CASE WHEN op = 'cudaLaunchKernel' THEN calls END) AS launches, \
         SUM(CASE WHEN op = 'cudaStreamSync' THEN total_ns END)/1000000 AS sync_ms FROM seconds GROUP BY second",
    ),
];

pub(crate) fn run(args: &Demo) -> anyhow::Result<ExitCode> {
    needs::require()?;
    let folder = tempfile::Builder::new().prefix("gpuwhy-demo-").tempdir().context("cannot make a temporary folder")?;
    // The job may run as the user who called sudo, and must be able to read its program.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let sim = simgpu::install(folder.path()).context("cannot unpack the simulated GPU")?;
    let scenario = match args.scenario {
        Scenario::Dataloader => "dataloader",
        Scenario::CpuContention => "cpu-contention",
        Scenario::Healthy => "healthy",
    };
    println!("A small training job ({scenario}) runs on a simulated GPU; everything else about it is real.\n");
    let seconds = args.duration.as_secs_f64().to_string();
    let command = ["python3".into(), sim.train_py.into_os_string(), "--scenario".into(), scenario.into()];
    let settings = Settings {
        capture: Options { targets: Targets::Pids(Vec::new()), ..Default::default() },
        samples: true,
        command: command.into_iter().chain(["--seconds".into(), seconds.into()]).collect(),
        extra_env: vec![(OsString::from("LD_LIBRARY_PATH"), sim.dir.into_os_string())],
        duration: None,
        db: args.db.clone(),
        display: Display::Human,
    };
    let ended = trace::record(&settings)?;
    if ended.exit_code != 0 {
        bail!("the demo's job failed with exit code {}", ended.exit_code);
    }
    ask(&ended.summary.path)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows what can be asked, with the answers.
fn ask(db: &std::path::Path) -> anyhow::Result<()> {
    let style = output::stdout_style();
    let reader = Reader::open(db)?;
    for (question, sql) in QUESTIONS {
        println!(
            "\n{}\n{}",
            style.bold(question),
            style.dim(&format!("  gpuwhy query --db {} \"{sql}\"", db.display()))
        );
        let (table, _) = query::table(&reader, sql, &Limits::default())?;
        for line in table.lines(style) {
            println!("  {line}");
        }
    }
    Ok(())
}
