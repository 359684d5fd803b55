// SPDX-License-Identifier: Apache-2.0
//! Why the kernel refused a program. libbpf prints it and returns only a number, so its words are listened to.

use std::sync::Mutex;

/// A program the kernel would not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Its name; none if the kernel refused something else, a map for instance.
    pub program: Option<String>,
    /// What libbpf and the kernel's verifier said, the last lines of it.
    pub said: Vec<String>,
}

/// The verifier's reason is among its last lines; before them comes every instruction it looked at, in megabytes.
const LINES: usize = 24;
const MOST_BYTES: usize = 1 << 20;

static SAID: Mutex<String> = Mutex::new(String::new());

fn remember(_level: libbpf_rs::PrintLevel, text: String) {
    if let Ok(mut said) = SAID.lock() {
        said.push_str(&text);
        let surplus = said.len().saturating_sub(MOST_BYTES);
        let from = said.ceil_char_boundary(surplus);
        said.drain(..from);
    }
}

/// Runs what loads programs, and tells what libbpf said meanwhile.
pub(super) fn listen<T>(load: impl FnOnce() -> T) -> (T, Refusal) {
    let take = || SAID.lock().map(|mut said| std::mem::take(&mut *said)).unwrap_or_default();
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, remember)));
    take();
    let result = load();
    (result, Refusal::read(&take()))
}

impl Refusal {
    /// Whether the verifier looked at the program, rather than that the kernel does not know its kind.
    pub fn is_verifiers(&self) -> bool {
        self.said.iter().any(|line| line.contains("PROG LOAD LOG"))
    }

    /// The program and what was said of it, to be printed.
    pub fn lines(&self) -> Vec<String> {
        let program = self.program.as_deref().unwrap_or("an eBPF map or program");
        std::iter::once(format!("the kernel refused {program}:")).chain(self.said.iter().cloned()).collect()
    }

    fn read(said: &str) -> Self {
        // libbpf: prog 'on_switch': BPF program load failed: -EINVAL
        let failed = said.lines().find(|line| line.starts_with("libbpf: prog '") && line.contains("fail"));
        let program = failed.and_then(|line| line.split('\'').nth(1)).map(str::to_owned);
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let kept = &lines[lines.len().saturating_sub(LINES)..];
        Self { program, said: kept.iter().map(|line| (*line).to_owned()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_the_verifiers_last_words_are_found() {
        let instructions: String = (0..500).map(|n| format!("{n}: r1 = r{n}\n")).collect();
        let said = format!(
            "libbpf: prog 'on_switch': BPF program load failed: -EINVAL\nlibbpf: prog 'on_switch': -- BEGIN PROG LOAD LOG --\n\
             {instructions}back-edge from insn 1489 to 1490\n\n-- END PROG LOAD LOG --\nlibbpf: failed to load object\n"
        );
        let refusal = Refusal::read(&said);
        assert_eq!(refusal.program.as_deref(), Some("on_switch"));
        assert!(refusal.is_verifiers() && refusal.said.len() == LINES);
        assert!(refusal.said.contains(&"back-edge from insn 1489 to 1490".to_owned()), "{refusal:?}");
        let absent = Refusal::read("libbpf: prog 'session': failed to load: -EINVAL\n");
        assert_eq!((absent.program.as_deref(), absent.is_verifiers()), (Some("session"), false));
        // Loaded, but not attached: the part that needs it is left out, as when it is refused.
        let attach = Refusal::read("libbpf: prog 'on_irq': failed to attach: -EBUSY\n");
        assert_eq!(attach.program.as_deref(), Some("on_irq"));
        assert_eq!(Refusal::read("libbpf: failed to create map\n").program, None);
    }
}
