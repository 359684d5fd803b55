// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy mcp --http` and who may not ask: raw requests, each with a clear refusal, and the next good one is answered.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::mcp::{TOKEN, Web, call, hello, made_run, request, signal};
use common::{GPUWHY, Place, refusal};
use serde_json::json;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

fn mcp(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.arg("mcp").args(args).arg("--db").arg(place.db());
    command
}

fn served() -> (Place, Web) {
    let place = Place::new();
    made_run(&place.db(), 1_000, 30, "train");
    let web = Web::start(&mut mcp(&place, &["--http", ":0"]));
    (place, web)
}

#[test]
fn a_port_alone_is_this_machine_alone() {
    let (_place, web) = served();
    assert!(web.address.ip().is_loopback() && web.address.port() != 0);
    assert!(web.said.contains("reachable from this machine only"), "{}", web.said);
    web.still_serves("the start");
}

#[test]
fn without_a_token_one_is_made_and_said_once() {
    let place = Place::new();
    made_run(&place.db(), 1_000, 3, "train");
    for address in [":0", "0.0.0.0:0"] {
        let (web, line) = Web::with_made_token(&mut mcp(&place, &["--http", address]));
        assert!(web.token.len() == 64 && web.token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
        assert!(line.contains("Authorization: Bearer"), "{line}");
        assert!(web.said.contains("token required") && !web.said.contains(&web.token), "{}", web.said);
    }
    let (one, _) = Web::with_made_token(&mut mcp(&place, &["--http", ":0"]));
    let (two, _) = Web::with_made_token(mcp(&place, &["--http", ":0"]).env("GPUWHY_TOKEN", "  "));
    assert_ne!(one.token, two.token);
    let said = refusal(mcp(&place, &["--http", ":0"]).env("GPUWHY_TOKEN", "12345"), 1);
    assert!(said.contains("5 characters") && !said.contains("12345"), "{said}");
    let web = Web::start(mcp(&place, &["--http", "0.0.0.0:0"]).env("GPUWHY_TOKEN", TOKEN));
    assert!(web.said.contains("reachable from other machines; token required"), "{}", web.said);
    assert!(!web.said.contains(TOKEN));
}

#[test]
fn on_loopback_nobody_asks_without_the_token_either() {
    let place = Place::new();
    made_run(&place.db(), 1_000, 30, "train");
    let (web, _) = Web::with_made_token(&mut mcp(&place, &["--http", ":0"]));
    // Every user of this machine reaches loopback.
    let sql = call(1, "run_sql", &json!({"sql": "SELECT * FROM events"})).to_string();
    for body in [hello(1).to_string(), sql] {
        let host = web.address.to_string();
        let reply = web.exchange(&request("POST", "/mcp", &host, &[], body.as_bytes()));
        assert_eq!(reply.status(), 401, "{reply:?}");
    }
    web.still_serves("strangers");
}

#[test]
fn a_token_file_is_made_for_its_owner_alone_and_one_that_others_may_read_is_refused() {
    let place = Place::new();
    made_run(&place.db(), 1_000, 3, "train");
    let path = place.dir.path().join("token");
    let args = ["--http", ":0", "--token-file", path.to_str().unwrap()];
    let mut web = Web::start(&mut mcp(&place, &args));
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    web.token = std::fs::read_to_string(&path).unwrap().trim().to_owned();
    web.still_serves("a token was made");
    let mut again = Web::start(&mut mcp(&place, &args));
    again.token.clone_from(&web.token);
    again.still_serves("it is found again");
    for mode in [0o644, 0o640, 0o606] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let said = refusal(&mut mcp(&place, &args), 1);
        assert!(said.contains("other users") && said.contains("chmod 600"), "{said}");
    }
    std::fs::write(&path, "\n").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(refusal(&mut mcp(&place, &args), 1).contains("is empty"));
}

