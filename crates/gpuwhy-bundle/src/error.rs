// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with a bundle, and what to do then.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a bundle cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder's name belongs to something else.
    #[error("{} is no folder: name one that is empty or does not exist", .path.display())]
    NotAFolder {
        /// Its name.
        path: PathBuf,
    },
    /// Something else is in the folder.
    #[error(
        "{} holds {name:?}, which is no file of a memory bundle: name a folder that is empty, new or an earlier bundle",
        .path.display()
    )]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// What is in it.
        name: String,
    },
    /// There are files of these names, but not of an earlier bundle.
    #[error(
        "{} holds {name:?}, and no manifest.json says that it is an earlier bundle's: name another folder, or remove it",
        .path.display()
    )]
    NotABundle {
        /// The folder.
        path: PathBuf,
        /// What is in it.
        name: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It ends too early.
    #[error("{} ends in the middle, at line {line}: it is cut off; write it again with `gpuwhy memory --bundle`", .path.display())]
    CutOff {
        /// The file.
        path: PathBuf,
        /// The last line there is.
        line: usize,
    },
    /// Something in it is not as it should be.
    #[error(
        "{} line {line}, column {column}: {what}; an events.json is what `gpuwhy memory --bundle` writes, so write it again",
        .path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
        /// What.
        what: String,
    },
    /// It is of another gpuwhy.
    #[error("{} is {schema:?}, and this gpuwhy reads {:?}: use the gpuwhy that wrote it", .path.display(), crate::header::SCHEMA)]
    OtherSchema {
        /// The file.
        path: PathBuf,
        /// What it says it is.
        schema: String,
    },
    /// The run went on meanwhile.
    #[error(
        "the run was still being recorded, and changed meanwhile: write the bundle again, or with --to a moment that is past"
    )]
    Changed,
    /// A picture could not be made.
    #[error("cannot draw the timeline: {what}")]
    Picture {
        /// Why.
        what: String,
    },
    /// Something could not be said in JSON.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}
