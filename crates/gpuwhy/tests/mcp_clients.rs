// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy mcp` with the clients that assistants are built on, Python's SDK and TypeScript's, over both transports: what they
//! are told is what the command line says of the same run, really recorded.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::mcp::{Web, clients};
use common::{GPUWHY, Place, can_trace, one_at_a_time, succeed};
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// The largest answer where nothing else is asked for, bytes.
const SHORT: usize = 4096;
/// A profiler's trace with one kernel.
const TRACE: &str = r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": [
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {"device": 0, "stream": 7}}]}"#;

// ---- the clients ----

/// A script with one of the SDKs: it is told what to do, and tells what came of it.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// One of the SDKs.
#[derive(Debug, Clone, Copy)]
enum Sdk {
    /// Python's, with the newest protocol that both know.
    Python,
    /// Python's with the handshake of 2025 and before.
    PythonLegacy,
    TypeScript,
}

impl Sdk {
    const ALL: [Self; 3] = [Self::Python, Self::PythonLegacy, Self::TypeScript];

    fn command(self, tools: &Path, place: &Place) -> Command {
        let script = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp").join(name);
        if let Self::TypeScript = self {
            // Node looks for packages beside the script.
            let (here, packages) = (place.dir.path().join("client.mjs"), place.dir.path().join("node_modules"));
            std::fs::copy(script("client.mjs"), &here).unwrap();
            if !packages.exists() {
                std::os::unix::fs::symlink(tools.join("mcp-node/node_modules"), packages).unwrap();
            }
            let mut command = Command::new("node");
            command.arg(here);
            return command;
        }
        let mut command = Command::new(tools.join("mcp-python/bin/python"));
        command.arg("-B").arg(script("client.py"));
        command.arg(if let Self::PythonLegacy = self { "legacy" } else { "auto" });
        command
    }
}

impl Client {
    /// Starts it and waits until it is connected, or tells why it is not.
    fn start(command: &mut Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut client = Self { child, input, output };
        match client.told() {
            Ok(_) => Ok(client),
            Err(why) => {
                assert!(!client.child.wait().unwrap().success());
                Err(why)
            }
        }
    }

    fn told(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let mut said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}: {}", self.complaints()));
        said.get("failed").map_or_else(|| Ok(()), |why| Err(why.as_str().unwrap().to_owned()))?;
        Ok(said["ok"].take())
    }

    fn complaints(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }

    fn try_to(&mut self, what: &Value) -> Result<Value, String> {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
        self.told()
    }

    fn ask(&mut self, what: &Value) -> Value {
        self.try_to(what).unwrap_or_else(|why| panic!("{what}: {why}"))
    }

    /// A tool's whole result.
    fn result(&mut self, tool: &str, arguments: &Value) -> Value {
        self.ask(&json!({"do": "call", "name": tool, "arguments": arguments}))
    }

    /// A tool's answer, which must be one, in both of its forms.
    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.result(tool, arguments);
        assert_ne!(result["isError"], true, "{tool} {arguments}: {result}");
        let text = result["content"][0]["text"].as_str().unwrap();
        let (text, data) = (serde_json::from_str(text).unwrap(), result["structuredContent"].clone());
        assert_eq!(in_javascript(text), in_javascript(data), "{tool}");
        if ["limit", "buckets"].iter().all(|name| arguments.get(name).is_none()) {
            let bytes = result.to_string().len();
            assert!(bytes < SHORT, "{tool} {arguments}: {bytes} bytes: {result}");
        }
        result["structuredContent"].clone()
    }

    /// All entries of an answer that comes in pages.
    fn pages(&mut self, tool: &str, entries: &str, arguments: &Value) -> Vec<Value> {
        let (mut found, mut arguments) = (Vec::new(), arguments.clone());
        loop {
            let page = self.call(tool, &arguments);
            let new = page[entries].as_array().unwrap();
            assert!(!new.is_empty() || page["total"] == 0, "a page has something: {page}");
            found.extend(new.iter().cloned());
            let Some(next) = page["next_cursor"].as_str() else {
                assert_eq!(page["total"], found.len(), "{tool} {arguments}");
                return found;
            };
            arguments["cursor"] = next.into();
        }
    }

    /// Lets it go, which it must do quietly.
    fn end(mut self) {
        drop(self.input.take());
        let said = self.complaints();
        assert!(self.child.wait().unwrap().success(), "{said}");
        assert_eq!(said, "", "a client that complains has something to complain about");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- the run, and what the command line says of it ----

/// A small training job that waits for its data, recorded once.
fn recorded() -> &'static Place {
    static RUN: OnceLock<Place> = OnceLock::new();
    RUN.get_or_init(|| {
        let place = Place::new();
        succeed(Command::new(GPUWHY).args(["demo", "dataloader", "--duration", "4s", "--db"]).arg(place.db()));
        std::fs::write(place.dir.path().join("trace.json"), TRACE).unwrap();
        place
    })
}

