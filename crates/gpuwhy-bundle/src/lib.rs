// SPDX-License-Identifier: Apache-2.0
//! The bundle of `gpuwhy memory --bundle`: a run's GPU memory as files to keep, share and read back
//! (docs/memory-bundle.md).
//!
//! - [`Header`], [`EventsWriter`], [`EventsFile`]: `events.json`, written and read one event at a time.
//! - [`CsvWriter`]: the same events as a table.
//! - [`Timeline`], [`alerts`], [`report`]: results as JSON; [`picture`] and [`page`]: as a picture and a web page.
//! - [`Folder`]: the folder, written completely or not at all, and its manifest.
//!
//! Names come from the traced processes and are never anything but text. A file that is read may be from an untrusted
//! source, so it has limits. Times are nanoseconds since the run began, sizes are bytes.

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
pub use header::{DeviceProcess, DeviceSample, Gpu, Header, Marker, Process, Run, Selection, Site, Steps};
pub use read::{EventsFile, is_events_file};
pub use timeline::{Mark, Timeline};
pub use write::EventsWriter;
