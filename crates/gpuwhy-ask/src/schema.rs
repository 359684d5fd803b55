// SPDX-License-Identifier: Apache-2.0
//! The SQL schema: the views of a file with their columns, and the functions.

use crate::Result;
use gpuwhy_model::units;
use gpuwhy_store::functions::FUNCTIONS;
use gpuwhy_store::{Limits, Reader, Value, schema};
use std::ops::ControlFlow;

/// One line per view and per function.
pub fn lines(reader: &Reader) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for view in schema::VIEWS {
        let mut columns = Vec::new();
        reader.query(&format!("PRAGMA table_info({view})"), &Limits::default(), |_, row| {
            if let Some(Value::Text(name)) = row.get(1) {
                columns.push(units::safe(name, 60));
            }
            ControlFlow::Continue(())
        })?;
        // A file of an earlier version does not have every view.
        if !columns.is_empty() {
            lines.push(format!("{view}({})", columns.join(", ")));
        }
    }
    lines.push(String::new());
    lines.push("functions in addition to SQLite's own:".to_owned());
    lines.extend(FUNCTIONS.iter().map(|function| format!("{}: {}", function.call, function.gives)));
    Ok(lines)
}
