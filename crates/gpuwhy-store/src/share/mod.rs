// SPDX-License-Identifier: Apache-2.0
//! A copy of a run for others: times, sizes and counts are unchanged, texts are reduced to what an answer needs.
//!
//! The copy is made row by row, like the result of a merge, so it never contained what is left out. The same table
//! (`merge/tables.rs`) defines what happens to each column. Findings are left out, because their texts quote names;
//! explaining the copy finds them again.

mod reducer;

pub(crate) use reducer::Reducer;

use crate::merge::copy::Copier;
use crate::merge::input::{Input, open_all};
use crate::merge::tables::{EVENTS, RUN, TABLES, Table, read_as};
use crate::merge::target::Target;
use crate::{Error, Owner, Result};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

/// What to copy, and where to write it.
pub struct ShareRequest<'a> {
    /// The run file.
    pub path: &'a PathBuf,
    /// The file to be made.
    pub output: &'a Path,
    /// Words to hide wherever they stand: names of users, machines, projects.
    pub hide: &'a [String],
    /// Whether lines of source stay.
    pub keep_source: bool,
    /// Owner of the new file; `None`: the current user.
    pub owner: Option<Owner>,
}

/// A copy for others, and what its reader can learn from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Events in it.
    pub stored: u64,
    /// Names of programs that are in it.
    pub programs: Vec<String>,
    /// Names of files of the user's own code that are in it.
    pub files: Vec<String>,
    /// Command lines whose arguments were removed.
    pub commands: u64,
}

/// Makes a copy for others. `go_on` is called regularly; when it returns false, the partial copy is removed.
pub fn share(request: &ShareRequest<'_>, mut go_on: impl FnMut() -> bool) -> Result<Shared> {
    copy(request, &mut go_on).map_err(|error| match error {
        Error::CannotMerge { path, what } => Error::CannotShare { path, what },
        other => other,
    })
}

fn copy(request: &ShareRequest<'_>, go_on: &mut dyn FnMut() -> bool) -> Result<Shared> {
    let target = Target::create(request.output, request.owner)?;
    let mut inputs = open_all(from_ref(request.path))?;
    target.begin()?;
    for input in &mut inputs {
        target.know_words(input)?;
    }
    let reducer = RefCell::new(Reducer::new(request.hide, request.keep_source));
    for input in &inputs {
        learn(input, &mut reducer.borrow_mut())?;
    }
    let mut copier = Copier { db: target.db(), path: target.path(), go_on, rows: 0, reducer: Some(&reducer) };
    for table in RUN.iter().chain(&TABLES) {
        for input in &inputs {
            copier.table(input, table)?;
        }
    }
    for table in &EVENTS {
        copier.events(&inputs, table)?;
    }
    let stored = inputs.iter().map(|input| input.session.counts[1].cast_unsigned()).sum();
    let reducer = reducer.into_inner();
    if reducer.overflowed {
        return Err(Error::CannotShare {
            path: request.path.clone(),
            what: "it has more distinct names than share can keep apart".into(),
        });
    }
    Ok(Shared {
        size_bytes: target.finish()?,
        stored,
        programs: reducer.programs.into_iter().collect(),
        files: reducer.own_files.into_iter().collect(),
        commands: reducer.commands,
    })
}

/// Before anything is copied: names of users are found in paths, and may stand in texts that come before those.
fn learn(input: &Input, reducer: &mut Reducer) -> Result<()> {
    for table in RUN.iter().chain(&TABLES).filter(|table| input.has(table.since)) {
        for (column, _) in table.columns.iter().filter(|(_, kind)| kind.says().is_some()) {
            learn_column(input, table, column, reducer).map_err(|source| input.failed(source))?;
        }
    }
    Ok(())
}

