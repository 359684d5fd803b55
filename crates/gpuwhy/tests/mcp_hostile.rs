// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy mcp` and what no good client sends, on standard input and output: a clear error each time, and the next question is
//! answered in the same session.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::mcp::{Served, answer, call, hello, made_run, signal};
use common::{GPUWHY, Place};
use serde_json::{Value, json};
use std::process::Command;

/// Never ends by itself.
const BOMB: &str = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT count(*) FROM c";

fn served() -> (Place, Served) {
    let place = Place::new();
    made_run(&place.db(), 1_000, 30, "train");
    let served = Served::run(&place.db());
    (place, served)
}

// ---- messages ----

#[test]
fn what_is_no_message_is_answered_and_the_session_goes_on() {
    let (_place, mut served) = served();
    let deep = |levels: usize| ["[".repeat(levels), "]".repeat(levels)].concat().into_bytes();
    let long = vec![b'x'; 3 << 20];
    let odd: [(&str, &[u8]); 16] = [
        ("half an object", b"{\"jsonrpc\""),
        ("words", b"hello"),
        ("a number", b"42"),
        ("null", b"null"),
        ("an empty list", b"[]"),
        ("a list", b"[{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"ping\"}]"),
        ("no method", b"{\"jsonrpc\":\"2.0\",\"id\":5}"),
        ("another version", b"{\"jsonrpc\":\"1.0\",\"id\":5,\"method\":\"ping\"}"),
        ("an object for a number", b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":1}"),
        ("a method that is a list", b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":[]}"),
        ("no UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"\xff\xfe\"}"),
        ("bytes", b"\x00\x01\x02\x80\x81\xff{}"),
        ("half a character", b"\"\\ud800\""),
        ("a deep list", &deep(100_000)),
        ("a list deeper than the reader goes", &deep(200)),
        ("three megabytes", &long),
    ];
    for (what, bytes) in odd {
        served.send_bytes(&[bytes, b"\n"].concat());
        served.still_serves(what);
        let told = served.strays();
        assert_eq!(told.len(), 1, "{what}: {told:?}");
        let code = told[0]["error"]["code"].as_i64().unwrap();
        assert!([-32700, -32600].contains(&code), "{what}: {told:?}");
        assert!(!told[0]["error"]["message"].as_str().unwrap().is_empty());
    }
}

#[test]
fn what_is_for_nobody_is_passed_over() {
    let (_place, mut served) = served();
    for odd in [
        json!({"jsonrpc": "2.0", "method": "notifications/of_something_new", "params": {"x": 1}}),
        json!({"jsonrpc": "2.0", "id": 900, "result": {"roots": []}}),
        json!({"jsonrpc": "2.0", "id": 901, "error": {"code": -1, "message": "no"}}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 902}}),
    ] {
        served.send(&odd);
        served.still_serves(&odd.to_string());
    }
    served.send_bytes(b"\n\r\n   \n");
    served.still_serves("empty lines");
    assert_eq!(served.strays(), Vec::<Value>::new());
}

#[test]
fn nonsense_before_the_introduction_is_answered_too() {
    let place = Place::new();
    made_run(&place.db(), 1_000, 3, "train");
    let mut served = Served::unintroduced(Command::new(GPUWHY).args(["mcp", "--db"]).arg(place.db()));
    served.send_bytes(b"GET / HTTP/1.1\n\xff\n{}\n");
    let reply = served.ask(&hello(7));
    assert_eq!(reply["result"]["serverInfo"]["name"], "gpuwhy");
    assert_eq!(served.strays().len(), 3);
    served.send(&common::mcp::ready());
    served.still_serves("an introduction after nonsense");
    assert!(served.end().success(), "a client that goes away is no failure");
}

