// SPDX-License-Identifier: Apache-2.0
//! Colour, or none: on a terminal that wants it, never in a file or a pipe.

/// Wraps text in colours, or leaves it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// No colour at all.
    pub const PLAIN: Self = Self { colour: false };
    /// Colours.
    pub const COLOUR: Self = Self { colour: true };

    /// Colours for a terminal, unless NO_COLOR is set (to anything but nothing) or TERM is dumb.
    pub fn for_output(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let refused = no_color.is_some_and(|v| !v.is_empty()) || term == Some("dumb");
        Self { colour: is_terminal && !refused }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Headings.
    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Less important text.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// Good.
    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Worth a look.
    pub fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Bad.
    pub fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_only_on_a_terminal_that_wants_it() {
        assert_eq!(Style::for_output(true, None, Some("xterm")), Style::COLOUR);
        assert_eq!(Style::for_output(true, Some(""), None), Style::COLOUR);
        assert_eq!(Style::for_output(true, Some("1"), None), Style::PLAIN);
        assert_eq!(Style::for_output(true, None, Some("dumb")), Style::PLAIN);
        assert_eq!(Style::for_output(false, None, Some("xterm")), Style::PLAIN);
        assert_eq!(Style::PLAIN.red("x"), "x");
    }
}
