// SPDX-License-Identifier: Apache-2.0
//! Limits for a JSON file from an untrusted source: no token of it, and nothing that is kept of it, fills memory.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// The longest string or number: frames and names are far shorter.
const LONGEST_WORD: usize = 64 << 10;
/// Bytes before the events, which are kept.
const LARGEST_HEADER: u64 = 1 << 30;

/// The deepest nesting: a valid file needs only a few levels.
const DEEPEST: u32 = 32;

/// A reader that fails where the JSON exceeds a limit.
pub(crate) struct Guard<R> {
    inner: R,
    in_string: bool,
    escaped: bool,
    word: usize,
    depth: u32,
    kept: u64,
    /// Whether the current bytes are not kept.
    passing: Rc<Cell<bool>>,
}

impl<R: Read> Guard<R> {
    /// `passing` is set while events are read, which are not kept.
    pub(crate) fn new(inner: R, passing: Rc<Cell<bool>>) -> Self {
        Self { inner, in_string: false, escaped: false, word: 0, depth: 0, kept: 0, passing }
    }

    fn see(&mut self, byte: u8) -> io::Result<()> {
        if self.in_string {
            self.word += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => (self.in_string, self.word) = (false, 0),
                _ => {}
            }
        } else {
            match byte {
                b'"' => (self.in_string, self.word) = (true, 0),
                b'{' | b'[' => (self.depth, self.word) = (self.depth + 1, 0),
                b'}' | b']' => (self.depth, self.word) = (self.depth.saturating_sub(1), 0),
                b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' => self.word = 0,
                _ => self.word += 1,
            }
        }
        if !self.passing.get() {
            self.kept += 1;
        }
        let too_large = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()));
        if self.word > LONGEST_WORD {
            return too_large("a string or number of over 64 KiB");
        }
        if self.depth > DEEPEST {
            return too_large("something nested over 32 levels deep");
        }
        if self.kept > LARGEST_HEADER {
            return too_large("over 1 GiB before the events");
        }
        Ok(())
    }
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        for byte in &buffer[..count] {
            self.see(*byte)?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> io::Result<usize> {
        let mut guard = Guard::new(text, Rc::default());
        io::copy(&mut guard, &mut io::sink()).map(|count| count as usize)
    }

    #[test]
    fn long_tokens_are_refused_and_long_files_are_not() {
        let many = "{\"a\\\"\": 1},\n".repeat(50_000);
        assert_eq!(read(many.as_bytes()).unwrap(), many.len());
        assert!(read(format!("\"{}\"", "x".repeat(LONGEST_WORD + 1)).as_bytes()).is_err());
        assert!(read("9".repeat(LONGEST_WORD + 1).as_bytes()).is_err());
        assert!(read(b"[[[]]]").is_ok() && read("[".repeat(40).as_bytes()).is_err());
        assert!(read(" ".repeat(LONGEST_WORD * 2).as_bytes()).is_ok());
    }
}
