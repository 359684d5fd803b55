// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy mcp`: what an assistant needs of an answer is in it, whatever the traced programs are called, and nothing is left
//! out without saying so.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::mcp::{MADE_PID, Served, made_run};
use common::{GPUWHY, Place, can_trace, one_at_a_time, succeed};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::OnceLock;

/// The largest tools/list, bytes: it goes into every conversation before the first question.
const TOOLS: usize = 12_000;
/// A script's name of 60 characters.
const LONG: &str = "pretrain_multimodal_transformer_distributed_fsdp_experime.py";

fn served() -> (Place, Served) {
    let place = Place::new();
    made_run(&place.db(), 1_000, 30, "train");
    let served = Served::run(&place.db());
    (place, served)
}

#[test]
fn the_list_of_tools_is_short_and_still_describes_them() {
    let (_place, mut served) = served();
    let reply = served.ask(&json!({"jsonrpc": "2.0", "id": 70, "method": "tools/list"}));
    let bytes = reply.to_string().len();
    assert!(bytes <= TOOLS, "tools/list has {bytes} bytes");
    for tool in reply["result"]["tools"].as_array().unwrap() {
        assert!(tool["description"].as_str().unwrap().len() > 20, "{tool}");
        for (name, argument) in tool["inputSchema"]["properties"].as_object().into_iter().flatten() {
            assert!(argument["description"].as_str().is_some_and(|words| words.len() > 5), "{name} of {tool}");
            let typed = argument["type"].is_string() || argument["type"].is_array() || argument["enum"].is_array();
            assert!(typed, "{name} of {tool}");
        }
        let (output, required) = (&tool["outputSchema"]["properties"], &tool["outputSchema"]["required"]);
        for name in required.as_array().unwrap() {
            assert!(output[name.as_str().unwrap()]["type"] != Value::Null, "{name} of {tool}");
        }
    }
}

#[test]
fn a_line_that_cannot_be_read_is_answered_with_a_null_id() {
    let (_place, mut served) = served();
    for wrong in ["{nonsense", "[1,2]", "{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":1}"] {
        served.send_bytes(format!("{wrong}\n").as_bytes());
        let reply: Value = serde_json::from_str(&served.line()).unwrap();
        assert_eq!(reply.get("id"), Some(&Value::Null), "{wrong}: {reply}");
        assert_eq!(reply["jsonrpc"], "2.0", "{wrong}: {reply}");
        assert!(reply["error"]["code"].is_i64(), "{wrong}: {reply}");
    }
    served.send_bytes(b"{\"jsonrpc\":\"2.0\",\"id\":5}\n");
    assert_eq!(serde_json::from_str::<Value>(&served.line()).unwrap()["id"], 5, "a known request keeps its number");
}

#[test]
fn numbers_written_as_text_are_numbers() {
    let (_place, mut served) = served();
    for (quoted, plain) in [
        (json!({"pid": MADE_PID.to_string()}), json!({"pid": MADE_PID})),
        (json!({"limit": "3"}), json!({"limit": 3})),
        (json!({"limit": " 3 "}), json!({"limit": 3})),
    ] {
        assert_eq!(served.call("get_stacks", quoted), served.call("get_stacks", plain));
    }
    let detail = served.call("get_causal_chains", json!({"detail": "true"}));
    assert_eq!(detail, served.call("get_causal_chains", json!({"detail": true})));
    for (tool, arguments, name) in [
        ("get_stacks", json!({"pid": "python3"}), "pid"),
        ("get_stacks", json!({"pid": -1}), "pid"),
        ("get_stacks", json!({"pid": 1.5}), "pid"),
        ("get_stacks", json!({"pid": "4294967296"}), "pid"),
        ("get_stacks", json!({"limit": "many"}), "limit"),
        ("get_timeline", json!({"buckets": [1]}), "buckets"),
        ("get_causal_chains", json!({"detail": "perhaps"}), "detail"),
    ] {
        let why = served.refused(tool, arguments.clone());
        assert!(why.contains(&format!("{tool}: invalid {name} ")), "{arguments}: {why}");
    }
}