fn command_line(place: &Place, args: &[&str]) -> Value {
    let output = succeed(Command::new(GPUWHY).args(args).arg("--json").arg("--db").arg(place.db()));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A value whose numbers are written as JavaScript writes them, which has one kind: 2.0 is 2.
fn in_javascript(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64().filter(|x| number.is_f64() && x.fract() == 0.0) {
            Some(whole) => json!(whole as i64),
            None => Value::Number(number),
        },
        Value::Array(values) => values.into_iter().map(in_javascript).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, in_javascript(value))).collect(),
        other => other,
    }
}

/// Each field of some entries.
fn fields(entries: &[Value], names: &[&str]) -> Vec<Vec<Value>> {
    entries.iter().map(|entry| names.iter().map(|name| entry[name].clone()).collect()).collect()
}

// ---- what every client must be told ----

fn everything_is_told(client: &mut Client, place: &Place) {
    let about = client.ask(&json!({"do": "about"}));
    assert_eq!(about["server"]["name"], "gpuwhy");
    let tools = client.ask(&json!({"do": "tools"}));
    let tools = tools.as_array().unwrap();
    tools.iter().for_each(is_well_described);
    for tool in tools {
        is_answered_as_described(client, tool);
    }
    findings_are_those_of_explain(client, place);
    lines_are_those_of_stacks(client, place);
    sums_are_those_of_query(client, place);
    resources_can_be_read(client);
    let prompt = prompt_of(client);
    let described: Vec<&str> = tools.iter().map(|tool| tool["description"].as_str().unwrap()).collect();
    let texts = [prompt.as_str(), about["instructions"].as_str().unwrap(), &described.concat()].concat();
    everything_named_is_there(client, tools, &texts);
    what_is_wrong_is_told(client);
}

fn is_well_described(tool: &Value) {
    for schema in ["inputSchema", "outputSchema"] {
        assert_eq!(tool[schema]["type"], "object", "{tool}");
    }
    let hints = &tool["annotations"];
    assert_eq!(hints["readOnlyHint"], true, "{tool}");
    assert!(tool["description"].as_str().unwrap().len() > 20 && tool["title"].is_string(), "{tool}");
}

/// Calls a tool with nothing but what it needs.
fn is_answered_as_described(client: &mut Client, tool: &Value) {
    let name = tool["name"].as_str().unwrap();
    let mut arguments = Map::new();
    for needed in tool["inputSchema"]["required"].as_array().into_iter().flatten() {
        let value = match needed.as_str().unwrap() {
            "before" => "run.db",
            "path" => "trace.json",
            "sql" => "SELECT * FROM events",
            other => panic!("{name} needs {other}: give it one here"),
        };
        arguments.insert(needed.as_str().unwrap().to_owned(), value.into());
    }
    let answer = client.call(name, &arguments.into());
    // The SDKs look at every answer themselves. That they do, and can say no, is seen here.
    let mut is_valid = |content: &Value| client.ask(&json!({"do": "is_valid", "name": name, "content": content}));
    assert_eq!(is_valid(&answer), true, "{name}");
    assert_eq!(is_valid(&json!({})), false, "{name}: a schema that everything fits says nothing");
    let mut wrong = answer.clone();
    let first = wrong.as_object_mut().unwrap().values_mut().next().unwrap();
    *first = if first.is_object() { json!(["not", "this"]) } else { json!({"neither": ["this", "nor that"]}) };
    assert_eq!(is_valid(&wrong), false, "{name}: {wrong}");
}

