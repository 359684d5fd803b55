// SPDX-License-Identifier: Apache-2.0
//! Lines that a client sends to `gpuwhy mcp`.

use super::run_file;
use gpuwhy_serve::Config;
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Words of the protocol.
pub(super) const WORDS: &[&[u8]] = &[
    b"\"id\":null",
    b"\"id\":1.5",
    b"\"params\":[]",
    b"\"method\":\"tools/call\"",
    b"\n",
    b"\"run\":\"../../etc/passwd\"",
    b"\"limit\":-1",
    b"\"from\":\"1e308s\"",
    b"\"cursor\":\"x\"",
    b"\\u0000",
    b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\"}\n",
    b"\"pid\":\"99999999999\"",
    b"WITH RECURSIVE",
    b"[[[[[[[[[[[[",
];

const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
"#;
const CALLS: [&str; 8] = [
    r#""method":"tools/list""#,
    r#""method":"resources/read","params":{"uri":"gpuwhy://schema"}"#,
    r#""method":"prompts/get","params":{"name":"investigate","arguments":{"question":"why"}}"#,
    r#""method":"tools/call","params":{"name":"get_trace_stats","arguments":{"from":"0.5s","to":1.5}}"#,
    r#""method":"tools/call","params":{"name":"get_causal_chains","arguments":{"kind":"memory_leak","detail":true}}"#,
    r#""method":"tools/call","params":{"name":"get_timeline","arguments":{"buckets":20,"at":"1s","window":"100ms"}}"#,
    r#""method":"tools/call","params":{"name":"run_sql","arguments":{"sql":"SELECT op FROM events","limit":3,"timeout":"1s"}}"#,
    r#""method":"tools/call","params":{"name":"get_stacks","arguments":{"op":"cudaMalloc","by":"line","limit":"2"}}"#,
];

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let line = |(i, call): (usize, &&str)| format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{call}}}\n", i + 1);
    let each = CALLS.iter().enumerate().map(line);
    each.map(|line| format!("{HELLO}{line}").into_bytes()).collect()
}

/// A folder with one valid run, made once.
fn served() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap_or_else(|why| panic!("no folder: {why}"));
        for seed in run_file::seeds() {
            let wrote = std::fs::write(folder.path().join("run.db"), seed);
            wrote.unwrap_or_else(|why| panic!("{}: {why}", folder.path().display()));
        }
        folder
    });
    folder.path()
}

/// For any input, each line of the answer is JSON-RPC and no tool reports an internal error.
pub(super) fn mcp(data: &[u8]) {
    let config = Config { run: None, folders: vec![served().into()], check: Box::new(Vec::new) };
    // A client that breaks the protocol is disconnected: an error, but not a failure.
    let Ok(said) = gpuwhy_serve::answer_lines(config, data) else { return };
    for line in said.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line: Value =
            serde_json::from_slice(line).unwrap_or_else(|why| panic!("{why}: {:?}", String::from_utf8_lossy(line)));
        assert_eq!(line["jsonrpc"], "2.0", "{line}");
        assert!(!line.to_string().contains("fault in gpuwhy"), "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_lines_are_answered() {
        for seed in seeds() {
            let config = Config { run: None, folders: vec![served().into()], check: Box::new(Vec::new) };
            let said = String::from_utf8(gpuwhy_serve::answer_lines(config, &seed).unwrap()).unwrap();
            let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let good = |line: &Value| line["result"].is_object() && line["result"]["isError"] != true;
            assert!(lines.len() == 3 && lines.iter().all(good), "{said}");
        }
    }
}