#[test]
fn errors_are_no_advice_to_run_commands() {
    let (place, mut served) = served();
    let file = |name: &str, content: &[u8]| std::fs::write(place.dir.path().join(name), content).unwrap();
    file("text.db", b"no database at all, but some text");
    file("empty.db", b"");
    rusqlite::Connection::open(place.dir.path().join("other.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let mut damaged = std::fs::read(place.db()).unwrap();
    damaged[4096..].fill(0x55);
    file("damaged.db", &damaged);
    // The main file of a killed gpuwhy that had stored nothing yet: nothing is in it, and it is in WAL mode.
    let lonely = place.dir.path().join("lonely.db");
    std::fs::copy(place.db(), &lonely).unwrap();
    let db = rusqlite::Connection::open(&lonely).unwrap();
    db.execute_batch("DELETE FROM call_; UPDATE session_ SET stop_unix_ns = NULL; PRAGMA journal_mode = WAL").unwrap();
    drop(db);
    for (tool, arguments) in [
        ("get_trace_stats", json!({"run": "lonely.db"})),
        ("get_trace_stats", json!({"run": "nope.db"})),
        ("get_trace_stats", json!({"run": "text.db"})),
        ("get_trace_stats", json!({"run": "empty.db"})),
        ("get_trace_stats", json!({"run": "other.db"})),
        ("get_trace_stats", json!({"run": "damaged.db"})),
        ("get_trace_stats", json!({"run": "/etc/passwd"})),
        ("get_trace_stats", json!({"pid": 77})),
        ("get_causal_chains", json!({"pid": 77})),
        ("get_memory", json!({"pid": 77})),
        ("get_stacks", json!({"pid": 77, "op": "nothing"})),
        ("get_timeline", json!({"from": "10h"})),
        ("get_profile", json!({"path": "."})),
        ("get_profile", json!({"path": "text.db"})),
        ("run_sql", json!({"sql": "DELETE FROM events"})),
        ("run_sql", json!({"sql": "SELECT * FROM nowhere"})),
        ("compare_runs", json!({"before": "nope.db"})),
    ] {
        let why = served.refused(tool, arguments.clone());
        let command = ["`", "sudo", "gpuwhy trace", "gpuwhy query", "gpuwhy repair", "sqlite3", " --", "-o,"];
        let told = command.iter().find(|part| why.contains(**part));
        assert_eq!(told, None, "{tool} {arguments}: {why}");
        assert!(why.contains(' '), "{why}");
    }
}

/// A training job that waits for its data, really recorded.
fn recorded() -> &'static Place {
    static RUN: OnceLock<Place> = OnceLock::new();
    RUN.get_or_init(|| {
        let place = Place::new();
        succeed(Command::new(GPUWHY).args(["demo", "dataloader", "--duration", "4s", "--db"]).arg(place.db()));
        place
    })
}

fn explained(place: &Place) -> Value {
    let output = succeed(Command::new(GPUWHY).args(["explain", "--json", "--db"]).arg(place.db()));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a finding's fixes save, as `explain --json` has it, most first.
fn savings(finding: &Value) -> Vec<Value> {
    let number = |fix: &Value, name: &str| fix[name].as_u64().unwrap_or(0);
    let mut fixes: Vec<&Value> = finding["fixes"].as_array().unwrap().iter().collect();
    fixes.sort_by_key(|fix| std::cmp::Reverse((number(fix, "saves_ns"), number(fix, "saves_bytes"))));
    fixes.iter().map(|fix| json!([number(fix, "saves_ns"), number(fix, "saves_bytes")])).collect()
}

#[test]
fn causes_come_with_what_fixes_save_and_nothing_goes_silently() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = recorded();
    let expected = explained(place);
    let expected = expected["findings"].as_array().unwrap();
    let mut served = Served::run(&place.db());
    for (arguments, whole) in [(json!({}), false), (json!({"detail": true}), true)] {
        let (mut arguments, mut told): (Value, Vec<Value>) = (arguments, Vec::new());
        loop {
            let answer = served.call("get_causal_chains", arguments.clone()).unwrap();
            let page = answer["findings"].as_array().unwrap();
            let counted = page.iter().any(|found| found["more_fixes"].is_u64() || found["more_links"].is_u64());
            let hint = answer["more"].as_str().unwrap_or_default();
            assert_eq!(counted, hint.contains("detail"), "who is told of more is told how to get it: {answer}");
            told.extend(page.iter().cloned());
            match answer["next_cursor"].as_str() {
                Some(next) => arguments["cursor"] = next.into(),
                None => break,
            }
        }
        assert_eq!(told.len(), expected.len());
        for (told, expected) in told.iter().zip(expected) {
            let saves =
                |fix: &Value| json!([fix["saves_ns"].as_u64().unwrap_or(0), fix["saves_bytes"].as_u64().unwrap_or(0)]);
            let fixes: Vec<Value> = told["fixes"].as_array().unwrap().iter().map(saves).collect();
            let all = savings(expected);
            assert!(fixes.len() <= all.len() && all[..fixes.len()] == fixes, "{told} but {all:?}");
            let more = |name: &str| usize::try_from(told[name].as_u64().unwrap_or(0)).unwrap();
            assert_eq!(fixes.len() + more("more_fixes"), all.len(), "{told}");
            let links = told["chain"].as_array().map_or(0, Vec::len);
            assert_eq!(links + more("more_links"), expected["chain"].as_array().unwrap().len(), "{told}");
            assert!(!whole || more("more_fixes") + more("more_links") == 0, "detail is everything: {told}");
        }
    }
}

#[test]
fn a_long_name_does_not_push_out_the_answer() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    assert_eq!(LONG.chars().count(), 60);
    let (short, long) = (recorded(), Place::new());
    std::fs::copy(short.db(), long.db()).unwrap();
    let db = rusqlite::Connection::open(long.db()).unwrap();
    let rename = |table: &str, column: &str| {
        let sql = format!("UPDATE {table} SET {column} = replace({column}, 'train.py', ?1)");
        assert!(db.execute(&sql, [LONG]).unwrap() > 0, "{table}");
    };
    rename("stack_", "frames");
    rename("process_", "name");
    rename("session_", "command");
    drop(db);
    let truth = explained(&long);
    let worst = &truth["findings"][0];
    let mut served = Served::run(&long.db());
    let answer = served.call("get_causal_chains", json!({})).unwrap();
    assert!(answer.to_string().len() < 4_096, "{answer}");
    let found = &answer["findings"][0];
    let links = worst["chain"].as_array().unwrap().iter().rev().map(|link| &link["line"]);
    let line = std::iter::once(&worst["root_cause"]["line"]).chain(links).find(|line| line.is_string()).unwrap();
    assert_eq!(&found["line"], line, "the line is whole");
    // Words that stand in the whole texts, without names: most of them are left.
    let plain = |text: &str| text.split_whitespace().filter(|word| word.len() < 20).count().min(25);
    for (what, whole, told) in [
        ("verdict", &truth["verdict"], &answer["verdict"]),
        ("cause", &worst["root_cause"]["detail"], &found["cause"]),
        ("fix", &worst["fixes"][0]["text"], &found["fixes"][0]["text"]),
        ("title", &worst["title"], &found["title"]),
    ] {
        let (whole, told) = (whole.as_str().unwrap(), told.as_str().unwrap_or_default());
        assert!(plain(told) * 10 >= plain(whole) * 8, "{what}: {told:?} of {whole:?}");
    }
    let stats = served.call("get_trace_stats", json!({})).unwrap();
    let [whole, told] = [&truth["verdict"], &stats["verdict"]].map(|verdict| plain(verdict.as_str().unwrap()));
    assert!(whole >= 8 && told * 10 >= whole * 8, "{stats:#} of {:#}", truth["verdict"]);
    assert!(stats["ops"].as_array().unwrap().len() >= 3, "{stats}");
}

