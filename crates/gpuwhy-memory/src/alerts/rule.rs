// SPDX-License-Identifier: Apache-2.0
//! Alert rules, as written after `--alert`.

use super::{AlertKind, Level};
use std::str::FromStr;

/// An alert is critical from this share of a GPU's memory on, percent.
const CRITICAL_PERCENT: f64 = 95.0;
/// Ends every error.
const EXAMPLES: &str = "examples: memory>85%, memory>10GB, growth>500MB/s, leak, oom, none";

/// When to raise an alert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Condition {
    /// More than this share of a GPU's memory is in use (NVML), percent.
    MemoryPercent(f64),
    /// More bytes than this are in use on a GPU (NVML); without NVML, reserved by one process's PyTorch.
    MemoryBytes(u64),
    /// Memory in use grows by more than this many bytes a second, for five seconds.
    Growth(u64),
    /// A line leaks.
    Leak,
    /// PyTorch's allocator refused an allocation.
    Oom,
}

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// As it was written.
    pub text: String,
    /// When to raise an alert.
    pub condition: Condition,
    /// The level of its alerts. An alert about a leak is critical if memory runs out soon.
    pub level: Level,
}

/// One `--alert` option.
#[derive(Debug, Clone, PartialEq)]
pub enum Choice {
    /// Turn the default rules off.
    None,
    /// Use this rule; it replaces the default rules of its kind.
    Rule(Rule),
}

/// What is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// There are no alerts about this.
    #[error("unknown alert {subject:?} ({EXAMPLES})")]
    Subject {
        /// The part before `>`.
        subject: String,
    },
    /// A limit is missing, or the rule takes none.
    #[error(
        "invalid alert {text:?}: memory and growth need `>` and a limit; leak, oom and none take no limit ({EXAMPLES})"
    )]
    Shape {
        /// The rule.
        text: String,
    },
    /// The limit does not start with a number.
    #[error("invalid limit {limit:?}: it needs a number and a unit ({EXAMPLES})")]
    Number {
        /// The limit.
        limit: String,
    },
    /// The limit has no unit.
    #[error("the limit {limit:?} has no unit: add {units} ({EXAMPLES})")]
    NoUnit {
        /// The limit.
        limit: String,
        /// Units that fit the rule.
        units: &'static str,
    },
    /// The unit does not fit the rule.
    #[error("invalid unit {unit:?}: use {units} ({EXAMPLES})")]
    Unit {
        /// The unit.
        unit: String,
        /// Units that fit the rule.
        units: &'static str,
    },
    /// The limit would always or never be passed.
    #[error("invalid limit {limit}: it must be above 0 and below 100 % ({EXAMPLES})")]
    Range {
        /// The limit.
        limit: String,
    },
}

/// Units of a limit on memory, and on growth.
const MEMORY_UNITS: &str = "%, kB, MB, GB, MiB or GiB";
const GROWTH_UNITS: &str = "kB/s, MB/s, GB/s, MiB/s or GiB/s";

impl Condition {
    /// The kind of its alerts.
    pub fn kind(self) -> AlertKind {
        match self {
            Self::MemoryPercent(_) | Self::MemoryBytes(_) => AlertKind::Memory,
            Self::Growth(_) => AlertKind::Growth,
            Self::Leak => AlertKind::Leak,
            Self::Oom => AlertKind::Oom,
        }
    }

    /// The limit, and the value below which an alert ends: five percentage points, or a fifth, below the limit.
    pub(super) fn limits(self) -> Option<(f64, f64)> {
        match self {
            Self::MemoryPercent(percent) => Some((percent, (percent - 5.0).max(percent * 0.5))),
            Self::MemoryBytes(limit) | Self::Growth(limit) => Some((limit as f64, limit as f64 * 0.8)),
            Self::Leak | Self::Oom => None,
        }
    }

    fn level(self) -> Level {
        match self {
            Self::MemoryPercent(percent) if percent >= CRITICAL_PERCENT => Level::Critical,
            Self::Oom => Level::Critical,
            _ => Level::Warning,
        }
    }
}

impl Rule {
    fn new(text: &str, condition: Condition) -> Self {
        Self { text: text.to_owned(), condition, level: condition.level() }
    }

    /// The rules without any `--alert`.
    pub fn defaults() -> Vec<Self> {
        vec![
            Self::new("memory>85%", Condition::MemoryPercent(85.0)),
            Self::new("memory>95%", Condition::MemoryPercent(95.0)),
            Self::new("leak", Condition::Leak),
            Self::new("oom", Condition::Oom),
        ]
    }

    /// The given rules, without duplicates, and the default rules of all other kinds, unless `none` was given.
    pub fn chosen(choices: &[Choice]) -> Vec<Self> {
        let mut rules: Vec<Self> = Vec::new();
        for choice in choices {
            match choice {
                Choice::Rule(rule) if rules.iter().all(|known| known.condition != rule.condition) => {
                    rules.push(rule.clone());
                }
                _ => {}
            }
        }
        if !choices.contains(&Choice::None) {
            let given: Vec<AlertKind> = rules.iter().map(|rule| rule.condition.kind()).collect();
            rules.extend(Self::defaults().into_iter().filter(|rule| !given.contains(&rule.condition.kind())));
        }
        rules
    }
}