#[test]
fn what_there_is_not_is_told() {
    let (_place, mut served) = served();
    for (method, params, code) in [
        ("tools/destroy", json!({}), -32601),
        ("tools/call", json!({"arguments": {}}), 0),
        ("tools/call", json!([1, 2]), 0),
        ("tools/call", json!({"name": "rm", "arguments": {}}), -32602),
        ("tools/call", json!({"name": 5}), 0),
        ("resources/read", json!({"uri": "file:///etc/passwd"}), -32002),
        ("resources/read", json!({"uri": "gpuwhy://../schema"}), -32002),
        ("prompts/get", json!({"name": "jailbreak"}), -32602),
        ("completion/complete", json!({}), 0),
    ] {
        let id = served.id();
        let reply = served.ask(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let error = &reply["error"];
        assert!(error["code"].is_i64() && error["message"].as_str().is_some_and(|said| said.len() < 400), "{reply}");
        assert!(code == 0 || error["code"] == code, "{method} {params}: {reply}");
        served.still_serves(method);
    }
    served.strays();
}

#[test]
fn wrong_arguments_are_told_by_name() {
    let (_place, mut served) = served();
    for (tool, arguments, said) in [
        ("get_stacks", json!({"opp": "cudaMalloc"}), "unknown argument \"opp\""),
        ("get_check", json!({"run": "x"}), "takes none"),
        ("get_stacks", json!({"by": "colour"}), "library"),
        ("get_stacks", json!({"op": "cudaMaloc"}), "cudaMalloc"),
        ("get_stacks", json!({"limit": -1}), "get_stacks: "),
        ("get_stacks", json!({"limit": 1e30}), "get_stacks: "),
        ("get_stacks", json!({"limit": "many"}), "get_stacks: "),
        ("get_stacks", json!({"cursor": "../../etc"}), "cursor"),
        ("get_stacks", json!({"cursor": "c18446744073709551615.ffffffff"}), "cursor"),
        ("get_stacks", json!({"from": "5s", "to": "1s"}), "invalid range"),
        ("get_stacks", json!({"since": "5s", "to": "1s"}), "since"),
        ("get_trace_stats", json!({"from": "eternity"}), "500ms"),
        ("get_trace_stats", json!({"from": -1}), "seconds"),
        ("get_trace_stats", json!({"from": [1]}), "seconds"),
        ("get_trace_stats", json!({"pid": 77}), "77"),
        ("get_timeline", json!({"at": 1e300}), ""),
        ("get_timeline", json!({"at": "2s", "window": -3}), ""),
        ("run_sql", json!({}), "sql"),
        ("run_sql", json!({"sql": ["SELECT 1"]}), "string"),
        ("run_sql", json!({"sql": ""}), "one SQL statement"),
        ("run_sql", json!({"sql": "SELECT 1; SELECT 2"}), "one SQL statement"),
        ("run_sql", json!({"sql": "SELEC 1"}), "syntax"),
        ("run_sql", json!({"sql": "SELECT * FROM nowhere"}), "the run file has"),
        ("run_sql", json!({"sql": "SELECT \u{0} 1"}), ""),
        ("compare_runs", json!({}), "before"),
        ("get_profile", json!({"path": "run.db", "gpu_gb": -5}), "gpu_gb"),
    ] {
        let why = served.refused(tool, arguments.clone());
        assert!(why.contains(said), "{tool} {arguments}: {why}");
        served.still_serves(tool);
    }
}

#[test]
fn odd_but_right_arguments_are_answered() {
    let (_place, mut served) = served();
    for (tool, arguments) in [
        ("get_stacks", json!({"limit": 0})),
        ("get_stacks", json!({"limit": 4_294_967_295_u64})),
        ("get_stacks", json!({"cursor": null, "op": null})),
        ("get_timeline", json!({"buckets": 4_294_967_295_u64})),
        ("get_timeline", json!({"at": 0.1, "window": "1000000h"})),
        ("run_sql", json!({"sql": "SELECT 1", "timeout": "1000h", "limit": 0})),
    ] {
        served.call(tool, arguments.clone()).unwrap_or_else(|why| panic!("{tool} {arguments}: {why}"));
    }
}

#[test]
fn huge_arguments_are_refused_briefly() {
    let (_place, mut served) = served();
    let (two_megabytes, large) = ("a".repeat(2 << 20), "a".repeat(900 << 10));
    let id = served.id();
    served.send(&call(id, "run_sql", &json!({"sql": two_megabytes})));
    served.still_serves("two megabytes");
    let told = served.strays();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0]["error"]["message"].as_str().unwrap().contains("1048576 bytes"), "{told:?}");
    for (tool, arguments) in [
        ("run_sql", json!({"sql": large})),
        ("run_sql", json!({"sql": format!("SELECT {large}")})),
        ("run_sql", json!({"sql": format!("SELECT {}1{}", "(".repeat(100_000), ")".repeat(100_000))})),
        ("run_sql", json!({"sql": format!("SELECT 1 FROM {}", vec!["events"; 100_000].join(","))})),
        ("get_stacks", json!({"op": large})),
        ("get_stacks", json!({"run": large})),
        ("get_stacks", json!({"cursor": large})),
        ("get_stacks", json!({(large.as_str()): 1})),
        ("get_profile", json!({"path": large})),
        (large.as_str(), json!({})),
    ] {
        served.refused(tool, arguments);
        served.still_serves("a large argument");
    }
    // What is only long is no problem at all.
    let rows = served.sql(&format!("SELECT length('{}') {}", &large[..100 << 10], " ".repeat(600 << 10))).unwrap();
    assert_eq!(rows["rows"][0][0], 100 << 10);
}

