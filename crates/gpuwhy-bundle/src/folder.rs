// SPDX-License-Identifier: Apache-2.0
//! The folder a bundle is written to. Files get their final names when all of them are written, the manifest last. So a
//! folder with a manifest is complete, and an interrupted write leaves an earlier bundle as it was.
//!
//! Only files of a bundle are overwritten, and symbolic links in place of them are not followed.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The manifest's name and version.
const SCHEMA: &str = "gpuwhy.memory-bundle/1";
const MANIFEST: &str = "manifest.json";
/// Bytes read of a manifest: it is small.
const LARGEST_MANIFEST: u64 = 1 << 20;

/// The files of a bundle, in the order they are listed.
pub const FILES: [&str; 8] = [
    "events.json",
    "events.csv",
    "timeline.json",
    "stats.json",
    "alerts.json",
    "timeline.png",
    "timeline.html",
    MANIFEST,
];

/// A file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

/// `manifest.json`: describes the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `gpuwhy.memory-bundle/1`.
    pub schema: String,
    /// The version of gpuwhy that wrote it.
    pub gpuwhy: String,
    /// When it was written, Unix nanoseconds.
    pub made_unix_ns: u64,
    /// The run.
    pub run: crate::Run,
    /// The selected time range and processes.
    pub part: crate::Selection,
    /// The files, without the manifest.
    pub files: Vec<WrittenFile>,
}

/// A bundle's folder while it is written.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: Vec<WrittenFile>,
    /// This process created the folder, so it removes it if writing fails.
    made: bool,
    /// Files that still have their temporary names.
    unnamed: Vec<&'static str>,
}

/// A file that is being written; counts and hashes its bytes.
#[derive(Debug)]
pub struct Output {
    name: &'static str,
    out: BufWriter<File>,
    bytes: u64,
    hash: Sha256,
}

impl Write for Output {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.out.write(buffer)?;
        self.hash.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn temporary(name: &str) -> String {
    format!(".{name}.part")
}

impl Folder {
    /// Takes a folder that is new, empty or an earlier bundle.
    pub fn take(path: &Path) -> Result<Self> {
        let cannot = |source| Error::Write { path: path.into(), source };
        let made = match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                refuse_others(path)?;
                false
            }
            Ok(_) => return Err(Error::NotAFolder { path: path.into() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Like a run file it contains command lines and paths, so only its owner may read it.
                fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(cannot)?;
                true
            }
            Err(source) => return Err(cannot(source)),
        };
        Ok(Self { path: path.into(), files: Vec::new(), made, unnamed: Vec::new() })
    }

    /// Opens one of [`FILES`] under a temporary name.
    pub fn begin(&mut self, name: &'static str) -> Result<Output> {
        let path = self.path.join(temporary(name));
        let cannot = |source| Error::Write { path: path.clone(), source };
        // A gpuwhy that was killed may have left one.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(cannot)?;
        self.unnamed.push(name);
        Ok(Output { name, out: BufWriter::with_capacity(1 << 18, file), bytes: 0, hash: Sha256::new() })
    }

    /// Completes a file.
    pub fn end(&mut self, mut output: Output) -> Result<()> {
        let flushed = output.out.flush().and_then(|()| output.out.get_ref().sync_data());
        flushed.map_err(|source| self.cannot(output.name, source))?;
        let mut sha256 = String::new();
        for byte in output.hash.finalize() {
            // Writing to a string does not fail.
            let _ = write!(sha256, "{byte:02x}");
        }
        self.files.push(WrittenFile { name: output.name.to_owned(), bytes: output.bytes, sha256 });
        Ok(())
    }

    /// Writes a whole file.
    pub fn put(&mut self, name: &'static str, content: &[u8]) -> Result<()> {
        let mut output = self.begin(name)?;
        output.write_all(content).map_err(|source| self.cannot(name, source))?;
        self.end(output)
    }

    /// The error for a failed write.
    pub fn cannot(&self, name: &str, source: io::Error) -> Error {
        Error::Write { path: self.path.join(name), source }
    }

