// SPDX-License-Identifier: Apache-2.0
//! What tracing may cost, as people say it.

use std::fmt;
use std::str::FromStr;

/// The part of a job's time that tracing may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// A fraction: 0.02 for 2 %.
    Share(f64),
    /// Whatever it costs.
    None,
}

/// Not a budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no budget: give a part of the job's time above 0 % and up to 100 %, such as 2% or 0.5%, or none")]
pub struct BudgetError(String);

impl Default for Budget {
    fn default() -> Self {
        Self::Share(0.02)
    }
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let wrong = || BudgetError(text.to_owned());
        if text.trim().eq_ignore_ascii_case("none") {
            return Ok(Self::None);
        }
        // A bare number could be meant either way.
        let number = text.trim().strip_suffix('%').ok_or_else(wrong)?;
        let plain = number.trim_end().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let percent: f64 = number.trim_end().parse().map_err(|_| wrong())?;
        if plain && percent > 0.0 && percent <= 100.0 { Ok(Self::Share(percent / 100.0)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Rounded, because a hundredth of a decimal fraction is none in binary.
            Self::Share(share) => write!(f, "{} %", (share * 1e6).round() / 1e4),
            Self::None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_and_written_as_people_do() {
        for (text, share, said) in [
            ("2%", 0.02, "2 %"),
            ("0.5%", 0.005, "0.5 %"),
            (" 100 % ", 1.0, "100 %"),
            ("7%", 0.07, "7 %"),
            (".25%", 0.0025, "0.25 %"),
        ] {
            let budget: Budget = text.parse().unwrap();
            assert!(matches!(budget, Budget::Share(got) if (got - share).abs() < 1e-12), "{text}");
            assert_eq!(budget.to_string(), said);
        }
        assert_eq!("none".parse(), Ok(Budget::None));
        assert_eq!("None".parse(), Ok(Budget::None));
        for text in ["", "%", "0%", "-1%", "101%", "2", "0.02", "two", "nan%", "inf%", "1e1%", "+2%", "2%%"] {
            let error = text.parse::<Budget>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("2%") && error.contains("none"), "{error}");
        }
    }
}
