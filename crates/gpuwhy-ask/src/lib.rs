// SPDX-License-Identifier: Apache-2.0
//! Questions and answers: what a run file, or what PyTorch wrote, is asked by every view.
//!
//! The store knows rows, the analyses know events; here is which rows make an answer. The command line, the MCP server and
//! whatever comes next ask the same functions, so their numbers cannot differ.

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

/// Asked now and then whether an answer is still wanted; `true` when it is not.
pub type Stop<'a> = dyn Fn() -> bool + Sync + 'a;
