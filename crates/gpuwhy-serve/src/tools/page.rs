// SPDX-License-Identifier: Apache-2.0
//! Answer sizes: short by default, the most important first, with a way to get the rest.

use crate::error::ToolError;
use crate::runs::Run;
use crate::text::{clean, shorter_names};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Default size limit of an answer, bytes. It is sent twice, as data and as text with escaped quotes; the whole message
/// stays below 4 KB.
const DEFAULT_BYTES: usize = 3_800;
/// Size limit if the client gives a number of entries, bytes.
const MOST_BYTES: usize = 53_000;
/// If leaving out entries is not enough, texts are cut to these numbers of characters: first long words, then less
/// important texts, then all texts.
const NAMES: [usize; 2] = [40, 24];
const SHORTER: [usize; 4] = [100, 60, 30, 15];
const LAST: [usize; 4] = [160, 100, 60, 15];
/// Texts that are never cut: clients pass them back or look them up.
const WHOLE: [&str; 5] = ["run", "note", "more", "next_cursor", "line"];
/// The most important texts of an answer.
const VITAL: [&str; 6] = ["verdict", "title", "cause", "fixes", "op", "kind"];
/// Maximum number of entries in one answer.
const MOST_ENTRIES: u32 = 500;

/// How many entries to return, and from where.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub(crate) struct Paging {
    /// Maximum entries, up to 500
    #[serde(default)]
    pub(crate) limit: Option<u32>,
    /// next_cursor of the previous answer
    #[serde(default)]
    pub(crate) cursor: Option<String>,
}

impl Paging {
    /// How many entries to return.
    pub(crate) fn most(&self, usual: u32) -> usize {
        self.limit.unwrap_or(usual).clamp(1, MOST_ENTRIES) as usize
    }

    /// Index of the first entry to return; `run` is `None` for answers that are not about a run.
    pub(crate) fn first(&self, run: Option<&Run>) -> Result<usize, ToolError> {
        let Some(cursor) = &self.cursor else { return Ok(0) };
        let parts = cursor.strip_prefix('c').and_then(|rest| rest.split_once('.'));
        let read = parts.and_then(|(at, mark)| Some((at.parse().ok()?, u32::from_str_radix(mark, 16).ok()?)));
        let (at, mark): (usize, u32) = read.ok_or_else(|| {
            ToolError::Arguments("invalid cursor: give the next_cursor of an earlier answer, or leave it out".into())
        })?;
        if mark == mark_of(run) { Ok(at) } else { Err(ToolError::StaleCursor) }
    }

    /// Selects the entries of a list to return.
    pub(crate) fn cut<T>(&self, list: Vec<T>, usual: u32, run: Option<&Run>) -> Result<(Vec<T>, Page), ToolError> {
        let (first, total) = (self.first(run)?, list.len());
        let entries: Vec<T> = list.into_iter().skip(first).take(self.most(usual)).collect();
        Ok((entries, Page { total, next_cursor: None, first, mark: mark_of(run) }))
    }
}

fn mark_of(run: Option<&Run>) -> u32 {
    run.map_or(0, Run::mark)
}

/// Size limit of an answer, bytes: small unless the client asks for a certain amount.
pub(crate) fn budget(arguments: &JsonObject) -> usize {
    let given = |name: &str| arguments.get(name).is_some_and(|value| !value.is_null() && *value != Value::Bool(false));
    if ["limit", "buckets", "bucket", "detail"].into_iter().any(given) { MOST_BYTES } else { DEFAULT_BYTES }
}

/// For `skip_serializing_if`: zero and empty values are left out.
pub(crate) fn is_zero<T: Default + PartialEq>(n: &T) -> bool {
    *n == T::default()
}

/// The position of an answer in its list.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(crate) struct Page {
    /// Total number of entries
    pub(crate) total: usize,
    /// Give this as cursor to get the next entries; null: these are the last
    pub(crate) next_cursor: Option<String>,
    #[serde(skip)]
    #[schemars(skip)]
    first: usize,
    #[serde(skip)]
    #[schemars(skip)]
    mark: u32,
}

impl Page {
    /// Sets how many entries are finally returned.
    fn shows(&mut self, entries: usize) {
        let next = self.first.saturating_add(entries);
        self.next_cursor = (next < self.total).then(|| format!("c{next}.{:x}", self.mark));
    }
}

/// An answer that can be shortened.
pub(crate) trait Answer: Serialize {
    /// Leaves out the least important item; `false` if nothing is left to drop.
    fn shorten(&mut self) -> bool {
        false
    }

    /// The page, and its number of entries.
    fn page(&mut self) -> Option<(&mut Page, usize)> {
        None
    }
}

