// SPDX-License-Identifier: Apache-2.0
//! Which names (of flags, variables, headers, JSON keys) say that their value is a secret.

/// What a name implies about its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// Nothing.
    Nothing,
    /// It may be one: `--key`. Then the value's look decides.
    Perhaps,
    /// It is a secret.
    Secret,
}

/// Parts of a name that make its value a secret.
const SECRET: [&str; 24] = [
    "secret",
    "secrets",
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "credential",
    "credentials",
    "cred",
    "creds",
    "auth",
    "oauth",
    "oauth2",
    "authorization",
    "bearer",
    "cookie",
    "cookies",
    "sas",
    "dsn",
    "sig",
    "signature",
    "jwt",
    "sessionid",
];
/// The same, written without a mark between the words or inside a longer one: PGPASSWORD, clientsecret.
const SECRET_ENDS: [&str; 8] =
    ["password", "passwd", "passphrase", "secret", "apikey", "secretkey", "privatekey", "accesskey"];
/// Words that make a key secret.
const KEYS: [&str; 19] = [
    "api",
    "access",
    "secret",
    "private",
    "encryption",
    "signing",
    "account",
    "master",
    "ssh",
    "license",
    "auth",
    "storage",
    "subscription",
    "shared",
    "deploy",
    "service",
    "session",
    "admin",
    "hmac",
];
/// Last parts after which the value is not the secret itself: `--auth-type`, `--password-file`.
const ABOUT: [&str; 31] = [
    "type", "mode", "method", "url", "uri", "endpoint", "provider", "enabled", "required", "backend", "scheme",
    "plugin", "file", "path", "dir", "name", "length", "len", "size", "count", "limit", "policy", "expiry", "ttl",
    "timeout", "format", "env", "prefix", "scope", "store", "helper",
];
/// With these, a token is a piece of text: `--pad-token`, `--max-token-length`.
const TEXT_TOKENS: [&str; 34] = [
    "max", "min", "num", "n", "per", "count", "ids", "id", "len", "length", "size", "type", "pad", "padding", "eos",
    "bos", "unk", "sep", "cls", "mask", "stop", "special", "new", "limit", "budget", "level", "image", "vocab",
    "dropout", "merge", "prune", "begin", "end", "loss",
];
/// With these, several tokens are credentials after all.
const TOKEN_OWNERS: [&str; 7] = ["api", "auth", "access", "secret", "bearer", "refresh", "hf"];
/// With these before it, a pass is one over data.
const DATA_PASSES: [&str; 15] = [
    "two", "one", "single", "multi", "first", "second", "last", "forward", "backward", "fwd", "bwd", "by", "high",
    "low", "per",
];
/// Names that may stand before a secret; whether the value looks like one decides.
const PERHAPS: [&str; 9] = ["key", "keys", "login", "session", "pat", "salt", "wandb", "license", "licence"];

/// Judges a name, with or without dashes before it.
pub(super) fn judge(name: &str) -> Says {
    let name = name.trim_start_matches('-');
    // The folder a shell is in.
    if name.is_empty() || matches!(name, "PWD" | "OLDPWD") {
        return Says::Nothing;
    }
    let parts = parts_of(name);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let shouted_key = name.ends_with("_KEY") && !name.chars().any(|c| c.is_ascii_lowercase());
    if shouted_key || is_secret(&parts) {
        Says::Secret
    } else if parts.iter().any(|part| PERHAPS.contains(part)) || parts == ["k"] {
        Says::Perhaps
    } else {
        Says::Nothing
    }
}

/// `apiKey`, `api-key`, `api.key` and `API_KEY` are one name.
fn parts_of(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before_was_small = false;
    for c in name.chars() {
        let mark = !c.is_ascii_alphanumeric();
        if mark || (before_was_small && c.is_ascii_uppercase()) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| !mark) {
            part.push(c.to_ascii_lowercase());
        }
        before_was_small = c.is_ascii_lowercase();
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn is_secret(parts: &[&str]) -> bool {
    let Some((last, before)) = parts.split_last() else { return false };
    let keys = |pair: &[&str]| matches!(pair, [of, "key" | "keys"] if KEYS.contains(of));
    // The id of an access key is half of the secret.
    if parts.windows(3).any(|three| three == ["access", "key", "id"]) {
        return true;
    }
    if ABOUT.contains(last) {
        return false;
    }
    let by_word = |part: &&str| SECRET.contains(part) || SECRET_ENDS.iter().any(|end| part.ends_with(end));
    let token = *last == "token" || (last.ends_with("token") && before.is_empty()) || parts.contains(&"token");
    let a_pass = *last == "pass" && !before.last().is_some_and(|before| DATA_PASSES.contains(before));
    parts.iter().any(by_word)
        || parts.windows(2).any(keys)
        || a_pass
        || (token && !parts.iter().any(|part| TEXT_TOKENS.contains(part)))
        || (parts.contains(&"tokens") && parts.iter().any(|part| TOKEN_OWNERS.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known() {
        for name in [
            "--token",
            "--hf-token",
            "--hf_token",
            "HF_TOKEN",
            "token",
            "accessToken",
            "authtoken",
            "--use-auth-token",
            "--api-key",
            "api_key",
            "apiKey",
            "APIKEY",
            "WANDB_API_KEY",
            "OPENAI_KEY",
            "x-api-key",
            "X-Api-Key",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "--secret",
            "client_secret",
            "clientsecret",
            "--password",
            "PGPASSWORD",
            "passwd",
            "--pass",
            "DB_PASS",
            "ftp-pass",
            "--pwd",
            "--passphrase",
            "--private_key",
            "private-key",
            "privateKey",
            "--sas",
            "SENTRY_DSN",
            "--cookie",
            "Cookie",
            "Authorization",
            "--auth",
            "--credentials",
            "AccountKey",
            "X-Amz-Signature",
            "sig",
            "--api-tokens",
            "jwt",
            "proxy-auth",
        ] {
            assert_eq!(judge(name), Says::Secret, "{name}");
        }
    }

    #[test]
    fn harmless_names_are_left_alone() {
        for name in [
            "--tokenizer",
            "--tokenizer-path",
            "--max-tokens",
            "--num-tokens",
            "--max_new_tokens",
            "--pad-token",
            "--eos-token-id",
            "--token-level",
            "--tokens-per-batch",
            "--pass-through",
            "--passthrough",
            "--bypass",
            "--author",
            "--authors",
            "--num-passes",
            "--two-pass",
            "--forward-pass",
            "--compass",
            "--password-file",
            "--auth-type",
            "--secret-name",
            "PWD",
            "OLDPWD",
            "--lr",
            "--model",
            "--secretariat-url",
            "",
            "--",
            "-p",
            "--passes",
            "--bandpass",
            "--detokenize",
            "--monkey",
            "--keyboard",
            "--disk",
        ] {
            assert_eq!(judge(name), Says::Nothing, "{name}");
        }
        for name in ["--key", "-keys", "login", "--sort-key"] {
            assert_eq!(judge(name), Says::Perhaps, "{name}");
        }
    }
}
