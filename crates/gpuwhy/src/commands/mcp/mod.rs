// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy mcp`: an MCP server for AI assistants.

mod token;

use crate::cli::Mcp;
use crate::output;
use crate::trace::{privileges, sudo::Caller};
use gpuwhy_capture::needs;
use gpuwhy_serve::{Config, Http, Need, Tls};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use token::Token;

pub(crate) fn run(args: Mcp) -> anyhow::Result<ExitCode> {
    // From here on this process runs as its caller, even if it was started as root.
    privileges::renounce_to_serve(Caller::from_env().as_ref())?;
    let token = args.http.map(|_| Token::find(args.token_file.as_deref())).transpose()?;
    let config = Config { folders: folders(&args), run: run_file(&args).map(Path::to_owned), check: Box::new(check) };
    match args.http.zip(token) {
        None => gpuwhy_serve::serve_stdio(config)?,
        Some((address, token)) => {
            let http = http(address, &args, &token);
            let settings = http.clone();
            gpuwhy_serve::serve_http(config, http, move |address| announce(&settings, &token, address))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The run to use by default.
fn run_file(args: &Mcp) -> Option<&Path> {
    args.file.as_deref().or(args.db.as_deref())
}

/// The given folders and the run file's folder; without either, the current one.
fn folders(args: &Mcp) -> Vec<PathBuf> {
    let mut folders = args.dir.clone();
    let of_run = run_file(args).and_then(Path::parent);
    match of_run {
        Some(folder) if folder.as_os_str().is_empty() => folders.push(".".into()),
        Some(folder) => folders.push(folder.into()),
        None if folders.is_empty() => folders.push(".".into()),
        None => {}
    }
    folders
}

fn http(address: SocketAddr, args: &Mcp, token: &Token) -> Http {
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    let tls = files.map(|(certificate, key)| Tls { certificate, key });
    Http { address, token: token.text.clone(), tls, hosts: args.allow_host.clone() }
}

fn announce(http: &Http, token: &Token, address: SocketAddr) {
    let scheme = if http.tls.is_some() { "https" } else { "http" };
    let loopback = address.ip().is_loopback();
    let reach = if loopback { "this machine only" } else { "other machines" };
    let say = |line: &str| output::say_aside(line);
    say(&format!(
        "gpuwhy: MCP server at {scheme}://{address}/mcp, reachable from {reach}; token required; Ctrl-C stops it"
    ));
    if let Some(words) = token.words() {
        say(&format!("gpuwhy: {words}"));
    }
    if !loopback && http.tls.is_none() {
        say("gpuwhy: no TLS: anyone on the network can read the token and all answers; give --tls-cert and --tls-key");
    }
}

fn check() -> Vec<Need> {
    let need = |need: needs::Need| Need {
        status: need.status.name(),
        name: need.name.to_string(),
        found: need.found,
        fix: need.fix,
    };
    needs::look(false).into_iter().map(need).collect()
}
