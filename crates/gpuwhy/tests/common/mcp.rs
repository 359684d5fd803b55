// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy mcp` as a test meets it: raw lines on its stdin and stdout, raw requests over TCP. No client stands between, so
//! that what no client would send can be sent.

use super::{GPUWHY, until};
use gpuwhy_model::{Call, CallFlags};
use gpuwhy_store::{NewRun, RunEnd, StackText, Writer};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// What clients of a server over HTTP send, unless a test gives it another token.
pub const TOKEN: &str = "correct-horse-battery-staple";

/// How long an answer may take before a test gives up. No answer is expected to take any particular time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where scripts/deps.sh puts the clients of the SDKs; `None` where it has not been run, which under CI is a failure.
pub fn clients() -> Option<&'static Path> {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    let tools = TOOLS.get_or_init(|| Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools"));
    let there = ["mcp-python/.made-of", "mcp-node/.made-of"].iter().all(|made| tools.join(made).exists());
    assert!(there || std::env::var_os("CI").is_none(), "no MCP clients in {}, and CI must not skip", tools.display());
    if !there {
        eprintln!("skipped: no MCP clients; `sh scripts/deps.sh test` installs them");
    }
    there.then_some(tools)
}

/// What goes before everything.
pub fn hello(id: u64) -> Value {
    let client = json!({"name": "raw", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params})
}

pub fn ready() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
}

pub fn call(id: u64, tool: &str, arguments: &Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

/// What a tool answered: its data, or why there are none.
pub fn answer(reply: &Value) -> Result<Value, String> {
    if let Some(error) = reply.get("error") {
        return Err(error["message"].as_str().unwrap().to_owned());
    }
    let result = &reply["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {reply}"));
    if result["isError"] == true {
        return Err(text.to_owned());
    }
    let data = result["structuredContent"].clone();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), data, "text and data say the same");
    Ok(data)
}

/// A server on its standard input and output.
pub struct Served {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Replies to others than who was waited for.
    early: VecDeque<Value>,
    next: u64,
}

impl Served {
    /// Serves a run file, and its folder.
    pub fn run(db: &Path) -> Self {
        Self::start(Command::new(GPUWHY).args(["mcp", "--db"]).arg(db))
    }

    /// Starts it and is introduced.
    pub fn start(command: &mut Command) -> Self {
        let mut served = Self::unintroduced(command);
        let reply = served.ask(&hello(0));
        assert_eq!(reply["result"]["serverInfo"]["name"], "gpuwhy", "{reply}");
        served.send(&ready());
        served
    }