#[test]
fn what_cannot_be_served_is_said() {
    let place = Place::new();
    made_run(&place.db(), 1_000, 3, "train");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!(":{}", taken.local_addr().unwrap().port());
    assert!(refusal(&mut mcp(&place, &["--http", &port]), 1).contains("cannot listen on 127.0.0.1"));
    std::fs::write(place.dir.path().join("no.pem"), "nothing").unwrap();
    let pem = place.dir.path().join("no.pem");
    let pem = pem.to_str().unwrap();
    let said = refusal(&mut mcp(&place, &["--http", ":0", "--tls-cert", pem, "--tls-key", pem]), 1);
    assert!(said.contains("no.pem for TLS"), "{said}");
    assert!(
        refusal(&mut mcp(&place, &["--http", ":0", "--token-file", "/not/there/at/all"]), 1)
            .contains("/not/there/at/all")
    );
    assert!(refusal(&mut mcp(&place, &["--dir", "/not/there"]), 1).contains("cannot allow the folder /not/there"));
}

#[test]
fn who_has_no_token_is_turned_away() {
    let place = Place::new();
    made_run(&place.db(), 1_000, 30, "train");
    let web = Web::start(mcp(&place, &["--http", ":0"]).env("GPUWHY_TOKEN", TOKEN));
    let good = format!("Bearer {TOKEN}");
    let [longer, shorter] = [format!("{good}x"), good[..good.len() - 1].to_owned()];
    let basic = format!("Basic {TOKEN}");
    for given in ["", "Bearer", "Bearer ", "Bearer wrong-token-of-some-length", TOKEN, &basic, &longer, &shorter] {
        for method in ["POST", "GET", "DELETE"] {
            for path in ["/mcp", "/", "/mcp?token=correct-horse-battery-staple"] {
                let body = hello(1).to_string();
                let headers = [("Authorization", given)];
                let host = web.address.to_string();
                let reply = web.exchange(&request(method, path, &host, &headers, body.as_bytes()));
                assert_eq!(reply.status(), 401, "{method} {path} {given:?}: {reply:?}");
                assert_eq!(reply.header("www-authenticate").as_deref(), Some("Bearer"));
                assert!(!reply.0.contains("mcp-session-id") && !reply.0.contains(TOKEN));
            }
        }
    }
    let none = request("POST", "/mcp", &web.address.to_string(), &[], hello(1).to_string().as_bytes());
    assert_eq!(web.exchange(&none).status(), 401, "none at all");
    let rows = web.call(&[("Authorization", &good)], "run_sql", &json!({"sql": "SELECT COUNT(*) FROM events"}));
    assert_eq!(rows.unwrap()["rows"], json!([[30]]));
    let small = format!("bearer {TOKEN}");
    assert!(web.call(&[("Authorization", &small)], "list_runs", &json!({})).is_ok(), "the scheme has no case");
}

#[test]
fn web_pages_are_turned_away() {
    let (_place, web) = served();
    let body = hello(1).to_string();
    let (host, port) = (web.address.to_string(), web.address.port());
    for origin in
        ["https://evil.example", "http://127.0.0.1.evil.example", "null", "http://localhost.evil.example:80", "x"]
    {
        let reply = web.post(&[("Origin", origin)], body.as_bytes());
        assert_eq!(reply.status(), 403, "{origin}: {reply:?}");
        assert_eq!(reply.header("access-control-allow-origin"), None);
        web.still_serves(origin);
    }
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", ""] {
        let reply = web.exchange(&web.request("POST", "/mcp", host, &[], body.as_bytes()));
        assert!((400..500).contains(&reply.status()), "{host:?}: {reply:?}");
        web.still_serves(host);
    }
    let asks = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")];
    let reply = web.exchange(&web.request("OPTIONS", "/mcp", &host, &asks, b""));
    assert!((400..500).contains(&reply.status()), "{reply:?}");
    for good in [format!("localhost:{port}"), format!("127.0.0.1:{port}")] {
        assert_eq!(web.exchange(&web.request("POST", "/mcp", &good, &[], body.as_bytes())).status(), 200, "{good}");
    }
}

