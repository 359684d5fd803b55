// SPDX-License-Identifier: Apache-2.0
//! gpuwhy for programs that ask over a connection: an MCP server on stdio or HTTP.
//!
//! It asks `gpuwhy-ask` what every other view asks, and owns what a connection needs beyond that: schemas, answers that fit,
//! limits, who may ask, and which files may be read. Nothing is ever written.

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

/// Something tracing needs, as `gpuwhy check` tells it.
#[derive(Debug, Clone)]
pub struct Need {
    /// What.
    pub name: String,
    /// `ok`, `absent` (it helps, but is not needed) or `missing`.
    pub status: &'static str,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub fix: Option<String>,
}

/// What is served.
pub struct Config {
    /// The run that is meant where none is named; `None`: the newest in the folders.
    pub run: Option<PathBuf>,
    /// Folders whose files may be read.
    pub folders: Vec<PathBuf>,
    /// What this machine has for tracing.
    pub check: Box<dyn Fn() -> Vec<Need> + Send + Sync>,
}

impl Config {
    fn server(self) -> Result<Server, Error> {
        let folders = Folders::new(&self.folders)?;
        // The file need not be there yet.
        let run = self.run.map(|run| std::path::absolute(&run).unwrap_or(run));
        Ok(Server::new(Arc::new(Runs::new(run, folders)), self.check.into()))
    }
}

/// Serves one client on standard input and output until it goes away.
pub fn serve_stdio(config: Config) -> Result<(), Error> {
    let server = config.server()?;
    serve(stdio::serve(server))
}

/// Serves a client all of whose lines are known beforehand; gives back the lines it would read, up to the answer to a `ping` that is
/// asked after them. For tests and fuzzing.
pub fn answer_lines(config: Config, lines: &[u8]) -> Result<Vec<u8>, Error> {
    let server = config.server()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let said = runtime.block_on(stdio::answer(server, lines.to_vec()));
    runtime.shutdown_background();
    said
}

/// Serves over HTTP until it is interrupted. `ready` hears the address.
pub fn serve_http(config: Config, http: Http, ready: impl FnOnce(std::net::SocketAddr)) -> Result<(), Error> {
    let server = config.server()?;
    serve(http::serve(server, http, ready))
}

/// What SQLite may take of memory for all questions together, bytes: half for what is sorted, half for the rest. One that wants
/// more fails; without this a query could make values until the machine has no memory left.
const SQL_MEMORY: u64 = 2 << 30;

fn serve(serving: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    gpuwhy_store::limit_memory(SQL_MEMORY);
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(2).max_blocking_threads(16).enable_all().build()?;
    let ended = runtime.block_on(serving);
    // Nobody waits for what is still worked on, and a thread that reads standard input waits for a client that may never speak
    // again: neither keeps the server from ending.
    runtime.shutdown_background();
    ended
}
