// SPDX-License-Identifier: Apache-2.0
//! A cursor over JSON text that may be broken. It builds no values.
//!
//! A [`Cursor`] understands strings, scalars and nesting, not traces. It accepts what profilers really write
//! (`inf`, `nan`, `N/A`, control characters in strings, invalid UTF-8) and says precisely how it failed: the text
//! ended, or it is not JSON. Numbers become integers straight from their digits: a timestamp of 19 digits does
//! not survive a detour through a float.

use memchr::{memchr, memchr_iter, memchr2, memrchr};

/// Why a value could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The text ended inside it.
    End,
    /// JSON does not allow this text here.
    Syntax,
}

/// A position in JSON text.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
    /// A quote ends a string only where JSON could go on behind it: reads names with unescaped quotes.
    lenient: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(data: &'a [u8], at: usize, lenient: bool) -> Self {
        Self { data, at, lenient }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The bytes from `from` up to here.
    pub(super) fn since(&self, from: usize) -> &'a [u8] {
        self.data.get(from..self.at).unwrap_or_default()
    }

    /// The next byte that is not blank, left where it is.
    #[inline]
    pub(super) fn peek(&mut self) -> Result<u8, Stop> {
        while let Some(&byte) = self.data.get(self.at) {
            if byte > b' ' {
                return Ok(byte);
            }
            self.at += 1;
        }
        Err(Stop::End)
    }

    /// Steps over `byte`, which must come next.
    #[inline]
    pub(super) fn expect(&mut self, byte: u8) -> Result<(), Stop> {
        if self.peek()? != byte {
            return Err(Stop::Syntax);
        }
        self.at += 1;
        Ok(())
    }

    /// Steps over `byte` if it comes next.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> Result<bool, Stop> {
        let found = self.peek()? == byte;
        self.at += usize::from(found);
        Ok(found)
    }

    /// A string as written between its quotes, escapes and all.
    #[inline]
    pub(super) fn string(&mut self) -> Result<&'a [u8], Stop> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            let Some(found) = quote_or_backslash(self.data, self.at) else {
                self.at = self.data.len();
                return Err(Stop::End);
            };
            self.at = found + 1;
            if self.data[found] == b'\\' {
                self.at += 1;
            } else if !self.lenient || self.closes(found + 1) {
                return Ok(&self.data[start..found]);
            }
        }
    }

    /// Whether a string may have ended before `at`: a key's colon, an end, or a comma and a key or another value
    /// that is no string follow. (In a list of strings this reads all of them as one, which does no harm.)
    fn closes(&self, at: usize) -> bool {
        let rest = self.data.get(at..).unwrap_or_default().trim_ascii_start();
        match rest.first() {
            None | Some(b':' | b'}' | b']') => true,
            Some(b',') => {
                let next = rest[1..].trim_ascii_start();
                match next.split_first() {
                    None => true,
                    Some((b'"', next)) => is_key(next),
                    Some((b, _)) => matches!(b, b'{' | b'[' | b'-' | b'0'..=b'9'),
                }
            }
            Some(_) => false,
        }
    }

    /// The next member's key, its colon stepped over; `None` at the object's end, which is stepped over.
    #[inline]
    pub(super) fn key(&mut self) -> Result<Option<&'a [u8]>, Stop> {
        loop {
            match self.peek()? {
                b'"' => break,
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(None);
                }
                _ => return Err(Stop::Syntax),
            }
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(Some(key))
    }

    /// A string's content or a bare word (number, `true`, `inf`, `N/A`); an array or object gives nothing and is
    /// stepped over.
    #[inline]
    pub(super) fn scalar(&mut self) -> Result<&'a [u8], Stop> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => {
                self.nested()?;
                Ok(&[])
            }
            _ => self.word(),
        }
    }

    #[inline]
    fn word(&mut self) -> Result<&'a [u8], Stop> {
        let start = self.at;
        while let Some(&byte) = self.data.get(self.at) {
            if ENDS_WORD[byte as usize] {
                let word = &self.data[start..self.at];
                let broken = word.is_empty() || matches!(byte, b'"' | b'{' | b'[' | b':');
                return if broken { Err(Stop::Syntax) } else { Ok(word) };
            }
            self.at += 1;
        }
        Err(Stop::End)
    }

    /// Skips any value.
    #[inline]
    pub(super) fn skip(&mut self) -> Result<(), Stop> {
        match self.peek()? {
            b'"' => self.string().map(|_| ()),
            b'{' | b'[' => self.nested(),
            _ => self.word().map(|_| ()),
        }
    }

    /// Skips an array or object.
    fn nested(&mut self) -> Result<(), Stop> {
        let object = self.data.get(self.at) == Some(&b'{');
        self.at += 1;
        if object { self.leave() } else { self.leave_array() }
    }

    /// Steps over the rest of the array the cursor is in, its end included; jumps as [`Self::leave`] does over
    /// arrays of plain values and over nested arrays of numbers, the two kinds an op's arguments come in.
    fn leave_array(&mut self) -> Result<(), Stop> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let count = |byte: u8, text: &[u8]| memchr_iter(byte, text).count();
        if let Some(end) = memchr(b']', rest).filter(|_| !self.lenient) {
            let flat = &rest[..end];
            if memchr2(b'[', b'\\', flat).is_none() && count(b'"', flat).is_multiple_of(2) {
                self.at += end + 1;
                return Ok(());
            }
            // Up to the next key, or the end of the object.
            let numbers = &rest[..memchr2(b'"', b'}', rest).unwrap_or(0)];
            if let Some(end) = memrchr(b']', numbers).filter(|_| count(b'[', numbers) + 1 == count(b']', numbers)) {
                self.at += end + 1;
                return Ok(());
            }
        }
        self.count_brackets()
    }

    /// Steps over the rest of the object the cursor is in, its end included.
    ///
    /// Whole stretches between braces are jumped over: as many quotes as make pairs and no backslash mean that the
    /// next brace is not inside a string. Otherwise every byte is checked.
    pub(super) fn leave(&mut self) -> Result<(), Stop> {
        let start = self.at;
        let mut depth = 1;
        while !self.lenient {
            let rest = self.data.get(self.at..).unwrap_or_default();
            let Some(brace) = memchr2(b'{', b'}', rest) else { break };
            let stretch = &rest[..brace];
            if !memchr_iter(b'"', stretch).count().is_multiple_of(2) || memchr(b'\\', stretch).is_some() {
                break;
            }
            self.at += brace + 1;
            if rest[brace] == b'{' {
                depth += 1;
            } else {
                depth -= 1;
                if depth == 0 {
                    return Ok(());
                }
            }
        }
        self.at = start;
        self.count_brackets()
    }

    /// Steps over everything up to the end of the enclosing array or object. Brackets are counted, not matched:
    /// enough to find an end, and a mix-up shows at the next key.
    fn count_brackets(&mut self) -> Result<(), Stop> {
        let mut depth = 1usize;
        while let Some(&byte) = self.data.get(self.at) {
            match byte {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return Ok(());
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        Err(Stop::End)
    }
}

/// Whether what follows an opening quote is a key: a string and a colon. What is cut off may be one.
fn is_key(text: &[u8]) -> bool {
    let Some(end) = memchr(b'"', text) else { return true };
    text[end + 1..].trim_ascii_start().first().is_none_or(|b| *b == b':')
}

/// Bytes that end a number or another bare word.
static ENDS_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte <= b' ' as usize {
        table[byte] = true;
        byte += 1;
    }
    let marks = b",}]\"{[:";
    let mut i = 0;
    while i < marks.len() {
        table[marks[i] as usize] = true;
        i += 1;
    }
    table
};