#[test]
fn odd_requests_are_refused() {
    let (_place, web) = served();
    let host = web.address.to_string();
    let hello = hello(1).to_string();
    for path in ["/", "/mcp/", "/mcp/x", "/../mcp", "/favicon.ico", "/%6dcp"] {
        assert_eq!(web.exchange(&web.request("GET", path, &host, &[], b"")).status(), 404, "{path}");
    }
    for method in ["PUT", "PATCH", "TRACE", "BREW"] {
        let reply = web.exchange(&web.request(method, "/mcp", &host, &[], hello.as_bytes()));
        assert!((400..500).contains(&reply.status()), "{method}: {reply:?}");
        web.still_serves(method);
    }
    let deep = "[".repeat(100_000);
    for body in ["", "{", "nonsense", "[]", "null", "{}", "{\"jsonrpc\":\"2.0\",\"id\":5}", &deep, "\u{0}\u{1}"] {
        let reply = web.post(&[], body.as_bytes());
        assert!((400..500).contains(&reply.status()), "{body:.40}: {reply:?}");
        assert_eq!(reply.header("content-type").as_deref(), Some("application/json"), "{body:.40}: {reply:?}");
        let (_, said) = reply.0.split_once("\r\n\r\n").unwrap();
        let said: serde_json::Value = serde_json::from_str(said).unwrap_or_else(|_| panic!("{body:.40}: {reply:?}"));
        let is_json = serde_json::from_str::<serde_json::Value>(body).is_ok();
        assert_eq!(said["error"]["code"], if is_json { -32600 } else { -32700 }, "{body:.40}: {said}");
        let id = if body.contains("\"id\":5") { json!(5) } else { serde_json::Value::Null };
        assert_eq!((said["jsonrpc"].as_str(), said.get("id")), (Some("2.0"), Some(&id)), "{body:.40}: {said}");
        web.still_serves("a body that is no message");
    }
    assert!((400..500).contains(&web.post(&[], b"{\"jsonrpc\":\"2.0\",\"\xff\":1}").status()), "no UTF-8");
    for session in ["nobody", "../../etc/passwd", &"x".repeat(10_000)] {
        let reply = web.post(&[("Mcp-Session-Id", session)], call(1, "list_runs", &json!({})).to_string().as_bytes());
        assert!((400..500).contains(&reply.status()), "{session:.40}: {reply:?}");
    }
    for bytes in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\xff\xff\n\n"]
    {
        let reply = web.exchange(&[bytes, b"\r\n\r\n"].concat());
        assert!(reply.status() == 0 || (400..500).contains(&reply.status()), "{bytes:?}: {reply:?}");
        web.still_serves("no HTTP");
    }
    let long = format!("GET /mcp HTTP/1.1\r\nHost: {host}\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let reply = web.exchange(long.as_bytes());
    assert!(reply.status() == 0 || (400..500).contains(&reply.status()), "{reply:?}");
    web.still_serves("a megabyte of headers");
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let (_place, web) = served();
    let large = call(1, "run_sql", &json!({"sql": "x".repeat(2 << 20)})).to_string();
    let reply = web.post(&[], large.as_bytes());
    assert_eq!(reply.status(), 413, "{reply:?}");
    web.still_serves("two megabytes");
    // The same in chunks, whose sum nobody says beforehand.
    let host = web.address;
    let mut chunked = format!(
        "POST /mcp HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAccept: application/json, text/event-stream\r\n\
         Content-Type: application/json\r\nAuthorization: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        web.bearer()
    )
    .into_bytes();
    for chunk in large.as_bytes().chunks(64 << 10) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    let reply = web.exchange(&chunked);
    assert_eq!(reply.status(), 413, "{reply:?}");
    web.still_serves("two megabytes in chunks");
    // A length that is a lie: the rest never comes, and nobody waits for it.
    let mut lying = web.connect();
    let bearer = web.bearer();
    write!(
        lying,
        "POST /mcp HTTP/1.1\r\nHost: {host}\r\nAuthorization: {bearer}\r\nContent-Length: 99999999999999\r\n\r\n{{"
    )
    .unwrap();
    web.still_serves("a length that is a lie");
}

#[test]
fn who_is_slow_keeps_nobody_waiting() {
    let (_place, web) = served();
    let slow: Vec<_> = (0..20)
        .map(|i| {
            let mut stream = web.connect();
            // Some say nothing, some half a head, some a head and half a body.
            let parts = [
                "",
                "POST /mcp HTTP/1.1\r\nHost: x",
                "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
            ];
            stream.write_all(parts[i % 3].as_bytes()).unwrap();
            stream
        })
        .collect();
    for _ in 0..3 {
        web.still_serves("twenty who say nothing");
    }
    drop(slow);
    web.still_serves("their end");
}

#[test]
fn strangers_who_keep_connections_open_keep_nobody_out() {
    let (_place, web) = served();
    let parts =
        ["", "POST /mcp HTTP/1.1\r\nHost: x", "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"];
    let open: Vec<_> = (0..600)
        .map(|i| {
            let mut stream = web.connect();
            // One who had to leave already does not take it.
            let _ = stream.write_all(parts[i % 3].as_bytes());
            stream
        })
        .collect();
    web.still_serves("six hundred strangers");
    drop(open);
}

#[test]
fn who_hangs_up_takes_nobody_along() {
    let (_place, web) = served();
    let body = hello(1).to_string();
    let open = |method: &str| {
        let mut stream = web.connect();
        stream.write_all(&web.request(method, "/mcp", &web.address.to_string(), &[], body.as_bytes())).unwrap();
        stream
    };
    for _ in 0..30 {
        drop(open("POST"));
        // Several at once in a connection: there is more to write when the first is not wanted.
        let mut several = open("POST");
        for _ in 0..5 {
            let again = web.request("POST", "/mcp", &web.address.to_string(), &[], body.as_bytes());
            let _ = several.write_all(&String::from_utf8(again).unwrap().replace("close", "keep-alive").into_bytes());
        }
        drop(several);
    }
    // Some sessions may have been opened; one that was introduced before asks on.
    let reply = web.post(&[], b"{}");
    assert!((400..600).contains(&reply.status()), "it still answers: {reply:?}");
}

#[test]
fn bombs_of_one_do_not_stop_others() {
    let (_place, web) = served();
    let bomb = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT count(*) FROM c";
    std::thread::scope(|threads| {
        let slow = threads.spawn(|| web.call(&[], "run_sql", &json!({"sql": bomb, "timeout": "2s"})));
        for _ in 0..5 {
            web.still_serves("a bomb");
        }
        assert!(slow.join().unwrap().unwrap_err().starts_with("stopped after 2 s"));
    });
    web.still_serves("a bomb's end");
}

#[test]
fn sessions_do_not_pile_up_without_end() {
    let (_place, web) = served();
    let opened = (0..100).map(|_| web.post(&[], hello(1).to_string().as_bytes()));
    let refused = opened.filter(|reply| reply.status() == 503).count();
    assert!(refused > 0, "nobody may open sessions without end");
}

#[test]
fn it_ends_when_it_is_told_to() {
    for how in ["TERM", "INT"] {
        let (_place, mut web) = served();
        signal(web.pid(), how);
        assert_eq!(web.wait().code(), Some(0), "{how}");
        let (_place, mut web) = served();
        web.still_serves("the start");
        let idle = web.connect();
        signal(web.pid(), how);
        assert_eq!(web.wait().code(), Some(0), "{how}, with a connection");
        drop(idle);
    }
}
