// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy mcp`: an AI assistant asks.

use crate::cli::Mcp;
use crate::output;
use anyhow::Context;
use gpuwhy_capture::needs;
use gpuwhy_serve::{Config, Http, Need, Tls};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where the token is looked for; a flag would be seen by everybody on the machine.
const TOKEN: &str = "GPUWHY_TOKEN";

pub(crate) fn run(args: Mcp) -> anyhow::Result<ExitCode> {
    let http = args.http.map(|address| http(address, &args)).transpose()?;
    let config = Config { folders: folders(&args), run: run_file(&args).map(Path::to_owned), check: Box::new(check) };
    match http {
        None => gpuwhy_serve::serve_stdio(config)?,
        Some(http) => {
            let told = http.clone();
            gpuwhy_serve::serve_http(config, http, move |address| tell(&told, address))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The run that is meant where none is named.
fn run_file(args: &Mcp) -> Option<&Path> {
    args.file.as_deref().or(args.db.as_deref())
}

/// Those given, and the run file's; without either, the current one.
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

fn http(address: SocketAddr, args: &Mcp) -> anyhow::Result<Http> {
    let token = match &args.token_file {
        Some(path) => Some(std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?),
        None => std::env::var(TOKEN).ok(),
    };
    let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    let tls = files.map(|(certificate, key)| Tls { certificate, key });
    Ok(Http { address, token, tls, hosts: args.allow_host.clone() })
}

fn tell(http: &Http, address: SocketAddr) {
    let scheme = if http.tls.is_some() { "https" } else { "http" };
    let loopback = address.ip().is_loopback();
    let reach = if loopback { "this machine alone" } else { "other machines, too" };
    let token = if http.token.is_some() { ", with a token" } else { "" };
    output::say_aside(&format!("gpuwhy: MCP at {scheme}://{address}/mcp, for {reach}{token}; Ctrl-C ends it"));
    if !loopback && http.tls.is_none() {
        output::say_aside("gpuwhy: without --tls-cert and --tls-key the token and all answers can be read on the way");
    }
}

fn check() -> Vec<Need> {
    let need = |need: needs::Need| Need {
        status: need.status.name(),
        name: need.name.to_string(),
        found: need.found,
        fix: need.fix,
    };
    needs::look().into_iter().map(need).collect()
}
