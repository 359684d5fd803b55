// SPDX-License-Identifier: Apache-2.0
//! Errors of bundles.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a bundle cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is a file of that name.
    #[error("{} is not a folder: name one that is new, empty or an earlier bundle", .path.display())]
    NotAFolder {
        /// Its name.
        path: PathBuf,
    },
    /// The folder contains something else.
    #[error(
        "{} contains {name:?}, which is not part of a memory bundle: name a folder that is new, empty or an earlier bundle",
        .path.display()
    )]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// The other file.
        name: String,
    },
    /// There are files of these names, but no manifest.
    #[error(
        "{} contains {name:?} but no manifest.json of an earlier bundle: name another folder, or remove the file",
        .path.display()
    )]
    NotABundle {
        /// The folder.
        path: PathBuf,
        /// A file in it.
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
    #[error("{} is cut off at line {line}: write it again with `gpuwhy memory --bundle`", .path.display())]
    CutOff {
        /// The file.
        path: PathBuf,
        /// The last line there is.
        line: usize,
    },
    /// Its content is invalid.
    #[error(
        "invalid events.json {}, line {line}, column {column}: {what}; write it again with `gpuwhy memory --bundle`",
        .path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The column.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// It was written by another version of gpuwhy.
    #[error("{} is {schema:?} but this gpuwhy reads {:?}: use the gpuwhy that wrote it", .path.display(), crate::header::SCHEMA)]
    OtherSchema {
        /// The file.
        path: PathBuf,
        /// The schema it names.
        schema: String,
    },
    /// The run grew while the bundle was written.
    #[error(
        "the run is still being recorded and changed meanwhile: write the bundle again, or limit it with --to to a past time"
    )]
    Changed,
    /// The picture could not be drawn.
    #[error("cannot draw the timeline: {what}")]
    Picture {
        /// Why.
        what: String,
    },
    /// Something could not be written as JSON.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}