/// The offset of the next `"` or `\`. Most strings of a trace are keys of a few bytes: those are found a word at a
/// time, before a vector search would have got going.
#[inline]
fn quote_or_backslash(data: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    for _ in 0..3 {
        let Some(Ok(eight)) = data.get(at..at + 8).map(<[u8; 8]>::try_from) else { break };
        let word = u64::from_le_bytes(eight);
        let hit = zero_bytes(word ^ (LOW * b'"' as u64)) | zero_bytes(word ^ (LOW * b'\\' as u64));
        if hit != 0 {
            return Some(at + (hit.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    memchr2(b'"', b'\\', data.get(at..)?).map(|found| at + found)
}

const LOW: u64 = 0x0101_0101_0101_0101;

/// The high bit of each zero byte; bits above the lowest may be wrong, the lowest never is.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & (LOW << 7)
}

/// Microseconds as decimal text to integer nanoseconds, rounded half away from zero; `None` if the text is not a
/// number or does not fit.
pub(super) fn nanos(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let mut value: u64 = 0;
    let mut at = 0;
    while let Some(digit) = digits.get(at).map(|b| b.wrapping_sub(b'0')).filter(|d| *d < 10) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        at += 1;
    }
    let whole_digits = at;
    let mut fraction = [0u8; 4];
    let mut fraction_digits = 0;
    if digits.get(at) == Some(&b'.') {
        at += 1;
        while let Some(digit) = digits.get(at).map(|b| b.wrapping_sub(b'0')).filter(|d| *d < 10) {
            if let Some(slot) = fraction.get_mut(fraction_digits) {
                *slot = digit;
            }
            fraction_digits += 1;
            at += 1;
        }
    }
    if whole_digits + fraction_digits == 0 {
        return None;
    }
    let sign = if negative { -1 } else { 1 };
    if at < digits.len() {
        return scientific(digits, at).map(|ns| ns * sign);
    }
    let [tenths, hundredths, thousandths, next] = fraction.map(u64::from);
    let below = tenths * 100 + hundredths * 10 + thousandths + u64::from(next >= 5);
    let ns = value.checked_mul(1000)?.checked_add(below)?;
    Some(i64::try_from(ns).ok()? * sign)
}

/// `1.5e+3` and the like, whose mantissa ends before `exponent_at`. Rare (files rewritten by other tools).
fn scientific(digits: &[u8], exponent_at: usize) -> Option<i64> {
    let exponent = digits.get(exponent_at..)?;
    let exponent = exponent.strip_prefix(b"e").or_else(|| exponent.strip_prefix(b"E"))?;
    let exponent: i32 = std::str::from_utf8(exponent).ok()?.parse().ok()?;
    let (mut mantissa, mut scale) = (0i128, exponent.checked_add(3)?);
    let mut past_point = false;
    for &byte in digits.get(..exponent_at)? {
        if byte == b'.' {
            past_point = true;
        } else if mantissa < i128::from(i64::MAX) {
            mantissa = mantissa * 10 + i128::from(byte - b'0');
            scale -= i32::from(past_point);
        } else {
            scale += i32::from(!past_point);
        }
    }
    if mantissa == 0 {
        return Some(0);
    }
    while scale > 0 {
        mantissa = mantissa.checked_mul(10).filter(|m| *m <= i128::from(i64::MAX))?;
        scale -= 1;
    }
    while scale < 0 && mantissa > 0 {
        mantissa = if scale == -1 { (mantissa + 5) / 10 } else { mantissa / 10 };
        scale += 1;
    }
    i64::try_from(mantissa).ok()
}

/// A whole number; a fraction is cut off. `None` if it is not a number, negative or too large.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for (i, &byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' => value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?,
            b'.' if i > 0 => break,
            _ => return None,
        }
    }
    (!text.is_empty()).then_some(value)
}

