// SPDX-License-Identifier: Apache-2.0
//! Secrets recognised by their format anywhere in a text: most services use a distinctive prefix.
//!
//! Each check examines at most [`FAR`] bytes before it has recognised a secret, because texts may be long.

/// The characters that may follow a prefix.
#[derive(Clone, Copy)]
enum Then {
    /// Letters and digits.
    Plain,
    /// And `_`, `-`.
    Marks,
    /// And dots and base64's own, for what has several parts.
    Dots,
    /// Capital letters and digits.
    Capitals,
    /// Hexadecimal digits.
    Hex,
    /// All but blanks, quotes and brackets: the rest of an address.
    Address,
}

/// How far it is looked before something is taken for a secret, bytes.
const FAR: usize = 256;

/// A prefix, and how much must follow for it to be a secret rather than a name with the same prefix (`hf_transfer`).
const KNOWN: [(&str, Then, usize); 80] = [
    // Models and data.
    ("hf_", Then::Plain, 20),
    ("api_org_", Then::Plain, 20),
    ("sk-ant-", Then::Marks, 16),
    ("sk-proj-", Then::Marks, 16),
    ("sk-or-v1-", Then::Marks, 16),
    ("nvapi-", Then::Marks, 20),
    ("wandb_v1_", Then::Marks, 20),
    ("gsk_", Then::Plain, 30),
    ("r8_", Then::Plain, 30),
    ("lsv2_", Then::Marks, 20),
    ("xai-", Then::Plain, 20),
    ("tvly-", Then::Marks, 16),
    ("pplx-", Then::Plain, 20),
    ("fw_", Then::Plain, 20),
    ("tgp_v1_", Then::Marks, 20),
    ("jina_", Then::Plain, 30),
    ("rpa_", Then::Plain, 30),
    ("aph0_", Then::Marks, 20),
    ("esecret_", Then::Plain, 20),
    // Code and packages.
    ("ghp_", Then::Plain, 20),
    ("gho_", Then::Plain, 20),
    ("ghu_", Then::Plain, 20),
    ("ghs_", Then::Plain, 20),
    ("ghr_", Then::Plain, 20),
    ("github_pat_", Then::Marks, 20),
    ("glpat-", Then::Marks, 16),
    ("gldt-", Then::Marks, 16),
    ("glrt-", Then::Marks, 16),
    ("glptt-", Then::Marks, 16),
    ("glcbt-", Then::Marks, 16),
    ("ATBB", Then::Plain, 28),
    ("pypi-AgEI", Then::Marks, 20),
    ("npm_", Then::Plain, 30),
    ("dckr_pat_", Then::Marks, 16),
    ("rubygems_", Then::Hex, 30),
    ("pul-", Then::Hex, 40),
    // Clouds and machines.
    ("AKIA", Then::Capitals, 16),
    ("ASIA", Then::Capitals, 16),
    ("ABIA", Then::Capitals, 16),
    ("ACCA", Then::Capitals, 16),
    ("LTAI", Then::Plain, 16),
    ("AKID", Then::Plain, 28),
    ("AIza", Then::Marks, 30),
    ("ya29.", Then::Marks, 20),
    ("GOCSPX-", Then::Marks, 20),
    ("dapi", Then::Hex, 32),
    ("dop_v1_", Then::Plain, 40),
    ("doo_v1_", Then::Plain, 40),
    ("tskey-", Then::Marks, 16),
    ("hvs.", Then::Marks, 20),
    ("hvb.", Then::Marks, 20),
    ("hvr.", Then::Marks, 20),
    ("FlyV1", Then::Dots, 40),
    ("pscale_tkn_", Then::Marks, 20),
    ("pscale_pw_", Then::Marks, 20),
    ("sbp_", Then::Hex, 40),
    ("dp.st.", Then::Dots, 30),
    ("dp.pt.", Then::Dots, 30),
    ("ops_eyJ", Then::Dots, 37),
    ("AGE-SECRET-KEY-1", Then::Capitals, 30),
    // Messages, payments, figures.
    ("xoxb-", Then::Marks, 10),
    ("xoxp-", Then::Marks, 10),
    ("xoxa-", Then::Marks, 10),
    ("xoxr-", Then::Marks, 10),
    ("xoxs-", Then::Marks, 10),
    ("xoxe-", Then::Marks, 10),
    ("xapp-", Then::Marks, 10),
    ("ATATT", Then::Dots, 20),
    ("ATCTT", Then::Dots, 20),
    ("lin_api_", Then::Plain, 30),
    ("ntn_", Then::Plain, 30),
    ("figd_", Then::Marks, 30),
    ("SG.", Then::Dots, 40),
    ("sk_live_", Then::Plain, 12),
    ("sk_test_", Then::Plain, 12),
    ("rk_live_", Then::Plain, 12),
    ("whsec_", Then::Dots, 24),
    ("shpat_", Then::Hex, 30),
    ("glsa_", Then::Marks, 30),
    ("eyJ", Then::Dots, 37),
];

/// Addresses that are secrets themselves, because knowing them is enough to post there. The prefix stays.
const ADDRESSES: [&str; 10] = [
    "hooks.slack.com/services/",
    "hooks.slack.com/workflows/",
    "hooks.slack.com/triggers/",
    "discord.com/api/webhooks/",
    "discordapp.com/api/webhooks/",
    "api.telegram.org/bot",
    "api.telegram.org/file/bot",
    "hooks.zapier.com/hooks/catch/",
    "outlook.office.com/webhook/",
    "webhook.office.com/webhookb2/",
];

