// SPDX-License-Identifier: Apache-2.0
//! Secrets known by their look, wherever they stand: most services begin theirs with a mark of their own.

/// What may follow a mark.
#[derive(Clone, Copy)]
enum Then {
    /// Letters and digits.
    Plain,
    /// And `_`, `-`.
    Marks,
    /// And dots, for what has several parts.
    Dots,
    /// Capital letters and digits.
    Capitals,
}

/// A mark, and how much must follow for it to be a secret rather than a name that begins alike (`hf_transfer`).
const KNOWN: [(&str, Then, usize); 37] = [
    ("hf_", Then::Plain, 20),
    ("api_org_", Then::Plain, 20),
    ("sk-ant-", Then::Marks, 16),
    ("sk-proj-", Then::Marks, 16),
    ("sk_live_", Then::Plain, 12),
    ("sk_test_", Then::Plain, 12),
    ("rk_live_", Then::Plain, 12),
    ("ghp_", Then::Plain, 20),
    ("gho_", Then::Plain, 20),
    ("ghu_", Then::Plain, 20),
    ("ghs_", Then::Plain, 20),
    ("ghr_", Then::Plain, 20),
    ("github_pat_", Then::Marks, 20),
    ("glpat-", Then::Marks, 16),
    ("gldt-", Then::Marks, 16),
    ("glrt-", Then::Marks, 16),
    ("xoxb-", Then::Marks, 10),
    ("xoxp-", Then::Marks, 10),
    ("xoxa-", Then::Marks, 10),
    ("xoxr-", Then::Marks, 10),
    ("xoxs-", Then::Marks, 10),
    ("xapp-", Then::Marks, 10),
    ("AKIA", Then::Capitals, 16),
    ("ASIA", Then::Capitals, 16),
    ("AIza", Then::Marks, 30),
    ("ya29.", Then::Marks, 20),
    ("nvapi-", Then::Marks, 20),
    ("pypi-AgEI", Then::Marks, 20),
    ("npm_", Then::Plain, 30),
    ("dckr_pat_", Then::Marks, 16),
    ("wandb_v1_", Then::Marks, 20),
    ("gsk_", Then::Plain, 30),
    ("r8_", Then::Plain, 30),
    ("lsv2_", Then::Marks, 20),
    ("dop_v1_", Then::Plain, 40),
    ("SG.", Then::Dots, 40),
    ("eyJ", Then::Dots, 37),
];

/// How many bytes of `text` are a secret by their look; 0 for none. `text` must begin a word.
pub(super) fn known(text: &str) -> usize {
    let marked = KNOWN.iter().find_map(|(mark, then, least)| {
        let rest = text.strip_prefix(mark)?;
        let length = rest.bytes().take_while(|byte| then.allows(*byte)).count();
        (length >= *least).then_some(mark.len() + length)
    });
    marked.or_else(|| openai(text)).or_else(|| jwt(text)).or_else(|| private_key(text)).unwrap_or(0)
}

impl Then {
    fn allows(self, byte: u8) -> bool {
        match self {
            Self::Plain => byte.is_ascii_alphanumeric(),
            Self::Marks => byte.is_ascii_alphanumeric() || b"_-".contains(&byte),
            Self::Dots => byte.is_ascii_alphanumeric() || b"_-.=+/".contains(&byte),
            Self::Capitals => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
        }
    }
}

/// Hosts to which whoever knows the address may send messages, and where in it the secret begins.
const WEBHOOKS: [(&str, &str); 13] = [
    ("hooks.slack.com", "/"),
    ("hooks.slack-gov.com", "/"),
    ("discord.com", "/api/webhooks/"),
    ("discordapp.com", "/api/webhooks/"),
    ("webhook.office.com", "/"),
    ("outlook.office.com", "/webhook"),
    ("logic.azure.com", "/"),
    ("chat.googleapis.com", "/v1/spaces/"),
    ("api.telegram.org", "/bot"),
    ("hooks.zapier.com", "/"),
    ("maker.ifttt.com", "/"),
    ("open.feishu.cn", "/open-apis/bot/"),
    ("qyapi.weixin.qq.com", "/cgi-bin/webhook/"),
];

/// How many bytes of an address of a webhook may be shown, and how many it has.
pub(super) fn webhook(text: &str) -> Option<(usize, usize)> {
    let scheme = ["https://", "http://"].into_iter().find(|scheme| text.starts_with(scheme))?.len();
    let end = text.find(|c: char| c.is_whitespace() || "\"'<>|;)".contains(c)).unwrap_or(text.len());
    let host_end = scheme + text[scheme..end].find('/')?;
    let host = text[scheme..host_end].split(':').next()?;
    let (_, path) = WEBHOOKS.iter().find(|(known, path)| {
        let is_host = host.strip_suffix(known).is_some_and(|before| before.is_empty() || before.ends_with('.'));
        is_host && text[host_end..end].starts_with(path)
    })?;
    let shown = host_end + path.len();
    (shown < end && !text[shown..end].starts_with("***")).then_some((shown, end))
}