fn learn_column(input: &Input, table: &Table, column: &'static str, reducer: &mut Reducer) -> rusqlite::Result<()> {
    let column = read_as(table.name, column, input.version);
    let sql = format!("SELECT {column} FROM {} WHERE typeof({column}) = 'text'", table.name);
    let mut select = input.db.prepare(&sql)?;
    let mut rows = select.raw_query();
    while let Some(row) = rows.next()? {
        reducer.learn(&String::from_utf8_lossy(row.get_ref(0)?.as_bytes()?));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::tables::{Kind, Says};
    use crate::{Reader, schema};
    use gpuwhy_model::Histogram;
    use rusqlite::types::Value;
    use rusqlite::{Connection, params_from_iter};

    /// Words that must not occur in a copy.
    const PLANTED: [&str; 6] = ["plantedann", "secretdir", "hunter2", "plantedhost", "planted-id", "plantedsource"];

    /// A value that a column may have, with something planted wherever a text is more than a word of gpuwhy's own.
    fn planted(kind: Kind) -> Value {
        let text = match kind {
            Kind::Text(Says::Word) => "word",
            Kind::Text(Says::Name) => "kernel_of_plantedann<float>",
            Kind::Text(Says::Figures) => "{\"of\": \"/home/plantedann/secretdir\"}",
            Kind::Text(Says::Sentence) => "5 MB/s at /home/plantedann/secretdir/file.py:3 (plantedhost, pid 5)",
            Kind::Text(Says::Program | Says::Command) => "/home/plantedann/secretdir/prog --token hunter2",
            Kind::Text(Says::Path) => "/home/plantedann/secretdir/libmine.so",
            Kind::Text(Says::Line) => "/home/plantedann/secretdir/file.py:3 step",
            Kind::Text(Says::Frames) => "/home/plantedann/secretdir/file.py:3 step\nno frame of hunter2's",
            Kind::Text(Says::Identity) | Kind::CgroupPath => "planted-id",
            Kind::Text(Says::Flags) => "trace --db /home/plantedann/secretdir/x.db --token hunter2",
            Kind::Text(Says::Source) => "plantedsource = 'hunter2'",
            Kind::Histogram => return Value::Blob(Histogram::default().encode()),
            Kind::Cpu | Kind::Cpus | Kind::Gpu | Kind::Input => return Value::Integer(0),
            _ => return Value::Integer(1),
        };
        Value::Text(text.into())
    }

    fn insert(db: &Connection, table: &Table) {
        let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
        let places = vec!["?"; names.len()].join(", ");
        let sql = format!("INSERT OR REPLACE INTO {} ({}) VALUES ({places})", table.name, names.join(", "));
        db.execute(&sql, params_from_iter(table.columns.iter().map(|(_, kind)| planted(*kind)))).unwrap();
    }

    fn copied(path: &PathBuf, output: &Path) -> Shared {
        let hide = ["plantedhost".to_owned()];
        let request = ShareRequest { path, output, hide: &hide, keep_source: false, owner: None };
        share(&request, || true).unwrap()
    }

    #[test]
    fn nothing_that_was_planted_in_any_column_is_in_the_bytes_of_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let (path, output) = (folder.path().join("run.db"), folder.path().join("out.db"));
        let db = Connection::open(&path).unwrap();
        schema::create(&db).unwrap();
        for table in RUN.iter().chain(&TABLES).chain(&EVENTS) {
            insert(&db, table);
        }
        db.execute(
            "INSERT INTO causal_chain_ (detected_at, severity, kind, summary) VALUES (1, 'low', 'x', 'by plantedann')",
            [],
        )
        .unwrap();
        db.execute_batch("COMMIT").unwrap();
        drop(db);
        let shared = copied(&path, &output);
        assert_eq!(
            (shared.programs.as_slice(), shared.files.as_slice()),
            (&["prog".to_owned()][..], &["file.py".to_owned()][..])
        );

        let has = |path: &Path, words: &str| {
            let bytes = std::fs::read(path).unwrap();
            bytes.windows(words.len()).any(|window| window == words.as_bytes())
        };
        for words in PLANTED {
            assert!(words == "plantedsource" || has(&path, words), "{words} was planted");
            assert!(!has(&output, words), "{words} is in the copy");
        }
        for words in ["libmine.so", "file.py:3 step", "kernel_of_***<float>", "5 MB/s at file.py:3"] {
            assert!(has(&output, words), "{words} is of use and tells nothing");
        }
        // Every row is there, and readable.
        let (before, after) = (Connection::open(&path).unwrap(), Connection::open(&output).unwrap());
        for table in RUN.iter().chain(&TABLES).chain(&EVENTS) {
            let count = |db: &Connection| -> i64 {
                db.query_row(&format!("SELECT COUNT(*) FROM {}", table.name), [], |row| row.get(0)).unwrap()
            };
            assert_eq!(count(&after), count(&before), "{}", table.name);
        }
        assert!(Reader::open(&output).unwrap().processes().unwrap().len() == 1);
    }
}