/// Length of the prefix at the start of `text`, which stays, and length of prefix and secret together; zeroes if there
/// is none. `text` must start at a word.
pub(super) fn known(text: &str) -> (usize, usize) {
    let address = ADDRESSES.iter().find_map(|mark| {
        let length = run(text.strip_prefix(mark)?, Then::Address);
        (length >= 8).then_some((mark.len(), mark.len() + length))
    });
    let whole = |length| (0, length);
    let marked = || {
        KNOWN.iter().find_map(|(mark, then, least)| {
            let rest = text.strip_prefix(mark)?;
            (near(rest, *then) >= *least).then(|| mark.len() + run(rest, *then))
        })
    };
    let found = address.or_else(|| marked().map(whole)).or_else(|| openai(text).map(whole));
    found
        .or_else(|| telegram(text).map(whole))
        .or_else(|| jwt(text).map(whole))
        .or_else(|| private_key(text).map(whole))
        .unwrap_or((0, 0))
}

/// How many bytes at the start may follow such a prefix.
fn run(text: &str, then: Then) -> usize {
    text.bytes().take_while(|byte| then.allows(*byte)).count()
}

/// The same, not looking far.
fn near(text: &str, then: Then) -> usize {
    text.bytes().take(FAR).take_while(|byte| then.allows(*byte)).count()
}

impl Then {
    fn allows(self, byte: u8) -> bool {
        match self {
            Self::Plain => byte.is_ascii_alphanumeric(),
            Self::Marks => byte.is_ascii_alphanumeric() || b"_-".contains(&byte),
            Self::Dots => byte.is_ascii_alphanumeric() || b"_-.=+/".contains(&byte),
            Self::Capitals => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Hex => byte.is_ascii_hexdigit(),
            Self::Address => byte.is_ascii_graphic() && !b"\"'`<>()[]{},;\\".contains(&byte),
        }
    }
}

/// Names may also start with `sk-` (`sk-learn-pipeline-2`); keys have capitals, digits and few dashes.
fn openai(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("sk-")?;
    let key = &rest.as_bytes()[..near(rest, Then::Marks)];
    let mixed = key.iter().any(u8::is_ascii_uppercase) && key.iter().any(u8::is_ascii_digit);
    let long_part = key.split(|byte| *byte == b'-').map(<[u8]>::len).max().unwrap_or(0);
    (key.len() >= 20 && (mixed || long_part >= 32)).then(|| 3 + run(rest, Then::Marks))
}

/// A bot's number, a colon, and 35 letters that start with `AA`.
fn telegram(text: &str) -> Option<usize> {
    let digits = text.bytes().take(11).take_while(u8::is_ascii_digit).count();
    let rest = text.get(digits..)?.strip_prefix(":AA")?;
    let length = near(rest, Then::Marks);
    ((8..=10).contains(&digits) && (32..=34).contains(&length)).then_some(digits + 3 + length)
}

/// Three base64 parts, the first starting with `{"`.
fn jwt(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("eyJ")?;
    let length = near(rest, Then::Dots);
    let parts = rest[..length].split('.').filter(|part| part.len() >= 2).count();
    (parts >= 2 && length >= 12).then_some(3 + length)
}

fn private_key(text: &str) -> Option<usize> {
    const BEGIN: &str = "-----BEGIN";
    const END: &str = "-----END";
    // The kind of key stands between: ENCRYPTED, OPENSSH.
    let kind = &text.as_bytes().get(BEGIN.len()..)?;
    let kind = &kind[..kind.len().min(40)];
    let kind = kind.split(|byte| *byte == b'\n').next().unwrap_or(kind);
    let begins = text.starts_with(BEGIN) && kind.windows(11).any(|words| words == b"PRIVATE KEY");
    let end = begins.then(|| text.find(END).map_or(text.len(), |at| at + END.len()))?;
    Some(end + text[end..].find("KEY-----").map_or(0, |at| at + "KEY-----".len()))
}

/// Length of the word at the start if it looks random: at least 20 hexadecimal digits or base64 letters. A word longer
/// than [`FAR`] is judged by its start.
pub(super) fn random_prefix(text: &str) -> Option<usize> {
    let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=_-".contains(byte);
    let near = text.bytes().take(FAR).take_while(base64).count();
    let word = &text.as_bytes()[..near];
    let follows = text.as_bytes().get(near).filter(|_| near < FAR);
    let ends = follows.is_none_or(|byte| b" \t\r\n\"',;&)}]|\\".contains(byte));
    let has = |kind: fn(&u8) -> bool| word.iter().any(kind);
    let mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && !has(|byte| b"_-/".contains(byte));
    // Words written by people are rarely that long; shorter ones must mix characters in unusual ways.
    let long_enough = word.len() >= 32 || (word.len() >= 20 && mixed);
    let letters_and_digits = has(u8::is_ascii_alphabetic) && has(u8::is_ascii_digit);
    let random = ends && long_enough && letters_and_digits && entropy(word) > 3.0;
    random.then(|| text.bytes().take_while(base64).count())
}

/// Whether a whole word looks drawn at random.
pub(super) fn random(word: &str) -> bool {
    random_prefix(word) == Some(word.len())
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
            assert_eq!(known(&whole), (0, whole.len()), "{whole}");
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
            assert_eq!(known(word), (0, 0), "{word}");
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
