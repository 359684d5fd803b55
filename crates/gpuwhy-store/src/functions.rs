// SPDX-License-Identifier: Apache-2.0
//! SQL functions that every reader's connection has: exact quantiles, and numbers as people read them.
//!
//! They weaken no lock of [`crate::guarded`]: they read nothing but their arguments. Quantiles keep the values they are
//! given, so what they may hold is bounded for all of a connection together; a view in a file, which may be anybody's,
//! cannot call them. A value at a time, SQLite looks at the clock in between; what is done at the end takes a time that
//! grows with the number of values only, well below a second for as many as there may be.

use gpuwhy_model::units;
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};

/// A function as people call it, and what it gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqlFunction {
    /// `p95(x[, weight])`.
    pub call: &'static str,
    /// Its result, in one line.
    pub gives: &'static str,
}

/// The functions, in the order of the documentation.
pub const FUNCTIONS: [SqlFunction; 6] = [
    SqlFunction { call: "p50(x[, weight])", gives: "median of x" },
    SqlFunction { call: "p95(x[, weight])", gives: "95th percentile of x" },
    SqlFunction { call: "p99(x[, weight])", gives: "99th percentile of x" },
    SqlFunction { call: "quantile(x, q[, weight])", gives: "quantile q of x, q from 0 to 1" },
    SqlFunction { call: "human_time(ns)", gives: "a duration in nanoseconds as text: 7.20 ms" },
    SqlFunction { call: "human_bytes(n)", gives: "a size in bytes as text: 207 GB" },
];

/// Memory limit of all quantiles of a connection together, bytes: enough for three over 20 million rows of weight 1.
const MOST_BYTES: usize = 480_000_000;
/// Memory is counted for at least this many values at a time.
const STEP: usize = 64;

/// Registers the functions with a connection.
pub(crate) fn install(db: &Connection) -> Result<()> {
    install_with(db, MOST_BYTES)
}

fn install_with(db: &Connection, most: usize) -> Result<()> {
    // Views in a file must not use functions that need much memory; queries may.
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_DIRECTONLY;
    let held = Arc::new(AtomicUsize::new(0));
    for (name, q) in [("p50", Some(0.5)), ("p95", Some(0.95)), ("p99", Some(0.99)), ("quantile", None)] {
        let first = if q.is_some() { 1 } else { 2 };
        for arguments in [first, first + 1] {
            let quantile = Quantile { name, q, most, held: Arc::clone(&held) };
            db.create_aggregate_function(name, arguments, flags, quantile)?;
        }
    }
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    db.create_scalar_function("human_time", 1, flags, |context| human(context, "human_time", units::time))?;
    db.create_scalar_function("human_bytes", 1, flags, |context| human(context, "human_bytes", units::bytes))
}

/// An error of a function; SQLite passes it on unchanged.
fn refuse<T>(text: String) -> Result<T> {
    Err(Error::UserFunctionError(text.into()))
}

/// Describes a value for an error message.
fn kind(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(n) => n.to_string(),
        ValueRef::Real(x) => x.to_string(),
        ValueRef::Text(text) => format!("the text '{}'", units::safe(&String::from_utf8_lossy(text), 40)),
        ValueRef::Blob(bytes) => format!("a blob of {} bytes", bytes.len()),
    }
}

/// A number as text; fractions, for example of averages, are rounded.
fn human(context: &Context<'_>, name: &str, words: fn(u64) -> String) -> Result<Option<String>> {
    let signed = |negative: bool, n: u64| Ok(Some(format!("{}{}", if negative { "-" } else { "" }, words(n))));
    match context.get_raw(0) {
        ValueRef::Null => Ok(None),
        ValueRef::Integer(n) => signed(n < 0, n.unsigned_abs()),
        // The cast saturates; no real time or size is beyond 2^64.
        ValueRef::Real(x) => signed(x <= -0.5, x.abs().round() as u64),
        other => refuse(format!("{name} takes a number, got {}", kind(other))),
    }
}

/// One of the functions that give a quantile.
struct Quantile {
    name: &'static str,
    /// The quantile, unless the second argument gives it.
    q: Option<f64>,
    most: usize,
    held: Arc<AtomicUsize>,
}

