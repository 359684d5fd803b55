// SPDX-License-Identifier: Apache-2.0

use super::*;

/// A secret no rule knows by its look.
const S: &str = "hunter2";
const HEX: &str = "0123456789abcdef0123456789abcdef01234567";

fn line(words: &[&str]) -> String {
    command_line(words)
}

#[test]
fn flags_and_variables_with_a_secrets_name_lose_their_value() {
    let out = line(&["train.py", "--hf-token", S, "--api-key=xyz", "WANDB_API_KEY=k", "a b"]);
    assert_eq!(out, "train.py --hf-token *** --api-key=*** WANDB_API_KEY=*** 'a b'");
    for words in [
        &["x", "--token", S][..],
        &["x", "--password", S],
        &["x", "-pass", S],
        &["x", "--password=hunter2 and more"],
        &["x", "DB_PASS=hunter2"],
        &["x", "--private_key", S],
        &["x", "--auth", "me:hunter2"],
        &["x", "--sas=hunter2"],
        &["x", "--cookie", "a=hunter2; b=hunter2"],
        &["x", "--use-auth-token", "--api-key", S],
        &["x", "--password", "-hunter2"],
        &["x", "--password", "-token", S],
        &["env", "SENTRY_DSN=https://hunter2@sentry.example/1"],
    ] {
        assert!(!line(words).contains(S), "{}", line(words));
    }
}

