// SPDX-License-Identifier: Apache-2.0
//! The command line of what is done with run files as such.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
While gpuwhy records, the newest events are in RUN-wal, a file beside RUN. If gpuwhy is killed both stay, and belong
together: copy or move both. repair makes one file of them that can be copied alone, and says what is in it. Without
RUN-wal it does what it can, and says from when on events are missing.
Exits with 1 if something in the file is damaged.

Examples:
  gpuwhy repair gpuwhy.db                            in place: gpuwhy.db-wal is gone afterwards
  gpuwhy repair gpuwhy.db -o whole.db                both stay as they are
  scp 'node7:run.db*' . && gpuwhy repair run.db      of another machine, both files")]
pub(crate) struct Repair {
    /// The run file; its -wal is taken from beside it
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Write the result here and leave RUN as it is
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A run file holds command lines, paths and names. The copy keeps times, sizes and counts, so that it is explained
like the original, and of names what an answer needs:
  gone      arguments of commands, gpuwhy's flags, folders, names of users in /home, ids of containers, cgroups and
            GPUs, findings (explaining the copy finds them again), lines of source unless --source is given
  left      programs (python3), files without folders (train.py; of packages from site-packages/ on), functions, GPU
            kernels, threads, process ids, when it ran, models of CPU and GPU, versions
It says which programs and files are named in it: look these over before you pass it on.

Examples:
  gpuwhy share run.db                                makes run-shared.db
  gpuwhy share run.db -o report.db --hide acme       and acme is not in it, wherever it stood
  gpuwhy explain report.db                           what others will see
  gpuwhy query --db report.db \"SELECT frames FROM stack_traces\"")]
pub(crate) struct Share {
    /// The run file
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// The copy; by default RUN with -shared before its ending
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Hide this word wherever it stands: the name of a project, a machine, a user (may be given several times). This
    /// machine's name and yours are hidden anyhow
    #[arg(long, value_name = "WORD")]
    pub(crate) hide: Vec<String>,
    /// Keep lines of source, if the run has any
    #[arg(long)]
    pub(crate) source: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Times are aligned by the wall clocks of the machines. Processes and threads of the second run have
numbers from 4194304 on, those of the third from 8388608 on, and so forth; CPUs and GPUs are
numbered on. The view merged tells what came from where (docs/run-file.md). The result is made whole
or not at all, and never in the place of another file. Runs that are still recorded are refused.

Examples:
  gpuwhy merge -o all.db node0.db node1.db
  gpuwhy merge -o ranks.db rank*.db && gpuwhy explain --db ranks.db
  gpuwhy query --db all.db \"SELECT input, path, pid_offset, human_time(clock_offset_ns) FROM merged\"")]
pub(crate) struct Merge {
    /// The run file to make
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The run files to merge; the -wal of one whose gpuwhy was killed is taken from beside it
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
}
