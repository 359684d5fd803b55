// SPDX-License-Identifier: Apache-2.0
//! How things look. Pure: data in, lines of text out; where the data comes from and where the text goes
//! is somebody else's business.

pub mod ops_table;
pub mod profile_memory;
pub mod profile_trace;
pub mod style;
pub mod table;

pub use ops_table::{OpRow, OpsTable};
pub use style::Style;
pub use table::{Align, Table};
