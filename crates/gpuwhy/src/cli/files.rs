// SPDX-License-Identifier: Apache-2.0
//! Arguments of the commands that work on whole run files: repair, share, merge.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
While gpuwhy records, the newest events are in RUN-wal, a file next to RUN. If gpuwhy is killed, both files stay and \
belong together: copy or move both. repair combines them into one file that can be copied on its own, and reports \
what is in it. Without RUN-wal, the newest events are missing; repair says from when on. Exits with 1 if the file is damaged.

Examples:
  gpuwhy repair gpuwhy.db                            in place; removes gpuwhy.db-wal
  gpuwhy repair gpuwhy.db -o whole.db                leaves both files as they are
  scp 'node7:run.db*' . && gpuwhy repair run.db      from another machine: copy both files")]
pub(crate) struct Repair {
    /// The run file; its -wal is read from the same folder
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Write the result to this file and leave RUN unchanged
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A run file contains command lines, paths and names. The copy keeps times, sizes and counts, so `explain` gives the \
same answer, and only the names that an answer needs:
  removed   command arguments, gpuwhy's flags, folders, user names in /home, ids of containers,
            cgroups and GPUs, findings (explaining the copy finds them again), source lines unless
            --source is given
  kept      programs (python3), file names without folders (train.py; packages from
            site-packages/ on), functions, GPU kernels, threads, process ids, the time of the run,
            CPU and GPU models, versions
share lists the programs and files that the copy names: check the list before you pass the copy on.

Examples:
  gpuwhy share run.db                                writes run-shared.db
  gpuwhy share run.db -o report.db --hide acme       removes the word acme everywhere
  gpuwhy explain report.db                           shows what others will see
  gpuwhy query --db report.db \"SELECT frames FROM stack_traces\"")]
pub(crate) struct Share {
    /// The run file
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// The copy to write [default: RUN with -shared before its extension]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Hide this word everywhere: the name of a project, machine or user (repeatable). This machine's name and your
    /// user name are always hidden
    #[arg(long, value_name = "WORD")]
    pub(crate) hide: Vec<String>,
    /// Keep source lines, if the run has any
    #[arg(long)]
    pub(crate) source: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Times are aligned by the machines' wall clocks. Process and thread ids of the second run start at 4194304, those of \
the third at 8388608, and so on; CPUs and GPUs are renumbered to follow on from the previous run. The view merged \
lists the origin of each run (docs/run-file.md). merge never leaves a partial result and never overwrites a file. It \
refuses runs that are still being recorded.

Examples:
  gpuwhy merge -o all.db node0.db node1.db
  gpuwhy merge -o ranks.db rank*.db && gpuwhy explain --db ranks.db
  gpuwhy query --db all.db \"SELECT input, path, pid_offset, human_time(clock_offset_ns) FROM merged\"")]
pub(crate) struct Merge {
    /// The run file to write
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The run files to merge; if gpuwhy was killed, the -wal is read from the same folder
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
}