    pub fn unintroduced(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output, early: VecDeque::new(), next: 1 }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A number no other request has.
    pub fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).and_then(|()| input.flush()).unwrap();
    }

    pub fn send(&mut self, message: &Value) {
        self.send_bytes(format!("{message}\n").as_bytes());
    }

    /// The next line, whoever it is for.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the server ended: {:?}", self.child.wait());
        line
    }

    /// The reply to a request; others are kept for who waits for them.
    pub fn reply(&mut self, id: u64) -> Value {
        if let Some(place) = self.early.iter().position(|reply| reply["id"] == id) {
            return self.early.remove(place).unwrap();
        }
        loop {
            let reply: Value = serde_json::from_str(&self.line()).unwrap();
            if reply["id"] == id {
                return reply;
            }
            self.early.push_back(reply);
        }
    }

    /// Replies to nobody in particular that have come: what cannot be read has no number.
    pub fn strays(&mut self) -> Vec<Value> {
        self.early.drain(..).collect()
    }

    pub fn ask(&mut self, message: &Value) -> Value {
        self.send(message);
        self.reply(message["id"].as_u64().unwrap())
    }

    pub fn call(&mut self, tool: &str, arguments: Value) -> Result<Value, String> {
        let id = self.id();
        answer(&self.ask(&call(id, tool, &arguments)))
    }

    pub fn sql(&mut self, sql: &str) -> Result<Value, String> {
        self.call("run_sql", json!({"sql": sql}))
    }

    /// Why a call is refused.
    pub fn refused(&mut self, tool: &str, arguments: Value) -> String {
        match self.call(tool, arguments.clone()) {
            Ok(answer) => panic!("{tool} {arguments} was answered: {answer}"),
            Err(why) => {
                assert!(why.chars().count() <= 1_000 && !why.contains("bug in gpuwhy"), "{tool}: {why}");
                why
            }
        }
    }

    /// Insists that a plain question is answered.
    pub fn still_serves(&mut self, after: &str) {
        let rows = self.sql("SELECT 1 + 1 AS two").unwrap_or_else(|why| panic!("after {after}: {why}"));
        assert_eq!(rows["rows"], json!([[2]]), "after {after}");
    }

    /// Closes its input, and its end.
    pub fn end(mut self) -> ExitStatus {
        drop(self.input.take());
        ended(&mut self.child)
    }

    /// Its end, which is somebody else's doing: its input stays open.
    pub fn wait(&mut self) -> ExitStatus {
        ended(&mut self.child)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A test that failed must not leave it behind; one that has ended does not mind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    until("the server ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// A server over HTTP.
pub struct Web {
    child: Child,
    /// What it said when it was ready.
    pub said: String,
    pub address: SocketAddr,
    /// What clients have to send.
    pub token: String,
}

impl Web {
    /// Serves a run file on a free port of this machine.
    pub fn run(db: &Path) -> Self {
        Self::start(Command::new(GPUWHY).args(["mcp", "--http", ":0", "--db"]).arg(db))
    }

    /// Starts it, with a token if it has none.
    pub fn start(command: &mut Command) -> Self {
        let of_command = |name: &str| command.get_envs().find(|(known, _)| *known == name).and_then(|(_, value)| value);
        let own = of_command("GPUWHY_TOKEN").map(|token| token.to_str().unwrap().to_owned());
        let from_file = command.get_args().any(|arg| arg == "--token-file");
        if own.is_none() && !from_file {
            command.env("GPUWHY_TOKEN", TOKEN);
        }
        let (web, _) = Self::with_token(command, own.unwrap_or(TOKEN.to_owned()));
        web
    }

    /// Starts it without a token and takes what it says to be the one it made; with the line that says so.
    pub fn with_made_token(command: &mut Command) -> (Self, String) {
        let (mut web, mut stderr) = Self::with_token(command, String::new());
        let mut line = String::new();
        until("it says its token", || {
            stderr.read_line(&mut line).unwrap();
            line.ends_with('\n')
        });
        let made = line.split_once("gpuwhy: token ").and_then(|(_, rest)| rest.split_once(';'));
        web.token = made.unwrap_or_else(|| panic!("it said {line:?}")).0.to_owned();
        (web, line)
    }

    fn with_token(command: &mut Command, token: String) -> (Self, BufReader<std::fs::File>) {
        // A file, not a pipe: what nobody reads must not stop it.
        let said_to = tempfile::NamedTempFile::new().unwrap();
        let mut child = command.stdin(Stdio::null()).stderr(said_to.reopen().unwrap()).spawn().unwrap();
        let mut stderr = BufReader::new(said_to.into_file());
        let mut said = String::new();
        until("it says where it is", || {
            stderr.read_line(&mut said).unwrap();
            said.ends_with('\n') || child.try_wait().unwrap().is_some()
        });
        let address = said.split_once("://").and_then(|(_, rest)| rest.split_once("/mcp"));
        let address = address.unwrap_or_else(|| panic!("it said {said:?}")).0.parse().unwrap();
        (Self { child, said, address, token }, stderr)
    }

    /// The header that shows the token.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// A request, with the token unless its headers say otherwise.
    pub fn request(&self, method: &str, path: &str, host: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let (mut headers, bearer) = (headers.to_vec(), self.bearer());
        if !headers.iter().any(|(name, _)| *name == "Authorization") {
            headers.push(("Authorization", &bearer));
        }
        request(method, path, host, &headers, body)
    }

    pub fn url(&self) -> String {
        let scheme = if self.said.contains("https://") { "https" } else { "http" };
        format!("{scheme}://{}/mcp", self.address)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes, and reads all that comes back.
    pub fn exchange(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect();
        // A server that has seen enough may close before all is written.
        let _ = stream.write_all(bytes);
        let mut came = Vec::new();
        let _ = stream.read_to_end(&mut came);
        Reply(String::from_utf8_lossy(&came).into_owned())
    }

    /// A request to /mcp with these headers beside the usual ones.
    pub fn post(&self, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.exchange(&self.request("POST", "/mcp", &self.address.to_string(), headers, body))
    }

    /// A call in a session of its own, answered.
    pub fn call(&self, headers: &[(&str, &str)], tool: &str, arguments: &Value) -> Result<Value, String> {
        let reply = self.post(headers, hello(1).to_string().as_bytes());
        assert_eq!(reply.status(), 200, "{reply:?}");
        let session = reply.header("mcp-session-id").unwrap();
        let mut headers = headers.to_vec();
        headers.extend([("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-06-18")]);
        assert_eq!(self.post(&headers, ready().to_string().as_bytes()).status(), 202);
        let reply = self.post(&headers, call(2, tool, arguments).to_string().as_bytes());
        assert_eq!(reply.status(), 200, "{reply:?}");
        let end = self.request("DELETE", "/mcp", &self.address.to_string(), &headers, b"");
        assert_eq!(self.exchange(&end).status(), 200, "a session that is ended is no session");
        answer(&reply.message(2))
    }

    pub fn still_serves(&self, after: &str) {
        let rows = self.call(&[], "run_sql", &json!({"sql": "SELECT 1 + 1 AS two"}));
        let rows = rows.unwrap_or_else(|why| panic!("after {after}: {why}"));
        assert_eq!(rows["rows"], json!([[2]]), "after {after}");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait(&mut self) -> ExitStatus {
        ended(&mut self.child)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(pid: u32, signal: &str) {
    super::succeed(Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()));
}

/// A whole HTTP request, after which the connection is closed.
pub fn request(method: &str, path: &str, host: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    head += "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n";
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Everything that came back.
#[derive(Debug)]
pub struct Reply(pub String);

impl Reply {
    /// The status, 0 where there is no reply at all.
    pub fn status(&self) -> u16 {
        self.0.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let head = self.0.split("\r\n\r\n").next()?;
        let named = head.lines().filter_map(|line| line.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.to_owned())
    }

    /// The JSON-RPC message with this number, of a body that is JSON or a stream of events.
    pub fn message(&self, id: u64) -> Value {
        let lines = self.0.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let mut messages = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        messages.find(|message| message["id"] == id).unwrap_or_else(|| panic!("no message {id} in {self:?}"))
    }
}

/// A process of [`made_run`].
pub const MADE_PID: u32 = 12_004;

/// A run file with so many calls of cudaMalloc, one every 10 ms, each from a line of its own. It began so many seconds after the
/// epoch; its process is called so.
pub fn made_run(path: &Path, began_s: u64, calls: u64, name: &str) {
    const SECOND: u64 = 1_000_000_000;
    let new = NewRun {
        start_unix_ns: began_s * SECOND,
        start_monotonic_ns: SECOND,
        command: Some(format!("python3 {name}")),
        ..NewRun::default()
    };
    let mut writer = Writer::create(path, &new).unwrap().writer;
    writer.set_process(MADE_PID, name);
    let op = gpuwhy_model::ops::by_function("cudaMalloc").unwrap().id;
    let mut rows: Vec<Call> = Vec::new();
    for i in 0..calls {
        let frames = format!("/me/{name}.py:{} {name}\n/me/{name}.py:1 main", 10 + i);
        writer.add_stack(i + 1, StackText { frames, top_line: "".into() });
        rows.push(Call {
            start_ns: SECOND + (i + 1) * 10_000_000,
            duration_ns: 1_000_000 + i,
            pid: MADE_PID,
            tid: MADE_PID,
            op,
            device: None,
            stream: None,
            arg0: Some(1_000),
            arg1: None,
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: Some(i + 1),
        });
    }
    writer.write_calls(&mut rows).unwrap();
    let end = 2 * SECOND + calls * 10_000_000;
    let stop_unix_ns = began_s * SECOND + end - SECOND;
    writer.finish(&RunEnd { stop_unix_ns, stop_monotonic_ns: end, stop_reason: "exit".into(), ..RunEnd::default() });
}