/// A whole number with a sign.
pub(super) fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(rest) => unsigned(rest).and_then(|v| i64::try_from(v).ok()).map(|v| -v),
        None => unsigned(text).and_then(|v| i64::try_from(v).ok()),
    }
}

/// A string's bytes with its escapes resolved, as text; invalid UTF-8 becomes replacement characters.
pub(super) fn unescape(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    if !text.contains('\\') {
        return text.into_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('u') => out.push(unicode(&mut chars)),
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

/// The character behind `\u`; surrogate pairs are joined, halves replaced.
fn unicode(chars: &mut std::str::Chars<'_>) -> char {
    let hex = |chars: &mut std::str::Chars<'_>| {
        let digits = chars.as_str().get(..4)?;
        let code = u32::from_str_radix(digits, 16).ok()?;
        *chars = chars.as_str()[4..].chars();
        Some(code)
    };
    let Some(first) = hex(chars) else { return char::REPLACEMENT_CHARACTER };
    if (0xd800..0xdc00).contains(&first) && chars.as_str().starts_with("\\u") {
        let mut ahead = chars.clone();
        ahead.nth(1);
        if let Some(second) = hex(&mut ahead).filter(|s| (0xdc00..0xe000).contains(s)) {
            *chars = ahead;
            let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            return char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        }
    }
    char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_every_digit() {
        assert_eq!(nanos(b"1712195495519689.047"), Some(1_712_195_495_519_689_047));
        assert_eq!(nanos(b"3387.341"), Some(3_387_341));
        assert_eq!(nanos(b"19"), Some(19_000));
        assert_eq!(nanos(b"0.5"), Some(500));
        assert_eq!(nanos(b"63.8130001"), Some(63_813));
        assert_eq!(nanos(b"63.8129999"), Some(63_813));
        assert_eq!(nanos(b"0.9999999"), Some(1_000));
        assert_eq!(nanos(b"-1.25"), Some(-1_250));
        assert_eq!(nanos(b"1.712195495519689e+15"), Some(1_712_195_495_519_689_000));
        assert_eq!(nanos(b"1e-3"), Some(1));
        assert_eq!(nanos(b"5e-4"), Some(1));
        assert_eq!(nanos(b"0e999999"), Some(0));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [&b""[..], b"-", b".", b"nan", b"inf", b"N/A", b"99999999999999999999", b"1e30", b"1x", b"1e"] {
            assert_eq!(nanos(text), None, "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn whole_numbers() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"12.5"), Some(12));
        assert_eq!(signed(b"-7"), Some(-7));
        assert_eq!(signed(b"0x0"), None);
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(br#"a\"b\\c\/\u00e9\ud83d\ude00\n"#), "a\"b\\c/é😀\n");
        assert_eq!(unescape(br"\ud83d x \u12"), "\u{fffd} x \u{fffd}12");
        assert_eq!(unescape(b"\xff"), "\u{fffd}");
    }

    #[test]
    fn strings_end_where_they_should() {
        let long = format!("\"{}\\\"{}\" ,", "x".repeat(40), "y".repeat(9));
        let text = Cursor::new(long.as_bytes(), 0, false).string().unwrap();
        assert_eq!(text.len(), 51);
        let broken = br#""say "hi" twice", "pid": 1"#;
        assert_eq!(Cursor::new(broken, 0, false).string().unwrap(), b"say ");
        assert_eq!(Cursor::new(broken, 0, true).string().unwrap(), br#"say "hi" twice"#);
        let call = br#""f("a","b")", "pid": 1"#;
        assert_eq!(Cursor::new(call, 0, true).string().unwrap(), br#"f("a","b")"#);
        let mut list = Cursor::new(br#"["float", "", "int"], "pid": 1"#, 0, true);
        assert_eq!((list.skip(), list.peek()), (Ok(()), Ok(b',')));
    }

    #[test]
    fn values_are_stepped_over() {
        for text in [
            "[[1, 2], [], \"]\"] ,",
            "{\"a\": {\"b\": \"}\"}} ,",
            "{\"a\": {\"b\": 1}, \"c\": [{}]} ,",
            "{\"\\\\\": \"{\"} ,",
            "inf ,",
            "N/A ,",
            "-1.5e3 ,",
            "\"x\\\\\" ,",
        ] {
            let mut cursor = Cursor::new(text.as_bytes(), 0, false);
            assert_eq!(cursor.skip(), Ok(()), "{text}");
            assert_eq!(cursor.peek(), Ok(b','), "{text}");
        }
        assert_eq!(Cursor::new(b"[1, ", 0, false).skip(), Err(Stop::End));
        assert_eq!(Cursor::new(b"{\"a\": {}, ", 0, false).skip(), Err(Stop::End));
    }
}