#[test]
fn secrets_inside_an_argument_are_found() {
    for word in [
        "Authorization: Bearer hunter2",
        "Authorization: Basic aHVudGVyMjpodW50ZXIyhunter2",
        "authorization: hunter2",
        "X-Api-Key:hunter2",
        "Cookie: a=hunter2; b=hunter2",
        "Bearer hunter2",
        r#"{"token": "hunter2", "n": 1}"#,
        r#"{"a": {"apiKey":"hunter2"}}"#,
        r#"{\"token\": \"hunter2\"}"#,
        r#"{"secrets": ["hunter2", "hunter2"]}"#,
        "https://me:hunter2@example.org/x",
        "postgres://me:hunter2/2@db:5432/x",
        "redis://:hunter2@cache:6379",
        "--proxy=http://me:hunter2@proxy:3128",
        "me:hunter2@proxy:3128",
        "https://store.example/x?sv=2024&sig=hunter2&se=1",
        "https://example.org/?access_token=hunter2",
        "AccountName=x;AccountKey=hunter2;EndpointSuffix=core",
        "HF_TOKEN=hunter2 python3 train.py --lr 1",
        "export PASSWORD='hunter2'; run",
        "train --token hunter2 --lr 1",
        "import os; os.environ['HF_TOKEN'] = 'hunter2'; run()",
        "login(token=\"hunter2\")",
        "setenv('API_KEY', 'hunter2')",
        "password: hunter2",
        "model.token=hunter2",
        "--set=db.password=hunter2",
    ] {
        let out = line(&["x", word]);
        assert!(!out.contains(S) && out.contains("***"), "{out}");
    }
    let out = line(&["curl", "-H", "Authorization: Bearer hunter2", r#"{"token": "hunter2", "n": 1}"#]);
    assert_eq!(out, r#"curl -H 'Authorization: ***' '{"token": "***", "n": 1}'"#);
    assert_eq!(hide("https://me:hunter2@example.org/x?a=1"), "https://me:***@example.org/x?a=1");
    assert_eq!(hide("HF_TOKEN=x python3 a.py"), "HF_TOKEN=***", "what belongs to the value cannot be told");
}

#[test]
fn secrets_are_known_by_their_look_wherever_they_stand() {
    let token = format!("hf_{}", "AbCdEfGhIjKlMnOpQrStUvWxYz01234567");
    for words in [
        &["x", token.as_str()][..],
        &["x", &format!("--x={token}")],
        &["x", &format!("a,{token},b")],
        &["python3", "-c", &format!("login('{token}')")],
        &["git", "clone", &format!("https://{token}@huggingface.co/x")],
        &["x", &format!("/{token}/é")],
    ] {
        let out = line(words);
        assert!(!out.contains(&token) && out.contains("***"), "{out}");
    }
    for words in [&["wandb", "login", HEX][..], &["wandb", "login", "--relogin", HEX], &["x", "--key", HEX]] {
        assert!(!line(words).contains(HEX), "{}", line(words));
    }
    let sum = format!("--commit={HEX}");
    assert_eq!(line(&["x", &sum, "--sha", HEX]), format!("x {sum} --sha {HEX}"), "sums are none");
}

#[test]
fn harmless_arguments_stay_as_they_are() {
    for words in [
        "python3 train.py --tokenizer gpt2 --max-tokens 4096 --num-tokens 5 --pad-token x --lr 1e-3",
        "x --pass-through yes --bypass on --author me --two-pass 1 --passes 3 --keyboard de",
        "x --password-file /run/secrets/x --auth-type basic --key name --sort-key time",
        "x tokenizer=gpt2 max_tokens=4096 PWD=/home/me a:b c=d:e",
        "apptainer exec --pwd=/work image.sif ssh://git@example.org/x https://example.org:8443/@scope/pkg",
        "docker run image:tag@sha256:0123 me@host:/path git@github.com:a/b.git host:29500 tcp://host:29500",
        "x --use-auth-token --model y hf_transfer sk-learn-pipeline-2-experiment-long",
        "x /data/authors/token/secret/a.txt s3://bucket/key.parquet",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(line(&words), words.join(" "));
    }
    for text in ["basic training", "the token is gone", "Basic understanding of it", "if x: y", "é ü 漢字 = 1", ""]
    {
        assert_eq!(hide(text), text);
    }
}

#[test]
fn nothing_makes_it_fail() {
    for text in [
        "=",
        "token",
        "token=",
        "token:",
        "--token",
        "://",
        "a://@",
        "@",
        ":@",
        "token=é",
        "'token",
        "Bearer",
        "Bearer ",
        "token\\",
        "\"token\":",
        "token:\"",
        "eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "漢:字@x",
        "token = '\\'",
        "\u{0}",
    ] {
        let _ = hide(text);
        let _ = command_line(&[text, text]);
    }
}

#[test]
fn whoever_knows_a_webhook_may_use_it() {
    for (address, shown) in [
        ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/***"),
        ("https://discord.com/api/webhooks/123/abc-DEF", "https://discord.com/api/webhooks/***"),
        ("https://acme.webhook.office.com/webhookb2/1@2/IncomingWebhook/3", "https://acme.webhook.office.com/***"),
        ("https://api.telegram.org/bot123:abc/sendMessage?chat_id=1", "https://api.telegram.org/bot***"),
        ("https://chat.googleapis.com/v1/spaces/A/messages?key=1", "https://chat.googleapis.com/v1/spaces/***"),
        ("https://discord.com/channels/1", "https://discord.com/channels/1"),
        ("https://example.com/hooks.slack.com/x", "https://example.com/hooks.slack.com/x"),
        ("https://nothooks.slack.com.evil/x", "https://nothooks.slack.com.evil/x"),
    ] {
        assert_eq!(hide(address), shown);
        assert_eq!(hide(&format!("curl -d 'x' {address}; true")), format!("curl -d 'x' {shown}; true"));
    }
}

#[test]
fn of_what_is_run_for_an_alert_no_address_stays() {
    let says =
        line(&["trace", "--on-alert", "curl -d x https://ntfy.example/topic && wget http://h?k=1", "--pid", "5"]);
    assert_eq!(says, "trace --on-alert 'curl -d x https://ntfy.example/*** && wget http://h?***' --pid 5");
    assert_eq!(line(&["--on-alert=curl https://h.example/t/5"]), "'--on-alert=curl https://h.example/***'");
    let slack = line(&["trace", "--on-alert", "curl https://hooks.slack.com/services/T/B/x", "--db", "/data/x.db"]);
    assert_eq!(slack, "trace --on-alert 'curl https://hooks.slack.com/***' --db /data/x.db");
    assert_eq!(line(&["--on-alert", "logger \"$GPUWHY_ALERT_TEXT\""]), "--on-alert 'logger \"$GPUWHY_ALERT_TEXT\"'");
}
