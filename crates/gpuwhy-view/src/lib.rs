// SPDX-License-Identifier: Apache-2.0
//! How things look. Pure: data in, lines of text out; where the data comes from and where the text goes
//! is somebody else's business.

pub mod explain_view;
pub mod finding_view;
mod fitted;
pub mod memory_compare;
pub mod memory_live;
pub mod memory_view;
pub mod ops_table;
mod paths;
mod per_process;
pub mod profile_memory;
pub mod profile_trace;
pub mod profile_view;
pub mod stacks_view;
pub mod style;
pub mod table;
mod wrap;

pub use explain_view::ExplainView;
pub use fitted::FittedTable;
pub use memory_view::{MemorySection, MemoryView};
pub use ops_table::{OpRow, OpsTable};
pub use profile_view::{ProfileFile, ProfileReport, ProfileView};
pub use stacks_view::StacksReport;
pub use style::Style;
pub use table::{Align, Table, TableLayout};
pub use wrap::{fold, wrap};