// ---- SQL ----

#[test]
fn sql_that_does_not_end_is_ended() {
    let (_place, mut served) = served();
    let endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c)";
    for sql in [
        BOMB,
        &format!("{endless} SELECT group_concat(x) FROM c"),
        &format!("{endless} SELECT x FROM c ORDER BY x DESC"),
        &format!("{endless} SELECT COUNT(DISTINCT x) FROM c GROUP BY x % 7"),
        "SELECT COUNT(*) FROM events a, events b, events c, events d, events e, events f, events g, events h",
        // Looked for at every place, to its end: no clock is looked at inside a function.
        "SELECT instr(zeroblob(60000000), CAST(zeroblob(30000000) || x'01' AS BLOB)) FROM events a, events b",
        "SELECT MAX(instr(zeroblob(260000), CAST(zeroblob(130000) || x'01' AS BLOB) || a.tid)) FROM events a, events b",
    ] {
        let why = served.refused("run_sql", json!({"sql": sql, "timeout": "200ms"}));
        let told = why.starts_with("stopped after 0.2 s: ") && why.contains("timeout");
        assert!(told || why.contains("too big") || why.contains("memory"), "{sql}: {why}");
        served.still_serves(sql);
    }
}

/// The most memory a process ever had, bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn sql_that_eats_memory_goes_hungry() {
    let (_place, mut served) = served();
    let many = |what: &str, times: usize| vec![what; times].join(", ");
    for (sql, needs_more) in [
        ("SELECT hex(zeroblob(60000000))".to_owned(), true),
        ("SELECT length(randomblob(1000000000))".to_owned(), true),
        ("SELECT replace(hex(zeroblob(1000000)), '0', hex(zeroblob(1000)))".to_owned(), true),
        (format!("SELECT {}", many("randomblob(60000000)", 60)), true),
        (format!("SELECT {} FROM events", many("group_concat(hex(randomblob(900000)))", 60)), true),
        ("SELECT x FROM (SELECT randomblob(900000) AS x FROM events a, events b) ORDER BY x LIMIT 1".to_owned(), false),
    ] {
        let answer = served.call("run_sql", json!({"sql": sql, "timeout": "3s"}));
        assert!(answer.is_err() || !needs_more, "{sql}: {answer:?}");
        let why = answer.err().unwrap_or_default();
        assert!(
            why.is_empty() || why.contains("too big") || why.contains("memory") || why.contains("stopped"),
            "{why}"
        );
        served.still_serves(&sql);
    }
    let peak = peak_memory(served.pid());
    assert!(peak < 2 << 30, "the server took {peak} bytes");
}

