// SPDX-License-Identifier: Apache-2.0
//! The token that clients must send: given in a file or a variable, or made here. A flag would be seen by everybody on the machine.

use anyhow::{Context, bail};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where it is looked for if no file is named.
const VARIABLE: &str = "GPUWHY_TOKEN";
/// The longest one, bytes.
const LONGEST: u64 = 4 << 10;

/// A token.
pub(super) struct Token {
    pub(super) text: String,
    made: Made,
}

enum Made {
    /// By whoever started this.
    Elsewhere,
    /// Here, and nobody knows it yet.
    Here,
    /// Here, into this file.
    Into(PathBuf),
}

impl Token {
    /// From a file, which is made if it is not there, or else from the variable; without either a new one.
    pub(super) fn find(file: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = file {
            return Self::of_file(path);
        }
        let given = std::env::var(VARIABLE).unwrap_or_default();
        match given.trim() {
            "" => Ok(Self { text: random()?, made: Made::Here }),
            given => Ok(Self { text: given.to_owned(), made: Made::Elsewhere }),
        }
    }

    fn of_file(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        match File::open(path) {
            Ok(file) => {
                let text = read(file, path)?;
                Ok(Self { text, made: Made::Elsewhere })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let text = random()?;
                let mut file = OpenOptions::new();
                let file = file.write(true).create_new(true).mode(0o600).open(path);
                let written = file.and_then(|mut file| writeln!(file, "{text}"));
                written.with_context(|| format!("cannot create the token file {name}"))?;
                Ok(Self { text, made: Made::Into(path.to_owned()) })
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {name}")),
        }
    }

    /// What whoever started this has to know of it.
    pub(super) fn words(&self) -> Option<String> {
        let use_it = "clients send it as Authorization: Bearer TOKEN";
        match &self.made {
            Made::Elsewhere => None,
            Made::Here => Some(format!("token {}; {use_it} (set your own with {VARIABLE} or --token-file)", self.text)),
            Made::Into(path) => Some(format!("wrote a new token to {}; {use_it}", path.display())),
        }
    }
}

fn read(file: File, path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let found = file.metadata().with_context(|| format!("cannot read {name}"))?;
    // A pipe's end has a mode, too, which says nothing.
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

/// 256 bits of the kernel's.
fn random() -> anyhow::Result<String> {
    let mut bytes = [0u8; 32];
    // SAFETY: the buffer is ours and its length is given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len().cast_signed() {
        return Err(std::io::Error::last_os_error()).context("cannot make a token");
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
