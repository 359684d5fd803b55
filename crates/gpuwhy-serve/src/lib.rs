// SPDX-License-Identifier: Apache-2.0
//! gpuwhy for other programs: an MCP server on stdio or HTTP.
//!
//! It gets its answers from `gpuwhy-ask`, as every other view does, and owns what a server adds: schemas, answer sizes,
//! limits, authentication, and which files may be read. It never writes files.

mod error;
mod folders;
mod http;
mod mcp;
mod runs;
mod stdio;
mod text;
mod tools;
mod work;

pub use error::Error;
pub use http::{Http, Tls};

use folders::Folders;
use mcp::Server;
use runs::Runs;
use std::path::PathBuf;
use std::sync::Arc;

/// A requirement for tracing, as reported by `gpuwhy check`.
#[derive(Debug, Clone)]
pub struct Need {
    /// Its name.
    pub name: String,
    /// `ok`, `absent` (optional) or `missing`.
    pub status: &'static str,
    /// What was found.
    pub found: String,
    /// The fix.
    pub fix: Option<String>,
}

/// What to serve.
pub struct Config {
    /// The default run; `None`: the newest in the folders.
    pub run: Option<PathBuf>,
    /// Folders whose files may be read.
    pub folders: Vec<PathBuf>,
    /// Checks this machine for tracing.
    pub check: Box<dyn Fn() -> Vec<Need> + Send + Sync>,
}

impl Config {
    fn server(self) -> Result<Server, Error> {
        let folders = Folders::new(&self.folders)?;
        // The file may not exist yet.
        let run = self.run.map(|run| std::path::absolute(&run).unwrap_or(run));
        Ok(Server::new(Arc::new(Runs::new(run, folders)), self.check.into()))
    }
}

/// Serves one client on stdin and stdout until it disconnects.
pub fn serve_stdio(config: Config) -> Result<(), Error> {
    let server = config.server()?;
    serve(stdio::serve(server))
}

/// Serves a client whose lines are all given, and returns the lines it would read up to the answer to a final `ping`.
/// For tests and fuzzing.
pub fn answer_lines(config: Config, lines: &[u8]) -> Result<Vec<u8>, Error> {
    let server = config.server()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let said = runtime.block_on(stdio::answer(server, lines.to_vec()));
    runtime.shutdown_background();
    said
}

/// Serves over HTTP until it is interrupted. `ready` is called with the address.
pub fn serve_http(config: Config, http: Http, ready: impl FnOnce(std::net::SocketAddr)) -> Result<(), Error> {
    let server = config.server()?;
    serve(http::serve(server, http, ready))
}

/// Maximum memory of SQLite for all requests together, bytes: half for sorting, half for the rest. A query that needs
/// more fails; without the limit, a query could exhaust the machine's memory.
const SQL_MEMORY: u64 = 2 << 30;

fn serve(serving: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    gpuwhy_store::limit_memory(SQL_MEMORY);
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(2).max_blocking_threads(16).enable_all().build()?;
    let ended = runtime.block_on(serving);
    // Neither unfinished requests nor the thread blocked on stdin may keep the server from ending.
    runtime.shutdown_background();
    ended
}