/// Values as integers in the same order (see [`key`]); with how often each counts once one counts more than once.
enum Keys {
    Plain(Vec<i64>),
    Weighted(Vec<(i64, u32)>),
}

/// The values given to one quantile so far.
struct Given {
    keys: Keys,
    /// Whether the keys represent fractions: from the first fraction on, all do.
    real: bool,
    /// As in the first row.
    q: Option<f64>,
    /// Bytes it has taken of those that all quantiles have together.
    room: usize,
    held: Arc<AtomicUsize>,
}

impl Drop for Given {
    fn drop(&mut self) {
        self.held.fetch_sub(self.room, Memory::Relaxed);
    }
}

impl Given {
    /// Takes up to so many bytes of the `most` that all quantiles have together; as many as it got.
    fn take(&mut self, bytes: usize, most: usize) -> usize {
        let got = bytes.min(most.saturating_sub(self.held.load(Memory::Relaxed)));
        self.room += got;
        self.held.fetch_add(got, Memory::Relaxed);
        got
    }

    fn give_back(&mut self, bytes: usize) {
        self.room -= bytes;
        self.held.fetch_sub(bytes, Memory::Relaxed);
    }

    /// Reserves memory for one more value; returns false if there is none.
    fn grow(&mut self, most: usize) -> bool {
        let (len, capacity, size) = match &self.keys {
            Keys::Plain(all) => (all.len(), all.capacity(), size_of::<i64>()),
            Keys::Weighted(all) => (all.len(), all.capacity(), size_of::<(i64, u32)>()),
        };
        if len < capacity {
            return true;
        }
        // By an eighth and no more, so that what is held is what is counted.
        let more = self.take(STEP.max(len / 8) * size, most) / size;
        match &mut self.keys {
            Keys::Plain(all) => all.reserve_exact(more),
            Keys::Weighted(all) => all.reserve_exact(more),
        }
        more > 0
    }

    /// Switches to weighted values; `false` if there is not enough memory.
    fn become_weighted(&mut self, most: usize) -> bool {
        let Keys::Plain(all) = &mut self.keys else { return true };
        let before = std::mem::take(all);
        let wanted = before.len() * size_of::<(i64, u32)>();
        if self.take(wanted, most) < wanted {
            return false;
        }
        let freed = before.capacity() * size_of::<i64>();
        self.keys = Keys::Weighted(before.into_iter().map(|n| (n, 1)).collect());
        self.give_back(freed);
        true
    }

    /// From now on values are fractions.
    fn become_real(&mut self) {
        self.real = true;
        let as_real = |n: &mut i64| *n = key(*n as f64);
        match &mut self.keys {
            Keys::Plain(all) => all.iter_mut().for_each(as_real),
            Keys::Weighted(all) => all.iter_mut().for_each(|(n, _)| as_real(n)),
        }
    }

    /// Adds a value; `false` if there is not enough memory.
    fn push(&mut self, value: Number, weight: u32, most: usize) -> bool {
        if matches!(value, Number::Real(_)) && !self.real {
            self.become_real();
        }
        if weight != 1 && !self.become_weighted(most) || !self.grow(most) {
            return false;
        }
        let value = match value {
            Number::Integer(n) if self.real => key(n as f64),
            Number::Integer(n) => n,
            Number::Real(x) => key(x),
        };
        match &mut self.keys {
            Keys::Plain(all) => all.push(value),
            Keys::Weighted(all) => all.push((value, weight)),
        }
        true
    }
}

/// A value that counts.
enum Number {
    Integer(i64),
    Real(f64),
}

/// A fraction as an integer in the same order; done twice, it is the fraction's bits again ([`f64::total_cmp`]).
fn key(x: f64) -> i64 {
    in_order(x.to_bits().cast_signed())
}