#[test]
fn sql_only_reads() {
    let (place, mut served) = served();
    let before = std::fs::read(place.db()).unwrap();
    let other = place.dir.path().join("other.db");
    for sql in [
        "INSERT INTO process_(pid) VALUES (1)",
        "DELETE FROM call_",
        "UPDATE session_ SET command = 'x'",
        "DROP TABLE call_",
        "CREATE TABLE t(x)",
        "CREATE TEMP TABLE t(x)",
        "CREATE TEMP VIEW v AS SELECT 1",
        "ALTER TABLE call_ RENAME TO x",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA query_only = 0",
        "PRAGMA hard_heap_limit = 0",
        "PRAGMA user_version = 9",
        "PRAGMA temp_store_directory = '/tmp'",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT writefile('/tmp/x', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT edit('x')",
        "BEGIN EXCLUSIVE",
        "COMMIT",
        "SAVEPOINT x",
        "VACUUM",
        "REINDEX",
        "ANALYZE",
        "EXPLAIN DELETE FROM call_",
        "WITH x AS (SELECT 1) DELETE FROM call_",
        "SELECT 1; DROP TABLE call_",
        "ATTACH '/etc/passwd' AS x",
        &format!("ATTACH '{}' AS x", other.display()),
        &format!("VACUUM INTO '{}'", other.display()),
    ] {
        served.refused("run_sql", json!({"sql": sql}));
        served.still_serves(sql);
    }
    assert!(!other.exists(), "nothing was made");
    assert_eq!(std::fs::read(place.db()).unwrap(), before, "nothing was changed");
}

#[test]
fn many_columns_and_quotes_stay_within_four_kilobytes() {
    let (_place, mut served) = served();
    let many = |times: usize| (0..times).map(|i| format!("'{}' AS {}{i}", "\"".repeat(500), "c".repeat(70)));
    for (sql, more) in [
        (format!("SELECT {}", many(64).collect::<Vec<_>>().join(",")), true),
        (format!("SELECT {}", many(600).collect::<Vec<_>>().join(",")), true),
        ("SELECT replace(hex(zeroblob(300)), '0', '\\\"') FROM events".to_owned(), false),
        ("SELECT replace(hex(zeroblob(300)), '0', '…') FROM events".to_owned(), false),
    ] {
        let id = served.id();
        served.send(&call(id, "run_sql", &json!({"sql": sql})));
        let line = served.line();
        assert!(line.len() < 4096, "{} bytes: {line}", line.len());
        let rows = answer(&serde_json::from_str(&line).unwrap()).unwrap();
        assert_eq!(rows["more_columns"].as_u64().is_some(), more, "what is left out is told: {rows}");
        assert!(!rows["rows"].as_array().unwrap().is_empty(), "something is told: {rows}");
    }
}

// ---- stopping ----

#[test]
fn who_cancels_makes_room_for_others() {
    let (_place, mut served) = served();
    // More than are worked on at once: whoever comes after them waits for a turn.
    let bombs: Vec<u64> = (0..6).map(|_| served.id()).collect();
    for id in &bombs {
        served.send(&call(*id, "run_sql", &json!({"sql": BOMB, "timeout": "30s"})));
    }
    for id in &bombs {
        let params = json!({"requestId": id, "reason": "the user went home"});
        served.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
    }
    // Bombs that went on would be answered, as too slow, before this is.
    served.still_serves("bombs that were cancelled");
    let others = served.strays();
    assert!(others.iter().all(|reply| !reply.to_string().contains("stopped after")), "{others:?}");
}

#[test]
fn quick_questions_pass_slow_ones() {
    let (_place, mut served) = served();
    let slow: Vec<u64> = (0..3).map(|_| served.id()).collect();
    for id in &slow {
        served.send(&call(*id, "run_sql", &json!({"sql": BOMB, "timeout": "4s"})));
    }
    for _ in 0..5 {
        served.still_serves("three slow questions");
    }
    assert_eq!(served.strays(), Vec::<Value>::new(), "the slow ones are still worked on");
    for id in slow {
        assert!(answer(&served.reply(id)).unwrap_err().starts_with("stopped after 4 s"));
    }
}

#[test]
fn it_ends_when_it_is_told_to() {
    for (how, busy) in [("TERM", false), ("INT", false), ("TERM", true)] {
        let (_place, mut served) = served();
        if busy {
            let id = served.id();
            served.send(&call(id, "run_sql", &json!({"sql": BOMB, "timeout": "30s"})));
            served.still_serves("a slow question");
        }
        // Its input stays open, as it does with a client that waits for it to end.
        signal(served.pid(), how);
        assert_eq!(served.wait().code(), Some(0), "{how}, busy: {busy}");
    }
}
