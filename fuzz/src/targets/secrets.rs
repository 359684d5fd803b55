// SPDX-License-Identifier: Apache-2.0
//! Command lines and texts in which secrets must be replaced.

use gpuwhy_capture::secrets::{command_line, hide};

/// Words and signs that mark a secret.
pub(super) const WORDS: &[&[u8]] = &[
    b"--token ",
    b"--token=",
    b"password=",
    b"Authorization: Bearer ",
    b"https://u:p@h/",
    b"-----BEGIN PRIVATE KEY-----",
    b"hf_",
    b"sk-",
    b"ghp_",
    b"AKIA",
    b"eyJ",
    b"hvs.",
    b"\"apiKey\": \"",
    b"***",
    b"\0",
    b"://",
    b"@",
    b"=",
    b"\xe2\x80\x8b",
];

/// A planted secret: a token that must be replaced wherever it stands alone.
const PLANTED: &str = "hf_abcdefghijKLMNOPQRSTuvwxyz01234567";

pub(super) fn seeds() -> Vec<Vec<u8>> {
    [
        "python3\0train.py\0--hf-token\0hf_abcdefghijKLMNOPQRSTuvwxyz01234567\0--lr\x001e-4",
        "curl\0-u\0me:hunter2\0https://me:hunter2@example.org/x?sig=abc",
        "python3\0-c\0import os; os.environ[\"API_KEY\"] = 'abc def'; run({\"token\": \"x\"})",
        "env\0PGPASSWORD=hunter2\0psql\0postgres://me:pw@host:5432/db",
        "torchrun\0--nproc-per-node=8\0--master-addr\x0010.0.0.1\0train.py\0--run-id=5f2a9c\0--config=/a/b.yaml",
    ]
    .map(|line| line.as_bytes().to_vec())
    .to_vec()
}

/// Words are separated by zero bytes, as in /proc/PID/cmdline. Hiding is idempotent: a second time changes nothing.
pub(super) fn secrets(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let words: Vec<&str> = text.split('\0').collect();
    let _ = command_line(&words);
    for word in &words {
        let hidden = hide(word);
        assert!(hidden.len() <= word.len() + 3 * word.len() + 16, "{} bytes became {}", word.len(), hidden.len());
    }
    let planted = format!("{} {PLANTED} ", words.first().unwrap_or(&"").replace(char::is_alphanumeric, " "));
    assert!(!hide(&planted).contains(PLANTED), "{planted:?} became {:?}", hide(&planted));
}