    /// Writes the manifest and gives every file its final name. Returns all files, the manifest included.
    pub fn finish(
        mut self,
        gpuwhy: &str,
        made_unix_ns: u64,
        run: &crate::Run,
        part: &crate::Selection,
    ) -> Result<Vec<WrittenFile>> {
        let place = |file: &WrittenFile| FILES.iter().position(|name| *name == file.name);
        self.files.sort_by_key(place);
        let manifest = Manifest {
            schema: SCHEMA.to_owned(),
            gpuwhy: gpuwhy.to_owned(),
            made_unix_ns,
            run: run.clone(),
            part: part.clone(),
            files: self.files.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&manifest)?;
        text.push(b'\n');
        self.put(MANIFEST, &text)?;
        while let Some(name) = self.unnamed.first().copied() {
            let renamed = fs::rename(self.path.join(temporary(name)), self.path.join(name));
            renamed.map_err(|source| self.cannot(name, source))?;
            self.unnamed.remove(0);
        }
        self.made = false;
        Ok(std::mem::take(&mut self.files))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for name in &self.unnamed {
            let _ = fs::remove_file(self.path.join(temporary(name)));
        }
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Checks that the folder is empty or an earlier bundle: nothing but a bundle's files, and a manifest.
fn refuse_others(path: &Path) -> Result<()> {
    let cannot = |source| Error::Read { path: path.into(), source };
    let mut ours = None;
    for entry in fs::read_dir(path).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if FILES.iter().any(|file| temporary(file) == name) {
            continue;
        }
        let is_folder = entry.file_type().map_err(cannot)?.is_dir();
        if is_folder || !FILES.contains(&name.as_str()) {
            return Err(Error::Occupied { path: path.into(), name: gpuwhy_model::units::safe(&name, 100) });
        }
        ours = Some(name);
    }
    match ours {
        Some(name) if !has_manifest(path) => Err(Error::NotABundle { path: path.into(), name }),
        _ => Ok(()),
    }
}

fn has_manifest(path: &Path) -> bool {
    #[derive(Deserialize)]
    struct Schema {
        schema: String,
    }
    let path = path.join(MANIFEST);
    // Opening a pipe of this name would block.
    if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST_MANIFEST).read_to_end(&mut text));
    // A bundle of any version counts.
    let is_ours = |found: Schema| found.schema.starts_with("gpuwhy.memory-bundle/");
    read.is_ok() && serde_json::from_slice::<Schema>(&text).is_ok_and(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, content: &[u8]) -> Result<Vec<WrittenFile>> {
        let mut folder = Folder::take(path)?;
        folder.put("stats.json", content)?;
        folder.put("events.csv", b"")?;
        folder.finish("1.2.3", 5, &crate::Run::default(), &crate::Selection::default())
    }

    #[test]
    fn files_get_their_names_together_and_an_earlier_bundle_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let files = write(&path, b"abc").unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["events.csv", "stats.json", "manifest.json"]);
        assert_eq!(files[1].sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let manifest: Manifest = serde_json::from_slice(&fs::read(path.join(MANIFEST)).unwrap()).unwrap();
        assert_eq!((manifest.schema.as_str(), manifest.files.len()), (SCHEMA, 2));
        write(&path, b"later").unwrap();
        assert_eq!(fs::read(path.join("stats.json")).unwrap(), b"later");
        // An interrupted write changes nothing and leaves nothing behind.
        let mut broken = Folder::take(&path).unwrap();
        broken.put("stats.json", b"half").unwrap();
        drop(broken);
        assert_eq!(fs::read(path.join("stats.json")).unwrap(), b"later");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 3);
        drop(Folder::take(&dir.path().join("new")).unwrap());
        assert!(!dir.path().join("new").exists());
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "mine").unwrap();
        assert!(matches!(write(&file, b""), Err(Error::NotAFolder { .. })));
        assert!(matches!(write(dir.path(), b""), Err(Error::Occupied { .. })));
        let mine = dir.path().join("mine");
        fs::create_dir(&mine).unwrap();
        fs::write(mine.join("events.json"), "mine").unwrap();
        let error = write(&mine, b"").unwrap_err();
        assert!(matches!(error, Error::NotABundle { .. }), "{error}");
        fs::write(mine.join("manifest.json"), "{\"schema\": \"of another program\"}").unwrap();
        assert!(write(&mine, b"").is_err());
        assert_eq!(fs::read(mine.join("events.json")).unwrap(), b"mine");
    }
}
