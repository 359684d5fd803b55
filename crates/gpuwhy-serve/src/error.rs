// SPDX-License-Identifier: Apache-2.0
//! What can go wrong, in words an assistant or an administrator can act on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why a tool has no answer. The message goes to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// The question.
    #[error("{}", question(.0))]
    Ask(#[from] gpuwhy_ask::Error),
    /// The run file.
    #[error("{}", file(.0))]
    File(gpuwhy_store::Error),
    /// SQL that took too long.
    #[error("stopped after {} s: narrow it with a time range, or give a longer timeout (at most 30s)", .0.as_secs_f64())]
    SlowSql(Duration),
    /// Stacks.
    #[error(transparent)]
    Stacks(#[from] gpuwhy_store::StackError),
    /// The arguments.
    #[error("{0}")]
    Arguments(String),
    /// A path that was not allowed when the server was started.
    #[error(
        "{path} is not in a folder this server may read: it was started for {allowed}. Who starts the server can add folders"
    )]
    Forbidden {
        /// What was asked for.
        path: String,
        /// What is allowed.
        allowed: String,
    },
    /// No run is there yet.
    #[error("{path} is not there (yet): list_runs has the runs there are; somebody has to record one first")]
    NoRun {
        /// Where it was looked for.
        path: String,
    },
    /// The run was replaced.
    #[error("the run has changed since that cursor was given: ask again without it")]
    StaleCursor,
    /// It took too long.
    #[error("no answer within {} s: ask for a shorter time (from, to, since) or a process (pid)", .0.as_secs())]
    TooSlow(Duration),
    /// Others are asking.
    #[error("other questions are being worked on, and none was done within a minute: ask again")]
    Busy,
    /// The client does not want it any more.
    #[error("cancelled")]
    Cancelled,
    /// A fault.
    #[error("a fault in gpuwhy, please report it: {0}")]
    Fault(String),
}

impl From<gpuwhy_store::Error> for ToolError {
    fn from(wrong: gpuwhy_store::Error) -> Self {
        match wrong {
            // In the words of who asks here: there is no flag to raise.
            gpuwhy_store::Error::TimedOut { limit } => Self::SlowSql(limit),
            wrong => Self::File(wrong),
        }
    }
}

/// What is wrong with a question. An assistant has tools, not a command line.
fn question(wrong: &gpuwhy_ask::Error) -> String {
    match wrong {
        gpuwhy_ask::Error::UnknownProcess { pid } => {
            format!(
                "process {pid} is not in this run; run_sql with SELECT pid, name FROM processes lists those that are"
            )
        }
        gpuwhy_ask::Error::File(wrong) => file(wrong),
        wrong => wrong.to_string(),
    }
}

/// What is wrong with a run file.
fn file(wrong: &gpuwhy_store::Error) -> String {
    use gpuwhy_store::Error;
    const OTHERS: &str = "list_runs has the runs there are";
    match wrong {
        Error::NotFound { path } => format!("there is no run file {}: {OTHERS}", path.display()),
        Error::NotSqlite { path } => format!("{} is not a gpuwhy run file: {OTHERS}", path.display()),
        Error::NotARun { path } => {
            format!("{} is an SQLite database but not a gpuwhy run file: {OTHERS}", path.display())
        }
        Error::Corrupt { path, source } => {
            format!("{} is damaged ({source}), and cannot be read: {OTHERS}", path.display())
        }
        Error::WithoutWal { path } => {
            let path = path.display();
            format!(
                "{path} has no events: its gpuwhy was killed, and what it recorded is in {path}-wal, which is not beside \
                 it; without that file nothing is known of this run: {OTHERS}"
            )
        }
        Error::CorruptWithoutWal { path, source } => {
            let path = path.display();
            format!(
                "{path} cannot be read ({source}): its gpuwhy was killed, and {path}-wal, which belongs to it, is not \
                 beside it: {OTHERS}"
            )
        }
        Error::NotPermitted { path, owner } => {
            format!("{} belongs to user {owner}, and this server may not read it: {OTHERS}", path.display())
        }
        wrong => wrong.to_string(),
    }
}

/// Why the server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It has no address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A token that is easily guessed.
    #[error("the token has {0} characters: use at least 16, such as the output of `openssl rand -hex 32`")]
    ShortToken(usize),
    /// The certificate or key.
    #[error("cannot use {} for TLS: {why}", .path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A folder that was to be allowed.
    #[error("cannot allow the folder {}: {source}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The machine.
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
    /// The protocol.
    #[error("the client and gpuwhy could not agree: {0}")]
    Protocol(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_store::Error as Wrong;

    #[test]
    fn files_that_cannot_be_read_are_no_reason_to_run_commands() {
        let path = || PathBuf::from("run.db");
        for wrong in [
            Wrong::WithoutWal { path: path() },
            Wrong::Empty { path: path() },
            Wrong::NotPermitted { path: path(), owner: 1_000 },
            Wrong::NotFound { path: path() },
            Wrong::NotSqlite { path: path() },
            Wrong::NotARun { path: path() },
            Wrong::Newer { path: path(), version: 99 },
        ] {
            for said in [ToolError::from(wrong), ToolError::Ask(gpuwhy_ask::Error::File(Wrong::Empty { path: path() }))]
            {
                let said = said.to_string();
                let command = ["`", "(gpuwhy ", "gpuwhy repair", "gpuwhy trace", " --", "sqlite3"];
                assert!(said.contains("run.db") && !command.iter().any(|part| said.contains(part)), "{said}");
            }
        }
    }
}