/// The answer as JSON, shortened to `bytes` if possible.
pub(crate) fn fit(mut answer: impl Answer, bytes: usize) -> Result<Value, ToolError> {
    let fault = |wrong: serde_json::Error| ToolError::Fault(wrong.to_string());
    loop {
        if let Some((page, entries)) = answer.page() {
            page.shows(entries);
        }
        let value = serde_json::to_value(&answer).map_err(fault)?;
        if sent_bytes(&value) <= bytes {
            return Ok(value);
        }
        if !answer.shorten() {
            return Ok(with_shorter_texts(value, bytes));
        }
    }
}

/// Size of an answer in a message, which has it as data and as text.
fn sent_bytes(value: &Value) -> usize {
    let text = value.to_string();
    text.len() + Value::String(text).to_string().len()
}

/// Shortens texts when nothing more can be left out: first the middles of long names, then less important texts, then
/// the important ones. Keys that clients pass back stay whole.
fn with_shorter_texts(mut value: Value, bytes: usize) -> Value {
    let names = NAMES.map(|most| Cut { what: What::Names, most });
    let less = SHORTER.map(|most| Cut { what: What::Less, most });
    let last = LAST.map(|most| Cut { what: What::Everything, most });
    for cut in names.iter().chain(&less).chain(&last) {
        if sent_bytes(&value) <= bytes {
            break;
        }
        cut.apply(&mut value, false);
    }
    value
}

/// Which texts to shorten.
struct Cut {
    what: What,
    most: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Long words in texts.
    Names,
    /// Less important texts.
    Less,
    /// All texts.
    Everything,
}

impl Cut {
    fn apply(&self, value: &mut Value, matters: bool) {
        match value {
            Value::String(text) if self.what == What::Names => *text = shorter_names(text, self.most),
            Value::String(text) if self.what == What::Everything || !matters => *text = clean(text, self.most),
            Value::Array(values) => values.iter_mut().for_each(|value| self.apply(value, matters)),
            Value::Object(fields) => {
                for (name, value) in fields.iter_mut().filter(|(name, _)| !WHOLE.contains(&name.as_str())) {
                    self.apply(value, matters || VITAL.contains(&name.as_str()));
                }
            }
            _ => {}
        }
    }
}

/// Removes the last entry of a list, but never the first.
pub(crate) fn pop<T>(list: &mut Vec<T>) -> bool {
    list.len() > 1 && list.pop().is_some()
}

/// Like [`pop`], and counts the removed entry.
pub(crate) fn pop_counting<T>(list: &mut Vec<T>, more: &mut usize) -> bool {
    let popped = pop(list);
    *more += usize::from(popped);
    popped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct List {
        entries: Vec<String>,
        page: Page,
    }

    impl Answer for List {
        fn shorten(&mut self) -> bool {
            pop(&mut self.entries)
        }

        fn page(&mut self) -> Option<(&mut Page, usize)> {
            Some((&mut self.page, self.entries.len()))
        }
    }

    fn asked(cursor: Option<&str>, limit: Option<u32>) -> Paging {
        Paging { limit, cursor: cursor.map(str::to_owned) }
    }

    fn answer(paging: &Paging, bytes: usize) -> Value {
        let all: Vec<String> = (0..100).map(|i| format!("entry number {i:03}")).collect();
        let (entries, page) = paging.cut(all, 50, None).unwrap();
        fit(List { entries, page }, bytes).unwrap()
    }

    #[test]
    fn cursors_lead_through_everything_once() {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page = answer(&asked(cursor.as_deref(), None), 300);
            assert!(page.to_string().len() <= 300);
            seen.extend(page["entries"].as_array().unwrap().clone());
            match page["page"]["next_cursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
        assert_eq!(seen.len(), 100);
        assert_eq!(seen[99], "entry number 099");
    }

    #[test]
    fn limits_and_cursors_are_checked() {
        assert_eq!(answer(&asked(None, Some(3)), 10_000)["entries"].as_array().unwrap().len(), 3);
        assert_eq!(answer(&asked(None, Some(u32::MAX)), 100_000)["entries"].as_array().unwrap().len(), 100);
        assert_eq!(answer(&asked(Some("c999.0"), None), 1_000)["entries"].as_array().unwrap().len(), 0);
        for bad in ["", "5", "c5", "c-1.0", "c5.xyz", "c99999999999999999999.0"] {
            assert!(matches!(asked(Some(bad), None).first(None), Err(ToolError::Arguments(_))), "{bad}");
        }
        assert!(matches!(asked(Some("c5.1"), None).first(None), Err(ToolError::StaleCursor)));
    }

    #[test]
    fn how_to_get_the_rest_is_never_cut() {
        let more = "limit=50 tells what more_spaces, more_findings and more_unknown count";
        let value =
            serde_json::json!({ "more": more, "title": "a long title ".repeat(20), "unknown": ["words ".repeat(99)] });
        let short = with_shorter_texts(value, 1);
        assert_eq!(short["more"], more);
        assert!(short["title"].as_str().unwrap().len() < 30);
    }

    #[test]
    fn one_entry_is_always_given() {
        assert_eq!(answer(&asked(None, None), 1)["entries"].as_array().unwrap().len(), 1);
    }
}
