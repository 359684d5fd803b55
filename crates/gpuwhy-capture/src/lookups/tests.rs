// SPDX-License-Identifier: Apache-2.0
//! Readers are real processes here, with the sandbox they have.

use super::*;
use gpuwhy_model::Library;
use std::process::{Child, Command as Program, Stdio};

/// A process that waits until it is dropped.
struct Cat(Child);

impl Cat {
    fn start() -> Self {
        Self(Program::new("cat").stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Cat {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn answers(lookups: &mut Lookups<u8>, count: usize) -> Vec<Answered<u8>> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut all = Vec::new();
    while all.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} answers came", all.len());
        all.extend(lookups.answers());
        lookups.wait(deadline);
    }
    all
}

#[test]
fn a_process_is_named_and_its_mappings_are_read() {
    let (mut lookups, cat) = (Lookups::<u8>::start().unwrap(), Cat::start());
    let pid = cat.0.id();
    while crate::process::name(pid).as_deref() != Some("cat") {}
    let Some(Answer::Names(names)) = lookups.ask_now(Question::Names { pid, and_python: false }) else {
        panic!("no names")
    };
    assert_eq!(names.name.as_deref(), Some("cat"));
    assert_eq!((names.command.as_deref(), names.parent), (Some("cat"), Some(std::process::id())));
    lookups.ask_later(Question::Libraries { pid }, 7);
    lookups.ask_later(Question::Python { pid }, 8);
    let mut got = answers(&mut lookups, 2);
    got.sort_by_key(|one| one.purpose);
    let Some(Answer::Libraries(Ok(mapped))) = &got[0].answer else { panic!("{:?}", got[0]) };
    assert!(mapped.program.as_ref().is_some_and(|(path, _)| path.ends_with("cat")), "{mapped:?}");
    assert!(!mapped.code.is_empty() && got[0].libraries.is_empty());
    assert_eq!(got[1].answer, Some(Answer::Python(PythonAnswer::NotYet)));
    assert_eq!((lookups.take_warnings(), lookups.unsaid(), lookups.is_waiting()), (Vec::new(), None, false));
}

#[test]
fn a_library_comes_with_its_functions_and_its_file() {
    let sim = tempfile::tempdir().unwrap();
    let installed = simgpu::install(sim.path()).unwrap();
    let path = std::fs::read_dir(&installed.dir).unwrap().flatten().map(|entry| entry.path());
    let is_it = |path: &std::path::PathBuf| path.to_string_lossy().contains("libcudart.so");
    let path = path.into_iter().find(is_it).unwrap().canonicalize().unwrap();
    let mut lookups = Lookups::<u8>::start().unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
    let text = path.to_string_lossy().into_owned();
    for (inode, expected) in [(inode, 1), (inode + 1, 0)] {
        let libraries = vec![LeftBehind { library: Library::Runtime, path: text.clone(), inode }];
        lookups.ask_later(Question::LeftBehind { pid: 1, libraries }, 0);
        let found = answers(&mut lookups, 1).remove(0).libraries;
        assert_eq!(found.len(), expected);
        if let Some(found) = found.first() {
            let sites = found.part.sites.as_ref().unwrap();
            assert!(sites.iter().any(|(name, _)| name == "cudaMalloc"), "{sites:?}");
            let file = found.file.as_ref().unwrap().metadata().unwrap();
            assert_eq!(std::os::unix::fs::MetadataExt::ino(&file), inode);
        }
    }
}

#[test]
fn a_reader_that_ended_is_replaced_and_its_question_given_up() {
    let (mut lookups, cat, other) = (Lookups::<u8>::start().unwrap(), Cat::start(), Cat::start());
    let pid = cat.0.id();
    assert!(lookups.ask_now(Question::Names { pid, and_python: false }).is_some());
    lookups.at_once.wire = Some(Wire::new(Wire::pair().unwrap().0));
    assert_eq!(lookups.ask_now(Question::Names { pid, and_python: false }), None);
    assert_eq!(lookups.take_warnings().len(), 1);
    assert_eq!(lookups.ask_now(Question::Names { pid, and_python: false }), None, "given up");
    assert!(
        lookups.ask_now(Question::Names { pid: other.0.id(), and_python: true }).is_some(),
        "another reader answers"
    );
    lookups.forget(pid);
    assert!(lookups.ask_now(Question::Names { pid, and_python: false }).is_some());
    assert_eq!(lookups.take_warnings(), Vec::<String>::new());
}

#[test]
fn waiting_has_an_allowance() {
    let start = Instant::now();
    let mut allowance = Allowance::new(start);
    assert!(allowance.is_there(start));
    allowance.take(Duration::from_secs(9));
    assert!(!allowance.is_there(start));
    let later = start + Duration::from_millis(400);
    assert!(allowance.is_there(later));
    allowance.take(Duration::from_millis(100));
    assert!(!allowance.is_there(later), "a quarter of the time and no more");
    assert!(allowance.is_there(later + Duration::from_secs(3600)));
    allowance.take(AT_ONCE_MOST);
    assert!(!allowance.is_there(later + Duration::from_secs(3600)), "long rest gives no more than that at once");
}
