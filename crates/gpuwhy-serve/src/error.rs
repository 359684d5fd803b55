// SPDX-License-Identifier: Apache-2.0
//! Errors, worded so that an assistant or administrator can act on them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why a tool failed. The message goes to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// The request is invalid or failed.
    #[error("{}", question(.0))]
    Ask(#[from] gpuwhy_ask::Error),
    /// The run file.
    #[error("{}", file(.0))]
    File(gpuwhy_store::Error),
    /// SQL that took too long.
    #[error("stopped after {} s: narrow the query with a time range, or give a longer timeout (at most 30s)", .0.as_secs_f64())]
    SlowSql(Duration),
    /// Stacks.
    #[error(transparent)]
    Stacks(#[from] gpuwhy_store::StackError),
    /// The arguments.
    #[error("{0}")]
    Arguments(String),
    /// A path outside the allowed folders.
    #[error("{path} is outside the folders this server may read ({allowed}); its user can start it with other folders")]
    Forbidden {
        /// What was asked for.
        path: String,
        /// What is allowed.
        allowed: String,
    },
    /// The run does not exist yet.
    #[error("{path} does not exist (yet): call list_runs for the available runs, or have one recorded first")]
    NoRun {
        /// Where it was looked for.
        path: String,
    },
    /// The run was replaced.
    #[error("stale cursor: the run has changed since; ask again without a cursor")]
    StaleCursor,
    /// The request timed out.
    #[error("no answer within {} s: ask for a shorter time (from, to, since) or a process (pid)", .0.as_secs())]
    TooSlow(Duration),
    /// Too many requests.
    #[error("the server is busy: no other request finished within a minute; ask again")]
    Busy,
    /// The client cancelled the request.
    #[error("cancelled")]
    Cancelled,
    /// A bug.
    #[error("bug in gpuwhy, please report it: {0}")]
    Fault(String),
}

impl From<gpuwhy_store::Error> for ToolError {
    fn from(wrong: gpuwhy_store::Error) -> Self {
        match wrong {
            // MCP has a timeout argument instead of a --timeout flag.
            gpuwhy_store::Error::TimedOut { limit } => Self::SlowSql(limit),
            wrong => Self::File(wrong),
        }
    }
}

/// The message for an invalid request. An assistant has tools, not a command line.
fn question(wrong: &gpuwhy_ask::Error) -> String {
    match wrong {
        gpuwhy_ask::Error::UnknownProcess { pid } => {
            format!(
                "invalid pid {pid}: not in this run; run_sql with SELECT pid, name FROM processes lists its processes"
            )
        }
        gpuwhy_ask::Error::File(wrong) => file(wrong),
        wrong => wrong.to_string(),
    }
}

/// The message for a problem with a run file.
fn file(wrong: &gpuwhy_store::Error) -> String {
    use gpuwhy_store::Error;
    const OTHERS: &str = "call list_runs for the available runs";
    match wrong {
        Error::NotFound { path } => format!("no run file {}: {OTHERS}", path.display()),
        Error::NotSqlite { path } => format!("{} is not a gpuwhy run file: {OTHERS}", path.display()),
        Error::NotARun { path } => {
            format!("{} is an SQLite database but not a gpuwhy run file: {OTHERS}", path.display())
        }
        Error::Corrupt { path, source } => {
            format!("{} is damaged and unreadable ({source}): {OTHERS}", path.display())
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
    /// It cannot listen on the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A token that is easy to guess.
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
    /// An allowed folder does not exist or cannot be read.
    #[error("cannot allow the folder {}: {source}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An I/O error.
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
    /// A protocol error.
    #[error("MCP protocol error: {0}")]
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
