// SPDX-License-Identifier: Apache-2.0
//! The questions that every view asks of run files and PyTorch's files, and their answers.
//!
//! The store knows rows, the analyses know events; this crate knows which rows an answer needs. The command line and
//! the MCP server call the same functions, so their numbers cannot differ.

pub mod compare;
mod error;
pub mod explain;
pub mod memory;
pub mod part;
mod process_calls;
pub mod profile;
pub mod runs;
pub mod schema;
pub mod stats;

pub use error::{Error, Result};
pub use explain::Explained;
pub use gpuwhy_why::process_calls::{ProcessCalls, tail_ratio};
pub use gpuwhy_why::report::JobReport;
pub use memory::Examined;
pub use part::{Asked, Part};
pub use process_calls::process_calls;

/// Called regularly during an analysis; `true` means stop.
pub type Stop<'a> = dyn Fn() -> bool + Sync + 'a;