#[test]
fn a_moment_has_who_held_the_cpus_and_which_processes_came_and_went() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = recorded();
    let db = rusqlite::Connection::open(place.db()).unwrap();
    let mut served = Served::run(&place.db());
    let pairs = |sql: &str| -> Vec<(i64, i64)> {
        let mut statement = db.prepare(sql).unwrap();
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    // Around the first fork and the last exit of the job.
    for (op, what) in [("process_fork", "fork"), ("process_exit", "exit")] {
        let order = if what == "fork" { "ASC" } else { "DESC" };
        let sql = format!(
            "SELECT timestamp, CASE op WHEN 'process_fork' THEN arg0 ELSE pid END FROM events
            WHERE op = '{op}' ORDER BY timestamp {order} LIMIT 1"
        );
        let (at, pid) = pairs(&sql)[0];
        let asked = json!({"at": at as f64 / 1e9, "window": "400ms", "bucket": "40ms"});
        let answer = served.call("get_timeline", asked).unwrap();
        let (from, length) = (answer["from_ns"].as_i64().unwrap(), answer["bucket_ns"].as_i64().unwrap());
        assert_eq!(length, 40_000_000, "{answer}");
        let pieces = answer["buckets"].as_array().unwrap();
        let to = (at + 200_000_000).min(answer["duration_ns"].as_i64().unwrap());
        let told = |list: &str, more: &str| {
            answer[list].as_array().unwrap().len() + answer[more].as_u64().unwrap_or(0) as usize
        };
        let inside = format!("timestamp >= {from} AND timestamp < {to}");
        let changes = format!(
            "SELECT COUNT(*), 0 FROM events WHERE op IN ('process_fork', 'process_exec', 'process_exit') AND {inside}"
        );
        assert_eq!(told("processes", "more_processes") as i64, pairs(&changes)[0].0, "{answer}");
        if answer["more_processes"].is_null() {
            let found = answer["processes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|change| change["what"] == what && change["pid"] == pid);
            assert!(found, "{what} of {pid}: {answer}");
        }
        let clipped = format!("SELECT holder_pid, SUM(MIN(timestamp + duration_ns, {to}) - MAX(timestamp, {from})) FROM cpu_held
            WHERE timestamp < {to} AND timestamp + duration_ns > {from} GROUP BY holder_pid, holder_name ORDER BY 2 DESC, 1");
        let expected = pairs(&clipped);
        assert_eq!(told("cpu_held_by", "more_holders"), expected.len(), "{answer}");
        for (holder, (pid, held)) in answer["cpu_held_by"].as_array().unwrap().iter().zip(&expected) {
            assert_eq!((holder["pid"].as_i64(), holder["held_ns"].as_i64()), (Some(*pid), Some(*held)), "{answer}");
            assert!(holder["name"].is_string());
        }
        let ready: u64 = pieces.iter().map(|piece| piece["ready_ns"].as_u64().unwrap_or(0)).sum();
        let sql = format!("SELECT SUM(MAX(0, MIN(timestamp + duration_ns, {to}) - MAX(timestamp + duration_ns - ready_ns, {from}))), 0
            FROM off_cpu WHERE reason <> 'throttled'");
        assert_eq!(ready as i64, pairs(&sql)[0].0, "{answer}");
    }
    let several = served.refused("get_timeline", json!({"buckets": 3, "bucket": "1s"}));
    assert!(several.contains("not both"), "{several}");
    let many = served.refused("get_timeline", json!({"bucket": "1ms"}));
    assert!(many.contains("more than 200 buckets"), "{many}");
}

#[test]
fn a_copy_without_its_wal_is_cut_and_said_to_be() {
    let place = Place::new();
    made_run(&place.db(), 1_000, 30, "train");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    let db = rusqlite::Connection::open(place.db()).unwrap();
    db.execute("UPDATE session_ SET stop_unix_ns = NULL, start_unix_ns = ?1", [now]).unwrap();
    db.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    drop(db);
    assert!(!place.dir.path().join("run.db-wal").exists());
    let mut served = Served::run(&place.db());
    for tool in ["get_trace_stats", "get_causal_chains", "get_stacks", "get_memory", "get_timeline"] {
        let answer = served.call(tool, json!({})).unwrap();
        assert_eq!((&answer["state"], &answer["lacks_wal"]), (&json!("cut"), &json!(true)), "{tool}: {answer}");
    }
    let runs = served.call("list_runs", json!({})).unwrap();
    assert_eq!((&runs["runs"][0]["state"], &runs["runs"][0]["lacks_wal"]), (&json!("cut"), &json!(true)), "{runs}");
}
