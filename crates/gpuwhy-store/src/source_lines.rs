// SPDX-License-Identifier: Apache-2.0
//! Lines of source that stacks name.

use crate::{Reader, Result};
use gpuwhy_model::SourceLine;
use rusqlite::{Connection, params};

/// If the line exists with a different text, it is cleared: with different files of one name, it is unknown which one a
/// stack means.
pub(crate) const CONFLICT: &str = "ON CONFLICT (file, line) DO UPDATE SET
    text = CASE WHEN text IS excluded.text THEN text END, around = CASE WHEN around IS excluded.around THEN around END";

/// Lines read of a file: it may be anybody's.
const MOST_LINES: u32 = 1 << 16;
/// Characters read of each.
const MOST_TEXT: u32 = 1_000;

/// Writes lines inside the open transaction.
pub(crate) fn write(db: &Connection, lines: &[SourceLine]) -> rusqlite::Result<()> {
    let sql = format!("INSERT INTO source_line_ (file, line, text, around) VALUES (?1, ?2, ?3, ?4) {CONFLICT}");
    let mut upsert = db.prepare_cached(&sql)?;
    for line in lines {
        upsert.execute(params![line.file, line.line, line.text, line.around])?;
    }
    Ok(())
}

impl Reader {
    /// Lines of source that stacks name. Files of earlier versions have none.
    pub fn source_lines(&self) -> Result<Vec<SourceLine>> {
        let table = "SELECT 1 FROM sqlite_master WHERE name = 'source_line_' AND type = 'table'";
        if self.rows(table, [], |_| Ok(()))?.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT file, line, substr(text, 1, {MOST_TEXT}), substr(around, 1, {MOST_TEXT}) FROM source_line_
             WHERE typeof(line) = 'integer' AND line BETWEEN 1 AND 4294967295 LIMIT {MOST_LINES}"
        );
        self.rows(&sql, [], |row| {
            Ok(SourceLine { file: row.get(0)?, line: row.get(1)?, text: row.get(2)?, around: row.get(3)? })
        })
    }
}
