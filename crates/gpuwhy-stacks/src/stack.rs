// SPDX-License-Identifier: Apache-2.0
//! Stacks as the run file keeps them: text, one frame a line, innermost first.

use crate::owner::{Owner, frame_owner};
use std::fmt;

/// One frame: `/home/me/train.py:74 Model.forward`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The source file, with its whole path as Python has it.
    pub file: String,
    /// The function; with its class from Python 3.11 on.
    pub function: String,
    /// The executing line, from 1; `None` where Python has none for the instruction or it could not be read.
    pub line: Option<u32>,
}

impl Frame {
    /// A frame of which nothing is known but that it was there.
    pub fn unknown() -> Self {
        Self { file: "?".into(), function: "?".into(), line: None }
    }

    /// Whose frame it is.
    pub fn owner(&self) -> Owner {
        if self.file == "?" { Owner::Native } else { frame_owner(&self.file, &self.function) }
    }

    /// Reads what [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let (place, function) = text.rsplit_once(' ')?;
        let (file, line) = place.rsplit_once(':')?;
        let line = if line == "?" { None } else { Some(line.parse().ok()?) };
        Some(Self { file: file.to_owned(), function: function.to_owned(), line })
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", OneLine { text: &self.file, spaces: true })?;
        match self.line {
            Some(line) => write!(f, "{line}")?,
            None => write!(f, "?")?,
        }
        write!(f, " {}", OneLine { text: &self.function, spaces: false })
    }
}

/// A name that cannot be mistaken for two: lines end at `\n`, and the last space is before the function.
struct OneLine<'a> {
    text: &'a str,
    spaces: bool,
}

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            return f.write_str("?");
        }
        for c in self.text.chars() {
            let c = match c {
                c if c.is_control() => char::REPLACEMENT_CHARACTER,
                ' ' if !self.spaces => '_',
                c => c,
            };
            fmt::Write::write_char(f, c)?;
        }
        Ok(())
    }
}

/// A stack's text and what is worked out from it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// One frame a line, innermost first.
    pub frames: String,
    /// The innermost frame of your code; without one, of a package; otherwise the innermost frame. Empty if there are
    /// no frames.
    pub top_line: String,
    /// Whether `top_line` is your code.
    pub yours: bool,
    /// A hash of `frames`, the same in every run; positive, as SQLite likes its keys.
    pub id: i64,
}

impl Stack {
    /// From frames, innermost first.
    pub fn new(frames: &[Frame]) -> Self {
        let lines: Vec<String> = frames.iter().map(Frame::to_string).collect();
        let text = lines.join("\n");
        // min_by_key takes the first of equals, which is the innermost.
        let top = frames.iter().enumerate().min_by_key(|(_, frame)| frame.owner());
        Self {
            top_line: top.and_then(|(index, _)| lines.get(index)).cloned().unwrap_or_default(),
            yours: top.is_some_and(|(_, frame)| frame.owner() == Owner::You),
            id: id_of(&text),
            frames: text,
        }
    }

    /// The frames of a stored text; invalid lines are left out.
    pub fn parse(frames: &str) -> impl Iterator<Item = Frame> {
        frames.lines().filter_map(Frame::parse)
    }
}

/// FNV-1a, then a mix so that all 63 bits depend on all bytes. Written out here because run files keep it: it may
/// never change.
fn id_of(text: &str) -> i64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^= hash >> 29;
    ((hash & i64::MAX as u64) as i64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32, function: &str) -> Frame {
        Frame { file: file.into(), function: function.into(), line: Some(line) }
    }

    #[test]
    fn the_text_is_one_frame_a_line_and_reads_back() {
        let frames = [
            frame("/opt/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125, "Linear.forward"),
            frame("/home/me/my models/net:2.py", 74, "Net.forward"),
            Frame { line: None, ..frame("/home/me/train.py", 0, "main") },
        ];
        let stack = Stack::new(&frames);
        assert_eq!(stack.frames.lines().count(), 3);
        assert_eq!(stack.top_line, "/home/me/my models/net:2.py:74 Net.forward");
        assert!(stack.yours);
        assert_eq!(Stack::parse(&stack.frames).collect::<Vec<_>>(), frames);
    }

    #[test]
    fn names_cannot_forge_frames() {
        let stack = Stack::new(&[frame("a\nb.py", 1, "f g\n"), frame("", 2, "")]);
        assert_eq!(stack.frames, "a\u{fffd}b.py:1 f_g\u{fffd}\n?:2 ?");
    }

    #[test]
    fn without_your_code_a_package_speaks_then_the_innermost() {
        let torch = frame("/x/site-packages/torch/_tensor.py", 1, "backward");
        let package = frame("/x/site-packages/trl/trainer.py", 2, "step");
        let stack = Stack::new(&[torch.clone(), package.clone()]);
        assert_eq!((stack.top_line.as_str(), stack.yours), ("/x/site-packages/trl/trainer.py:2 step", false));
        assert_eq!(Stack::new(std::slice::from_ref(&torch)).top_line, torch.to_string());
        assert_eq!(Stack::new(&[]).top_line, "");
    }

    #[test]
    fn ids_stay_what_they_are_in_old_run_files() {
        assert_eq!(Stack::new(&[frame("/home/me/train.py", 74, "main")]).id, 9_173_961_725_876_289_399);
        assert!(Stack::new(&[]).id > 0);
    }
}