fn in_order(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

impl Quantile {
    /// Which quantile this row asks for.
    fn wanted(&self, context: &Context<'_>, before: Option<f64>) -> Result<f64> {
        if let Some(q) = self.q {
            return Ok(q);
        }
        let value = context.get_raw(1);
        let q = match value {
            ValueRef::Real(q) => q,
            ValueRef::Integer(n) => n as f64,
            _ => f64::NAN,
        };
        if !(0.0..=1.0).contains(&q) {
            return refuse(format!(
                "invalid second argument of quantile: expected a number from 0 to 1, got {}",
                kind(value)
            ));
        }
        match before {
            Some(before) if before != q => refuse(format!(
                "the second argument of quantile must be the same in every row, got {before} and {q}: use two queries"
            )),
            _ => Ok(q),
        }
    }

    /// How often this row counts.
    fn weight(&self, context: &Context<'_>) -> Result<u32> {
        let place = if self.q.is_some() { 1 } else { 2 };
        if context.len() <= place {
            return Ok(1);
        }
        match context.get_raw(place) {
            ValueRef::Integer(n) if u32::try_from(n).is_ok() => Ok(n as u32),
            other => refuse(format!(
                "invalid weight in {}: expected a whole number from 0 on, got {}",
                self.name,
                kind(other)
            )),
        }
    }
}

impl Aggregate<Given, Value> for Quantile {
    fn init(&self, _: &mut Context<'_>) -> Result<Given> {
        let held = Arc::clone(&self.held);
        Ok(Given { keys: Keys::Plain(Vec::new()), real: false, q: None, room: 0, held })
    }

    fn step(&self, context: &mut Context<'_>, given: &mut Given) -> Result<()> {
        given.q = Some(self.wanted(context, given.q)?);
        let value = context.get_raw(0);
        if value == ValueRef::Null {
            return Ok(());
        }
        let weight = self.weight(context)?;
        if weight == 0 {
            return Ok(());
        }
        let number = match value {
            ValueRef::Integer(n) => Number::Integer(n),
            ValueRef::Real(x) => Number::Real(x),
            other => return refuse(format!("{} takes numbers, got {}", self.name, kind(other))),
        };
        if given.push(number, weight, self.most) {
            return Ok(());
        }
        let most = units::bytes(self.most as u64);
        refuse(format!(
            "{} has too many values: they need more than {most}; narrow the query with a time range, compute one quantile at a time, or use the sums in `seconds`",
            self.name
        ))
    }

    fn finalize(&self, _: &mut Context<'_>, given: Option<Given>) -> Result<Value> {
        let Some(mut given) = given else { return Ok(Value::Null) };
        let q = given.q.unwrap_or(0.5);
        let found = match &mut given.keys {
            Keys::Plain(all) if all.is_empty() => None,
            Keys::Plain(all) => {
                let place = rank(q, all.len() as u64) - 1;
                Some(*all.select_nth_unstable(place as usize).1)
            }
            Keys::Weighted(all) => nearest(all, q),
        };
        Ok(match found {
            None => Value::Null,
            Some(key) if given.real => Value::Real(f64::from_bits(in_order(key).cast_unsigned())),
            Some(n) => Value::Integer(n),
        })
    }
}

/// The smallest value whose weight, together with that of all smaller values, is at least `q` of the total weight
/// (nearest rank). Each step halves the candidates, so the work is linear in the number of values.
fn nearest(values: &mut [(i64, u32)], q: f64) -> Option<i64> {
    let weight = |part: &[(i64, u32)]| part.iter().map(|(_, weight)| u64::from(*weight)).sum::<u64>();
    let mut left = rank(q, weight(values));
    let mut part = values;
    while part.len() > 1 {
        let middle = part.len() / 2;
        part.select_nth_unstable_by_key(middle, |(key, _)| *key);
        let (low, high) = part.split_at_mut(middle);
        let below = weight(low);
        part = if left <= below {
            low
        } else {
            left -= below;
            high
        };
    }
    part.first().map(|(value, _)| *value)
}

/// The rank of quantile `q` among `count` sorted values, from 1. Rounding errors must not raise the rank.
fn rank(q: f64, count: u64) -> u64 {
    let exact = q * count as f64;
    let whole = exact.round();
    let rank = if (exact - whole).abs() <= whole * 1e-12 { whole } else { exact.ceil() };
    (rank as u64).clamp(1, count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Connection {
        let db = Connection::open_in_memory().unwrap();
        install_with(&db, 1_600_000).unwrap();
        db
    }

    fn ask(db: &Connection, sql: &str) -> Value {
        db.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn fails(db: &Connection, sql: &str) -> String {
        db.query_row(sql, [], |row| row.get::<_, Value>(0)).unwrap_err().to_string()
    }

    /// Values that look random, with weights.
    fn dice(count: usize) -> Vec<(i64, u32)> {
        let mut state = 88_172_645_463_325_252u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..count).map(|_| ((next() % 5_000) as i64 - 1_000, (next() % 4) as u32)).collect()
    }

    /// By writing every value as often as it counts, in order: no cleverness at all.
    fn plainly(values: &[(i64, u32)], percent: u64) -> Option<i64> {
        let mut all: Vec<i64> = values.iter().flat_map(|(n, weight)| vec![*n; *weight as usize]).collect();
        all.sort_unstable();
        let rank = (all.len() as u64 * percent).div_ceil(100).max(1);
        all.get(rank as usize - 1).copied()
    }

    #[test]
    fn quantiles_are_what_sorting_says() {
        let db = open();
        db.execute_batch("CREATE TABLE t (x INTEGER, w INTEGER)").unwrap();
        for count in [1, 2, 3, 20, 99, 100, 101, 5_000] {
            let values = dice(count);
            db.execute_batch("DELETE FROM t").unwrap();
            for (n, weight) in &values {
                db.execute("INSERT INTO t VALUES (?1, ?2)", [*n, i64::from(*weight)]).unwrap();
            }
            let alone: Vec<(i64, u32)> = values.iter().map(|(n, _)| (*n, 1)).collect();
            let expected = |found: Option<i64>| found.map_or(Value::Null, Value::Integer);
            for percent in [50, 95, 99] {
                let (plain, weighted) = (format!("p{percent}(x)"), format!("p{percent}(x, w)"));
                assert_eq!(ask(&db, &format!("SELECT {plain} FROM t")), expected(plainly(&alone, percent)), "{count}");
                assert_eq!(
                    ask(&db, &format!("SELECT {weighted} FROM t")),
                    expected(plainly(&values, percent)),
                    "{count}"
                );
            }
            for percent in 0..=100 {
                let sql = format!("SELECT quantile(x, {percent} / 100.0) = quantile(x, {percent} / 100.0, 1) FROM t");
                assert_eq!(ask(&db, &sql), Value::Integer(1));
                let sql = format!("SELECT quantile(x, {percent} / 100.0, w) FROM t");
                assert_eq!(ask(&db, &sql), expected(plainly(&values, percent)), "{percent} % of {count}");
            }
        }
    }

    #[test]
    fn nothing_gives_null_and_fractions_give_fractions() {
        let db = open();
        assert_eq!(ask(&db, "SELECT p50(x) FROM (SELECT 1 AS x) WHERE 0"), Value::Null);
        assert_eq!(ask(&db, "SELECT p50(NULL)"), Value::Null);
        assert_eq!(ask(&db, "SELECT quantile(NULL, 0.5, NULL)"), Value::Null);
        assert_eq!(ask(&db, "SELECT p50(x, 0) FROM (SELECT 7 AS x)"), Value::Null);
        let rows = "(SELECT 3 AS x UNION ALL SELECT NULL UNION ALL SELECT 1 UNION ALL SELECT 2.5)";
        assert_eq!(ask(&db, &format!("SELECT p50(x) FROM {rows}")), Value::Real(2.5));
        assert_eq!(ask(&db, &format!("SELECT quantile(x, 1) FROM {rows}")), Value::Real(3.0));
        assert_eq!(ask(&db, &format!("SELECT quantile(x, 0) FROM {rows}")), Value::Real(1.0));
        assert_eq!(ask(&db, "SELECT p99(x) FROM (SELECT 9223372036854775807 AS x)"), Value::Integer(i64::MAX));
        let rows = "(SELECT -2.5 AS x, 1 AS w UNION ALL SELECT 7, 2 UNION ALL SELECT -3, 2 UNION ALL SELECT 0.0, 1)";
        for (q, value) in [(0.0, -3.0), (0.3, -3.0), (0.4, -2.5), (0.6, 0.0), (0.7, 7.0), (1.0, 7.0)] {
            assert_eq!(ask(&db, &format!("SELECT quantile(x, {q}, w) FROM {rows}")), Value::Real(value), "{q}");
        }
    }

    #[test]
    fn groups_have_their_own_and_leave_no_room_taken() {
        let db = open();
        let numbers = "WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM n WHERE x < 149999)";
        for _ in 0..3 {
            let sql = format!("{numbers} SELECT p50(x) FROM n GROUP BY x % 10 ORDER BY x % 10 LIMIT 1");
            assert_eq!(ask(&db, &sql), Value::Integer(74_990));
        }
        let said = fails(&db, &format!("{numbers} SELECT p50(x), p95(x) FROM n"));
        assert!(said.contains("more than 1.60 MB") && said.contains("`seconds`"), "{said}");
        let weighted = format!("{numbers} SELECT p50(x, 1 + (x = 149999)) FROM n");
        assert!(fails(&db, &weighted).contains("too many values"), "weights take room, too");
        assert_eq!(ask(&db, &format!("{numbers} SELECT p50(x) FROM n")), Value::Integer(74_999), "room again");
    }

    #[test]
    fn wrong_arguments_are_told() {
        let db = open();
        let rows = "(SELECT 1 AS x, 0.1 AS q UNION ALL SELECT 2, 0.9)";
        for (sql, part) in [
            ("SELECT quantile(1, 1.5)".to_owned(), "from 0 to 1, got 1.5"),
            ("SELECT quantile(1, -0.1)".to_owned(), "from 0 to 1, got -0.1"),
            ("SELECT quantile(1, NULL)".to_owned(), "from 0 to 1, got NULL"),
            ("SELECT quantile(1, '0.5')".to_owned(), "the text '0.5'"),
            (format!("SELECT quantile(x, q) FROM {rows}"), "the same in every row, got 0.1 and 0.9"),
            ("SELECT p95('slow')".to_owned(), "p95 takes numbers, got the text 'slow'"),
            ("SELECT p95(x'00ff')".to_owned(), "a blob of 2 bytes"),
            ("SELECT p50(1, -1)".to_owned(), "invalid weight in p50: expected a whole number from 0 on, got -1"),
            ("SELECT p50(1, 0.5)".to_owned(), "got 0.5"),
            ("SELECT p50(1, NULL)".to_owned(), "got NULL"),
            ("SELECT p50()".to_owned(), "wrong number of arguments"),
            (format!("SELECT p50(x) OVER () FROM {rows}"), "may not be used as a window function"),
            ("SELECT human_time('soon')".to_owned(), "human_time takes a number"),
        ] {
            let said = fails(&db, &sql);
            assert!(said.contains(part), "{sql}: {said}");
        }
    }

    #[test]
    fn a_views_own_sql_cannot_make_quantiles_hold_memory() {
        let db = open();
        db.execute_batch("CREATE VIEW v AS SELECT p50(1) AS x; CREATE VIEW w AS SELECT human_bytes(1) AS x").unwrap();
        assert!(fails(&db, "SELECT x FROM v").contains("unsafe use of p50"));
        assert_eq!(ask(&db, "SELECT x FROM w"), Value::Text("1 B".into()));
    }

    #[test]
    fn numbers_read_well() {
        let db = open();
        for (sql, text) in [
            ("human_time(7200000)", "7.20 ms"),
            ("human_time(-1500)", "-1.50 µs"),
            ("human_time(1499.6)", "1.50 µs"),
            ("human_time(-0.2)", "0 ns"),
            ("human_bytes(207000000000)", "207 GB"),
            ("human_bytes(-9223372036854775807 - 1)", "-9223372 TB"),
            ("human_bytes(9e99)", "18446744 TB"),
        ] {
            assert_eq!(ask(&db, &format!("SELECT {sql}")), Value::Text(text.into()), "{sql}");
        }
        assert_eq!(ask(&db, "SELECT human_time(NULL)"), Value::Null);
    }
}