impl FromStr for Choice {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self::None);
        }
        text.parse().map(Self::Rule)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let text = text.trim();
        let (subject, limit) = match text.split_once('>') {
            Some((subject, limit)) => (subject.trim(), Some(limit.trim())),
            None => (text, None),
        };
        let kind = AlertKind::by_name(&subject.to_ascii_lowercase())
            .ok_or_else(|| RuleError::Subject { subject: subject.to_owned() })?;
        let condition = match (kind, limit) {
            (AlertKind::Leak, None) => Condition::Leak,
            (AlertKind::Oom, None) => Condition::Oom,
            (AlertKind::Memory, Some(limit)) => memory(limit)?,
            (AlertKind::Growth, Some(limit)) => growth(limit)?,
            _ => return Err(RuleError::Shape { text: text.to_owned() }),
        };
        Ok(Self::new(text, condition))
    }
}

/// `85%` or `10GB`.
fn memory(limit: &str) -> Result<Condition, RuleError> {
    let Some(percent) = limit.strip_suffix('%') else { return size(limit, MEMORY_UNITS).map(Condition::MemoryBytes) };
    let number: f64 = percent.trim().parse().map_err(|_| RuleError::Number { limit: limit.to_owned() })?;
    if number > 0.0 && number < 100.0 {
        Ok(Condition::MemoryPercent(number))
    } else {
        Err(RuleError::Range { limit: limit.to_owned() })
    }
}

/// `500MB/s`.
fn growth(limit: &str) -> Result<Condition, RuleError> {
    let bytes = limit.strip_suffix("/s").or_else(|| limit.strip_suffix("/S"));
    match bytes {
        Some(bytes) => size(bytes, GROWTH_UNITS).map(Condition::Growth),
        None => match number_and_unit(limit)? {
            (_, "") => Err(RuleError::NoUnit { limit: limit.to_owned(), units: GROWTH_UNITS }),
            (_, unit) => Err(RuleError::Unit { unit: unit.to_owned(), units: GROWTH_UNITS }),
        },
    }
}

/// `500MB` is 500 and `MB`.
fn number_and_unit(text: &str) -> Result<(f64, &str), RuleError> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.parse().map_err(|_| RuleError::Number { limit: text.to_owned() })?;
    Ok((number, unit.trim()))
}

/// `500MB`, `2GB`, `1GiB`.
fn size(text: &str, units: &'static str) -> Result<u64, RuleError> {
    let (number, unit) = number_and_unit(text)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        // A bare number could mean bytes or percent.
        "" => return Err(RuleError::NoUnit { limit: text.to_owned(), units }),
        _ => return Err(RuleError::Unit { unit: unit.to_owned(), units }),
    };
    let bytes = number * factor;
    if (1.0..9e18).contains(&bytes) { Ok(bytes as u64) } else { Err(RuleError::Range { limit: text.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(text: &str) -> Condition {
        text.parse::<Rule>().unwrap_or_else(|error| panic!("{text}: {error}")).condition
    }

    #[test]
    fn rules_are_parsed() {
        for (text, expected) in [
            ("memory>85%", Condition::MemoryPercent(85.0)),
            (" Memory > 92.5 % ", Condition::MemoryPercent(92.5)),
            ("memory>10GB", Condition::MemoryBytes(10_000_000_000)),
            ("memory>10GiB", Condition::MemoryBytes(10 << 30)),
            ("memory>1.5mib", Condition::MemoryBytes(3 << 19)),
            ("growth>500MB/s", Condition::Growth(500_000_000)),
            ("growth > 2 MiB/s", Condition::Growth(2 << 20)),
            ("leak", Condition::Leak),
            ("OOM", Condition::Oom),
        ] {
            assert_eq!(condition(text), expected, "{text}");
        }
        assert_eq!("memory>95%".parse::<Rule>().unwrap().level, Level::Critical);
        assert_eq!("memory>94%".parse::<Rule>().unwrap().level, Level::Warning);
        assert_eq!("None".parse(), Ok(Choice::None));
    }

    #[test]
    fn errors_name_what_is_wrong_and_give_examples() {
        for (text, named) in [
            ("", "\"\""),
            ("memory", "\"memory\""),
            ("memory>", "\"\""),
            ("memory<85%", "\"memory<85%\""),
            ("memory>85", "the limit \"85\" has no unit: add %, kB"),
            ("growth>85", "the limit \"85\" has no unit: add kB/s"),
            ("memory>many%", "\"many%\""),
            ("memory>0%", "0%"),
            ("memory>100%", "100%"),
            ("memory>-1GB", "\"-1GB\""),
            ("memory>5 elephants", "\"elephants\""),
            ("memory>0MB", "0MB"),
            ("memory>nan%", "nan%"),
            ("growth>500MB", "invalid unit \"MB\": use kB/s"),
            ("growth>10%", "invalid unit \"%\""),
            ("leak>5", "\"leak>5\""),
            ("temperature>80", "\"temperature\""),
        ] {
            let error = text.parse::<Rule>().expect_err(text).to_string();
            assert!(error.contains(named) && error.contains("growth>500MB/s"), "{text}: {error}");
        }
    }

    #[test]
    fn a_rule_replaces_the_default_rules_of_its_kind() {
        let chosen = |texts: &[&str]| -> Vec<String> {
            let choices: Vec<Choice> = texts.iter().map(|text| text.parse().unwrap()).collect();
            Rule::chosen(&choices).into_iter().map(|rule| rule.text).collect()
        };
        assert_eq!(chosen(&[]), ["memory>85%", "memory>95%", "leak", "oom"]);
        assert_eq!(chosen(&["memory>70%"]), ["memory>70%", "leak", "oom"]);
        assert_eq!(
            chosen(&["growth>1GB/s", "growth > 1GB/s"]),
            ["growth>1GB/s", "memory>85%", "memory>95%", "leak", "oom"]
        );
        assert_eq!(chosen(&["none"]), [""; 0]);
        assert_eq!(chosen(&["oom", "none"]), ["oom"]);
    }
}