/// `sk-…` also begins names (`sk-learn-pipeline-2`); keys have capitals and digits, and few dashes.
fn openai(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("sk-")?;
    let length = rest.bytes().take_while(|byte| Then::Marks.allows(*byte)).count();
    let key = &rest.as_bytes()[..length];
    let mixed = key.iter().any(u8::is_ascii_uppercase) && key.iter().any(u8::is_ascii_digit);
    let long_part = key.split(|byte| *byte == b'-').map(<[u8]>::len).max().unwrap_or(0);
    (length >= 20 && (mixed || long_part >= 32)).then_some(3 + length)
}

/// Three parts in base64, the first beginning with `{"`.
fn jwt(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("eyJ")?;
    let length = rest.bytes().take_while(|byte| Then::Dots.allows(*byte)).count();
    let parts = rest[..length].split('.').filter(|part| part.len() >= 2).count();
    (parts >= 2 && length >= 12).then_some(3 + length)
}

fn private_key(text: &str) -> Option<usize> {
    const END: &str = "-----END";
    let begins = text.starts_with("-----BEGIN") && text.lines().next()?.contains("PRIVATE KEY");
    let end = begins.then(|| text.find(END).map_or(text.len(), |at| at + END.len()))?;
    Some(end + text[end..].find("KEY-----").map_or(0, |at| at + "KEY-----".len()))
}

/// Whether a word looks drawn at random: 32 and more of hexadecimal digits or base64's letters.
pub(super) fn random(word: &str) -> bool {
    let bytes = word.as_bytes();
    let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=_-".contains(byte);
    if bytes.len() < 32 || !bytes.iter().all(base64) {
        return false;
    }
    let has = |kind: fn(&u8) -> bool| bytes.iter().any(kind);
    let letters_and_digits = has(u8::is_ascii_alphabetic) && has(u8::is_ascii_digit);
    letters_and_digits && entropy(bytes) > 3.0
}

/// Bits a byte, from how often each occurs.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let share = |count: &u32| f64::from(*count) / bytes.len() as f64;
    counts.iter().filter(|count| **count > 0).map(share).map(|p| -p * p.log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_services_hand_out_is_known() {
        // Put together here, so that no scanner takes this file for a leak.
        for (mark, rest) in [
            ("hf_", "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"),
            ("sk-", "proj-abcDEF123456abcDEF123456"),
            ("sk-", "ant-api03-abcDEF123456_abcDEF"),
            ("sk-", "T3BlbkFJabcdefghijklmnopqrstuv"),
            ("ghp_", "0123456789abcdefABCDEF0123456789abcd"),
            ("github_pat_", "11ABCDEFG0abcdefghijkl_mnopqrstuvwx"),
            ("glpat-", "abcdefghij0123456789"),
            ("xoxb-", "123456789012-abcdefghijkl"),
            ("xoxp-", "123456789012-abcdefghijkl"),
            ("AKIA", "IOSFODNN7EXAMPLE"),
            ("AIza", "SyA0123456789abcdefghijklmnopqrstuv"),
            ("eyJ", "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123"),
            ("nvapi-", "0123456789abcdefghijABCDEFGHIJ"),
            ("-----BEGIN RSA PRIVATE ", "KEY-----\nabc\n-----END RSA PRIVATE KEY-----"),
        ] {
            let whole = format!("{mark}{rest}");
            assert_eq!(known(&whole), whole.len(), "{whole}");
        }
    }

    #[test]
    fn names_that_begin_alike_are_none() {
        for word in [
            "hf_transfer",
            "hf_hub_download.py",
            "hf_",
            "sk-learn-pipeline-2-experiment-long",
            "ghp_short",
            "AKIA",
            "AIza",
            "eyJustin",
            "eyJ.x",
            "xoxo-hugs-and-kisses",
            "npm_config_registry",
            "pypi-mirror",
            "train.py",
            "SG.",
            "-----BEGIN CERTIFICATE-----",
        ] {
            assert_eq!(known(word), 0, "{word}");
        }
    }

    #[test]
    fn random_words_are_told_from_words() {
        for word in ["0123456789abcdef0123456789abcdef01234567", "dGhpcyBpcyBhIHNlY3JldCBrZXkgb2YgbWluZQ0="] {
            assert!(random(word), "{word}");
        }
        let plain = "meta-llama-instruct-tuned-for-everything";
        for word in
            ["0123456789abcdef", plain, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1", "/data/sets/imagenet.2012/train"]
        {
            assert!(!random(word), "{word}");
        }
    }
}
