// SPDX-License-Identifier: Apache-2.0
//! The token that clients must send: from a file or a variable, or made here. A command-line flag would be visible to
//! every user of the machine.

use anyhow::{Context, bail};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The variable that holds the token if no file is given.
const VARIABLE: &str = "GPUWHY_TOKEN";
/// Maximum length of a token, bytes.
const LONGEST: u64 = 4 << 10;

pub(super) struct Token {
    pub(super) text: String,
    origin: Origin,
}

enum Origin {
    /// Given by the user.
    Given,
    /// Made here and not yet shown.
    Made,
    /// Made here and written to this file.
    WrittenTo(PathBuf),
}

impl Token {
    /// Reads the token from the file, which is created if missing, or else from the variable; without either, makes
    /// one.
    pub(super) fn find(file: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = file {
            return Self::of_file(path);
        }
        let given = std::env::var(VARIABLE).unwrap_or_default();
        match given.trim() {
            "" => Ok(Self { text: random()?, origin: Origin::Made }),
            given => Ok(Self { text: given.to_owned(), origin: Origin::Given }),
        }
    }

    fn of_file(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        match File::open(path) {
            Ok(file) => {
                let text = read(file, path)?;
                Ok(Self { text, origin: Origin::Given })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let text = random()?;
                let mut file = OpenOptions::new();
                let file = file.write(true).create_new(true).mode(0o600).open(path);
                let written = file.and_then(|mut file| writeln!(file, "{text}"));
                written.with_context(|| format!("cannot create the token file {name}"))?;
                Ok(Self { text, origin: Origin::WrittenTo(path.to_owned()) })
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {name}")),
        }
    }

    /// What to show the user about the token.
    pub(super) fn words(&self) -> Option<String> {
        let use_it = "clients send it as Authorization: Bearer TOKEN";
        match &self.origin {
            Origin::Given => None,
            Origin::Made => {
                Some(format!("token {}; {use_it} (set your own with {VARIABLE} or --token-file)", self.text))
            }
            Origin::WrittenTo(path) => Some(format!("wrote a new token to {}; {use_it}", path.display())),
        }
    }
}

fn read(file: File, path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let found = file.metadata().with_context(|| format!("cannot read {name}"))?;
    // The mode of a pipe says nothing about who can read it.
    if found.is_file() && found.mode() & 0o077 != 0 {
        bail!("other users can read or write {name}: run chmod 600 {name} and put a new token in it");
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).with_context(|| format!("cannot read {name}"))?;
    match text.trim() {
        "" => bail!("{name} is empty: put a token in it, or remove it and gpuwhy makes one"),
        token => Ok(token.to_owned()),
    }
}

/// 256 bits from the kernel's random generator, in hexadecimal.
fn random() -> anyhow::Result<String> {
    let mut bytes = [0u8; 32];
    // SAFETY: the buffer is ours and its length is given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len().cast_signed() {
        return Err(std::io::Error::last_os_error()).context("cannot make a token");
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
