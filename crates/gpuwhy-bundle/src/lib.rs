// SPDX-License-Identifier: Apache-2.0
//! GPU memory of a run as files to keep, to hand on and to read back: the bundle of `gpuwhy memory --bundle`
//! (docs/memory-bundle.md).
//!
//! - [`Header`], [`EventsWriter`], [`EventsFile`]: `events.json`, written and read one event at a time.
//! - [`CsvWriter`]: the same as a table for spreadsheets.
//! - [`Timeline`], [`alerts`], [`report`]: what is known, as JSON; [`picture`] and [`page`]: to look at.
//! - [`Folder`]: where the files go, whole or not at all, and the manifest that says what they are.
//!
//! What is written comes from the traced world, and what is read may come from anybody: names are text and nothing else, and
//! a file that is read has bounds. Times are nanoseconds since the run began, sizes are bytes.

pub mod alerts;
mod csv;
mod error;
mod folder;
mod guard;
mod header;
pub mod page;
pub mod picture;
mod read;
pub mod report;
mod row;
mod timeline;
mod write;

pub use csv::CsvWriter;
pub use error::{Error, Result};
pub use folder::{FILES, Folder, Manifest, Output, WrittenFile};
pub use header::{DeviceProcess, DeviceSample, Gpu, Header, Marker, Part, Process, Run, Site, Steps};
pub use read::{EventsFile, is_events_file};
pub use timeline::{Mark, Timeline};
pub use write::EventsWriter;