fn findings_are_those_of_explain(client: &mut Client, place: &Place) {
    let explained = command_line(place, &["explain"]);
    let expected: Vec<Value> = explained["findings"].as_array().unwrap().iter().map(as_told).collect();
    assert!(!expected.is_empty(), "{explained}");
    let names = ["kind", "severity", "lost_ns", "pid", "root_cause", "line"];
    for arguments in [json!({}), json!({"limit": 1}), json!({"limit": 100, "detail": true})] {
        let told = client.pages("get_causal_chains", "findings", &arguments);
        assert_eq!(fields(&told, &names), fields(&expected, &names), "{arguments}");
    }
    let chains = client.call("get_causal_chains", &json!({"limit": 100}));
    for name in ["verdict", "gpu_idle_min_ns", "gpu_idle_max_ns", "wall_ns"] {
        let verdict = explained[name].as_str().map(|verdict| cut(verdict, 420).into());
        assert_eq!(chains[name], verdict.unwrap_or_else(|| explained[name].clone()), "{name}");
    }
    let read = client.ask(&json!({"do": "read", "uri": "gpuwhy://findings"}));
    let read: Value = serde_json::from_str(read["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(fields(read["findings"].as_array().unwrap(), &names), fields(&expected, &names));
}

/// A finding of `explain --json` in the server's form.
fn as_told(finding: &Value) -> Value {
    let mut told = finding.clone();
    let chain = finding["chain"].as_array().unwrap();
    let mut lines = [&finding["root_cause"]["line"]].into_iter().chain(chain.iter().rev().map(|link| &link["line"]));
    told["line"] = lines.find(|line| line.is_string()).cloned().unwrap_or_default();
    told["root_cause"] = finding["root_cause"]["kind"].clone();
    told
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn lines_are_those_of_stacks(client: &mut Client, place: &Place) {
    let names = ["calls", "total_ns", "max_ns"];
    for (by, op) in [("line", None), ("stack", None), ("line", Some("sched_switch")), ("stack", Some("sched_switch"))] {
        let mut args = vec!["stacks", "--by", by, "--limit", "100000"];
        args.extend(op.iter().flat_map(|op| ["--op", op]));
        let expected = command_line(place, &args);
        let groups = expected["groups"].as_array().unwrap();
        let lines: Vec<Value> =
            groups.iter().map(|group| cut(group["top_line"].as_str().unwrap(), 120).into()).collect();
        for limit in [None, Some(3)] {
            let mut arguments = json!({"by": by});
            op.into_iter().for_each(|op| arguments["op"] = op.into());
            limit.into_iter().for_each(|limit| arguments["limit"] = limit.into());
            let told = client.pages("get_stacks", "groups", &arguments);
            assert_eq!(fields(&told, &names), fields(groups, &names), "{arguments}");
            assert_eq!(fields(&told, &["name"]).concat(), lines, "{arguments}");
        }
        let head = client.call("get_stacks", &json!({"by": by, "op": op}));
        assert_eq!(
            fields(&[head], &["calls", "total_ns", "unit"]),
            fields(&[expected], &["calls", "total_ns", "unit"])
        );
    }
}

fn sums_are_those_of_query(client: &mut Client, place: &Place) {
    // The allocator's reports are no calls of CUDA: get_memory answers for them.
    let cuda = "op NOT IN (SELECT op FROM ops WHERE layer IN ('kernel', 'torch'))";
    let sql = format!(
        "SELECT op, SUM(calls) AS calls, SUM(total_ns) AS total_ns, MAX(max_ns) AS max_ns FROM seconds WHERE {cuda} \
         GROUP BY op ORDER BY SUM(total_ns) DESC, SUM(calls) DESC, op"
    );
    let expected = command_line(place, &["query", &sql]);
    let expected = expected.as_array().unwrap();
    let names = ["op", "calls", "total_ns", "max_ns"];
    for arguments in [json!({}), json!({"limit": 2})] {
        let told = client.pages("get_trace_stats", "ops", &arguments);
        assert_eq!(fields(&told, &names), fields(expected, &names), "{arguments}");
    }
    let told = client.call("run_sql", &json!({"sql": sql, "limit": 1000}));
    assert_eq!(told["columns"], json!(names));
    assert_eq!(told["rows"], json!(fields(expected, &names)));
    let launches = expected.iter().find(|op| op["op"] == "cudaLaunchKernel").unwrap();
    let timeline = client.call("get_timeline", &json!({"buckets": 40}));
    let pieces = timeline["buckets"].as_array().unwrap();
    let told: u64 = pieces.iter().map(|piece| piece["launches"].as_u64().unwrap()).sum();
    assert_eq!(launches["calls"], told);
}

fn resources_can_be_read(client: &mut Client) {
    let resources = client.ask(&json!({"do": "resources"}));
    for (uri, says) in [
        ("gpuwhy://schema", "events(timestamp, duration_ns, pid, "),
        ("gpuwhy://glossary", "input_starved: "),
        ("gpuwhy://findings", "\"kind\": \"input_starved\""),
    ] {
        assert!(resources.as_array().unwrap().iter().any(|resource| resource["uri"] == uri), "{resources}");
        let read = client.ask(&json!({"do": "read", "uri": uri}));
        assert!(read["contents"][0]["text"].as_str().unwrap().contains(says), "{uri}: {read}");
    }
}

fn prompt_of(client: &mut Client) -> String {
    let prompts = client.ask(&json!({"do": "prompts"}));
    assert!(prompts.as_array().unwrap().iter().any(|prompt| prompt["name"] == "investigate"), "{prompts}");
    let mut get = |arguments: Value| {
        let prompt = client.ask(&json!({"do": "prompt", "name": "investigate", "arguments": arguments}));
        prompt["messages"][0]["content"]["text"].as_str().unwrap().to_owned()
    };
    let asked = get(json!({"question": "Why is step 7 slow?", "run": "night.db"}));
    assert!(asked.starts_with("Why is step 7 slow?") && asked.contains("run=\"night.db\""), "{asked}");
    get(json!({}))
}

/// Whoever is sent to a tool or a resource finds it.
fn everything_named_is_there(client: &mut Client, tools: &[Value], texts: &str) {
    let words = texts.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    let named = words.filter(|word| ["get_", "list_", "run_", "compare_"].iter().any(|verb| word.starts_with(verb)));
    for name in named {
        assert!(tools.iter().any(|tool| tool["name"] == name), "there is no tool {name}");
    }
    let uris = texts.split("gpuwhy://").skip(1).filter_map(|rest| rest.split(|c: char| !c.is_ascii_lowercase()).next());
    for uri in uris {
        client.ask(&json!({"do": "read", "uri": format!("gpuwhy://{uri}")}));
    }
    let sql = tools.iter().find(|tool| tool["name"] == "run_sql").unwrap()["description"].as_str().unwrap();
    let mut before: Vec<&str> = sql.split('(').collect();
    before.pop();
    let functions = before.iter().filter_map(|text| text.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next());
    for function in functions.filter(|name| !name.is_empty()) {
        let known = format!("SELECT COUNT(*) FROM pragma_function_list WHERE name = '{function}'");
        assert_ne!(client.call("run_sql", &json!({"sql": known}))["rows"][0][0], 0, "there is no function {function}");
    }
}

fn what_is_wrong_is_told(client: &mut Client) {
    let refused = client.result("get_trace_stats", &json!({"run": "../secret.db"}));
    assert_eq!(refused["isError"], true, "an assistant reads why: {refused}");
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("folders this server may read"), "{refused}");
    let unknown = client.try_to(&json!({"do": "call", "name": "rm", "arguments": {}})).unwrap_err();
    assert!(unknown.contains("unknown tool \"rm\""), "{unknown}");
    let unknown = client.try_to(&json!({"do": "read", "uri": "gpuwhy://nothing"})).unwrap_err();
    assert!(unknown.contains("unknown resource"), "{unknown}");
}

// ---- both SDKs, both transports ----

#[test]
fn clients_that_start_it_are_told_everything() {
    let (Some(tools), true) = (clients(), can_trace()) else { return };
    let _lock = one_at_a_time();
    let place = recorded();
    for sdk in Sdk::ALL {
        let mut command = sdk.command(tools, place);
        command.args(["stdio", GPUWHY, "mcp", "--db"]).arg(place.db());
        let mut client = Client::start(&mut command).unwrap_or_else(|why| panic!("{sdk:?}: {why}"));
        everything_is_told(&mut client, place);
        client.end();
    }
}

#[test]
fn clients_over_http_are_told_everything() {
    let (Some(tools), true) = (clients(), can_trace()) else { return };
    let _lock = one_at_a_time();
    let place = recorded();
    let web = Web::run(&place.db());
    for sdk in Sdk::ALL {
        let mut command = sdk.command(tools, place);
        command.arg("http").arg(web.url());
        if !matches!(sdk, Sdk::TypeScript) {
            // No certificate.
            command.arg("");
        }
        let mut client = Client::start(command.arg(&web.token)).unwrap_or_else(|why| panic!("{sdk:?}: {why}"));
        everything_is_told(&mut client, place);
        client.end();
    }
}

#[test]
fn with_tls_and_a_token_only_who_has_both_is_served() {
    let Some(tools) = clients() else { return };
    const TOKEN: &str = "correct-horse-battery-staple";
    let place = Place::new();
    common::mcp::made_run(&place.db(), 1_000, 30, "train");
    let [certificate, key, token] = ["cert.pem", "key.pem", "token"].map(|name| place.dir.path().join(name));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=gpuwhy", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]);
    openssl.args(["-addext", "keyUsage=digitalSignature,keyCertSign"]);
    succeed(openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate));
    std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut server = Command::new(GPUWHY);
    server.args(["mcp", "--http", ":0", "--db"]).arg(place.db()).arg("--token-file").arg(&token);
    let web = Web::start(server.arg("--tls-cert").arg(&certificate).arg("--tls-key").arg(&key));
    assert!(web.url().starts_with("https://"), "{}", web.said);

    let certificate = certificate.to_str().unwrap();
    let start = |sdk: Sdk, token: &str| {
        let mut command = sdk.command(tools, &place);
        command.args(["http", &web.url()]);
        match sdk {
            Sdk::TypeScript => command.env("NODE_EXTRA_CA_CERTS", certificate),
            _ => command.arg(certificate),
        };
        Client::start(command.args(Some(token).filter(|token| !token.is_empty())))
    };
    for sdk in Sdk::ALL {
        let mut client = start(sdk, TOKEN).unwrap_or_else(|why| panic!("{sdk:?}: {why}"));
        let rows = client.call("run_sql", &json!({"sql": "SELECT COUNT(*) FROM events"}));
        assert_eq!(rows["rows"], json!([[30]]));
        client.end();
        for wrong in ["", "correct-horse-battery-stable"] {
            let why = start(sdk, wrong).err().unwrap_or_else(|| panic!("{sdk:?} was served with the token {wrong:?}"));
            assert!(why.contains("401") || why.contains("token required"), "{sdk:?}: {why}");
        }
    }
    let mut command = Sdk::Python.command(tools, &place);
    let why = Client::start(command.args(["http", &web.url()])).err().unwrap();
    assert!(why.contains("CERTIFICATE_VERIFY_FAILED"), "a certificate nobody vouches for: {why}");
}
