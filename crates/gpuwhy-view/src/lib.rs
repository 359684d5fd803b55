// SPDX-License-Identifier: Apache-2.0
//! How things look. Pure: data in, lines of text out; where the data comes from and where the text goes
//! is somebody else's business.

pub mod ops_table;
mod paths;
pub mod profile_memory;
pub mod profile_trace;
pub mod stacks_view;
pub mod style;
pub mod table;

pub use ops_table::{OpRow, OpsTable};
pub use stacks_view::StacksReport;
pub use style::Style;
pub use table::{Align, Table};
