// SPDX-License-Identifier: Apache-2.0
//! Which files have probes, on which of their functions; letting single functions go and taking them back.

use crate::arch::FirstInstruction;
use crate::capture::now_ns;
use crate::elf::Site;
use crate::error::Result;
use crate::libraries::{AttachedLibrary, FileId};
use crate::lookups::{LibraryPart, ReadLibrary};
use crate::map_watch::Mapping;
use crate::programs::{Programs, same_program};
use crate::quota::Quotas;
use gpuwhy_model::{Library, Op, OpId, Unwatched, ops};
use libbpf_rs::Link;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Detaching is done by this many threads: the kernel waits some 60 ms for each link until no CPU can still be in it,
/// and waits of several threads end together.
const AT_ONCE: usize = 64;

/// Notes of what could not be watched, at most; beyond it they are only counted.
const MOST_NOTES: usize = 1024;

/// Functions of a file that are probed together, and their probes while they have them.
struct Group {
    functions: Vec<(&'static Op, Site)>,
    links: Vec<Link>,
}

/// A file that was looked at.
struct Probed {
    /// Open for as long as tracing goes on: through it functions are attached again. `None` for one that is broken.
    file: Option<File>,
    linked_in: bool,
    groups: Vec<Group>,
}

/// Every file with probes.
pub(crate) struct Probes {
    files: HashMap<FileId, Probed>,
    quotas: Quotas,
    /// Functions that are paused everywhere, also in files to come.
    without: HashSet<OpId>,
    attached: Vec<AttachedLibrary>,
    unwatched: Vec<Unwatched>,
    /// Processes and libraries of theirs that cannot be watched: said once.
    given_up: HashSet<(u32, String)>,
    pub(crate) warnings: Vec<String>,
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            files: HashMap::new(),
            quotas: Quotas::new(most_descriptors()),
            without: HashSet::new(),
            attached: Vec::new(),
            unwatched: Vec::new(),
            given_up: HashSet::new(),
            warnings: Vec::new(),
        }
    }
}

impl Probes {
    /// The libraries that have probes, in the order they got them.
    pub(crate) fn attached(&self) -> &[AttachedLibrary] {
        &self.attached
    }

    /// Whether a file was looked at already.
    fn has(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Since when a file that was mapped has its probes. Its device may have another number where it is mapped.
    fn watched_since(&self, path: &str, file: FileId) -> Option<u64> {
        let is_it = |l: &&AttachedLibrary| l.file == file || l.file.inode == file.inode && l.path == path;
        self.attached.iter().find(is_it).map(|library| library.attached_ns)
    }

    /// Notes that a program has no runtime that could be found, once for each program.
    pub(crate) fn note_no_runtime(&mut self, (path, file): (String, FileId)) {
        if self.attached.len() > MOST_NOTES || self.attached.iter().any(|library| library.file == file) {
            return;
        }
        self.attached.push(AttachedLibrary {
            library: Library::Runtime,
            path,
            file,
            linked_in: false,
            hidden: true,
            functions: 0,
            slow_functions: 0,
            refused: 0,
            attached_ns: now_ns(),
        });
    }

    /// Notes that a process had a library before it got its probes, on behalf of another process.
    fn note_shared(&mut self, library: &LibraryPart, id: FileId, used: Option<(u32, u64)>) {
        let since = self.attached.iter().find(|attached| attached.file == id).map(|attached| attached.attached_ns);
        let (Some((pid, from_ns)), Some(to_ns)) = (used, since) else { return };
        let noted = self.unwatched.iter().any(|u| u.pid == pid && u.path == library.path && u.to_ns >= to_ns);
        if from_ns < to_ns && !noted {
            let path = library.path.clone();
            self.unwatched.push(Unwatched { pid, library: library.library, path, from_ns, to_ns });
        }
    }

    /// Notes what a process mapped and was not watched then: because it is gone by now, or because the library is, or
    /// because the probes came on behalf of another process.
    pub(crate) fn note_mapped(&mut self, mappings: &[Mapping]) {
        for mapping in mappings {
            let until_ns = self.watched_since(&mapping.path, mapping.file).unwrap_or_else(now_ns);
            let from_ns = self.noted_until(mapping).unwrap_or(mapping.at_ns);
            if until_ns > from_ns {
                self.unwatched.push(Unwatched {
                    pid: mapping.pid,
                    library: mapping.library,
                    path: mapping.path.clone(),
                    from_ns,
                    to_ns: until_ns,
                });
            }
        }
    }

    /// The end of what is noted already of the time that begins with a mapping, as it is where the process could be looked
    /// at. A library that was mapped again meanwhile may be in use beyond that end.
    fn noted_until(&self, mapping: &Mapping) -> Option<u64> {
        let same = |u: &&Unwatched| u.pid == mapping.pid && u.path == mapping.path;
        let covers = |u: &&Unwatched| u.from_ns <= mapping.at_ns && mapping.at_ns <= u.to_ns;
        self.unwatched.iter().filter(same).filter(covers).map(|u| u.to_ns).max()
    }

    /// Attaches to files, each once; `used` says by which process they are in use already, and since when. Returns whether
    /// anything was attached that was not before.
    ///
    /// Each file was opened once, and everything goes through that descriptor: a path may lead elsewhere the next time, and
    /// a probe must not land in a file somebody else chose.
    pub(crate) fn attach(
        &mut self,
        programs: &Programs,
        all_layers: bool,
        found: Vec<ReadLibrary>,
        used: Option<(u32, u64)>,
    ) -> bool {
        let mut any = false;
        for ReadLibrary { part: library, file } in found {
            let Some(file) = file else {
                // One that is gone went with its process.
                if library.is_out_of_reach {
                    self.cannot_be_watched(used, &library);
                }
                continue;
            };
            let Some(meta) = file.metadata().ok().filter(Metadata::is_file) else { continue };
            let id = FileId::from(&meta);
            if self.has(id) {
                self.note_shared(&library, id, used);
                continue;
            }
            if !self.quotas.admit(meta.uid()) {
                // No machine has as many copies; somebody makes them to wear gpuwhy out.
                self.cannot_be_watched(used, &library);
                continue;
            }
            match &library.sites {
                Ok(sites) => {
                    let sites = sites.iter().map(|(name, site)| (name.as_str(), *site)).collect();
                    let descriptors = self.attach_file(programs, all_layers, &library, &sites, (file, id));
                    self.quotas.took(meta.uid(), descriptors);
                    any = true;
                    if let Some((pid, since_ns)) = used {
                        self.was_unwatched(pid, &library, since_ns);
                    }
                }
                Err(why) => {
                    // Said once: an empty entry keeps a broken file from being tried at every mapping.
                    self.quotas.took(meta.uid(), 0);
                    self.files.insert(id, Probed { file: None, linked_in: false, groups: Vec::new() });
                    self.warnings.push(why.clone());
                }
            }
        }
        any
    }

    /// Returns how many descriptors that takes.
    fn attach_file(
        &mut self,
        programs: &Programs,
        all_layers: bool,
        library: &LibraryPart,
        sites: &HashMap<&str, Site>,
        (file, id): (File, FileId),
    ) -> usize {
        // The driver sees launches as well, but where the runtime is linked in, it cannot say that it was the runtime's.
        let every = all_layers || library.linked_in;
        let wanted = |op: &Op| op.library == library.library && (every || !op.seen_at_driver);
        let is_wanted = |name: &&str| ops::by_function(name).is_some_and(&wanted);
        if library.linked_in
            && sites.keys().any(is_wanted)
            && let Err(error) = programs.add_linked_in(id)
        {
            self.warnings
                .push(format!("{}: what its runtime does may look like the program's doing: {error}", library.path));
        }
        let mut probed = Probed { file: Some(file), linked_in: library.linked_in, groups: Vec::new() };
        let mut attached = AttachedLibrary {
            library: library.library,
            path: library.path.clone(),
            file: id,
            linked_in: library.linked_in,
            hidden: false,
            functions: 0,
            slow_functions: 0,
            refused: 0,
            attached_ns: 0,
        };
        // Two names of one address (aliases) would report one call twice.
        let mut offsets = HashSet::new();
        let found = ops::table().iter().filter(|op| wanted(op)).filter_map(|op| {
            let site = sites.get(op.function.as_str()).filter(|site| offsets.insert(site.offset))?;
            Some((op, *site))
        });
        for group in groups(found) {
            let refused = self.attach_group(programs, &mut probed, group);
            attached.refused += refused;
        }
        let functions = probed.groups.iter().flat_map(|group| &group.functions);
        attached.functions = functions.clone().count();
        attached.slow_functions = functions.filter(|(_, site)| site.first.is_single_stepped()).count();
        attached.attached_ns = now_ns();
        let descriptors = 1 + probed.groups.iter().map(|group| group.links.len()).sum::<usize>();
        self.files.insert(id, probed);
        self.attached.push(attached);
        descriptors
    }

    /// Attaches functions together, or, where the kernel does not take one of them, each by itself. Returns how many it
    /// refused.
    fn attach_group(&mut self, programs: &Programs, probed: &mut Probed, functions: Vec<(&'static Op, Site)>) -> usize {
        let mut group = Group { functions, links: Vec::new() };
        let is_let_go = matches!(group.functions.as_slice(), [(op, _)] if self.without.contains(&op.id));
        let outcome = if is_let_go { Ok(()) } else { group.attach(programs, probed) };
        match (outcome, group.functions.len()) {
            (Ok(()), _) => {
                probed.groups.push(group);
                0
            }
            (Err(error), 1) => {
                self.warnings.push(error.to_string());
                1
            }
            _ => group.functions.into_iter().map(|one| self.attach_group(programs, probed, vec![one])).sum(),
        }
    }

    /// The file was deleted or replaced since it was mapped, and only root could still reach it.
    fn cannot_be_watched(&mut self, used: Option<(u32, u64)>, library: &LibraryPart) {
        let room = self.given_up.len() < MOST_NOTES;
        let is_new = |(pid, _): &(u32, u64)| room && self.given_up.insert((*pid, library.path.clone()));
        let Some((pid, from_ns)) = used.filter(is_new) else { return };
        // One that has many of them has one warning.
        if self.given_up.iter().filter(|(other, _)| *other == pid).count() == 1 {
            self.warnings.push(format!(
                "{} cannot be reached as process {pid} has it (deleted or replaced since, or one of too many): its calls \
                 are not seen; start gpuwhy before the job, or trace it anew",
                library.path
            ));
        }
        let (library, path) = (library.library, library.path.clone());
        self.unwatched.push(Unwatched { pid, library, path, from_ns, to_ns: u64::MAX });
    }

    /// Notes that a library was in use before it was watched: until now.
    fn was_unwatched(&mut self, pid: u32, library: &LibraryPart, since_ns: u64) {
        self.unwatched.push(Unwatched {
            pid,
            library: library.library,
            path: library.path.clone(),
            from_ns: since_ns,
            to_ns: now_ns(),
        });
    }

    /// Functions that have a probe somewhere, or had, and what it stands on.
    pub(crate) fn ops(&self) -> BTreeMap<OpId, BTreeSet<FirstInstruction>> {
        let mut ops: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let groups = self.files.values().flat_map(|file| &file.groups);
        for (op, site) in groups.flat_map(|group| &group.functions) {
            ops.entry(op.id).or_default().insert(site.first);
        }
        ops
    }

    /// When nobody was listening, as noted since the last time.
    pub(crate) fn take_unwatched(&mut self) -> Vec<Unwatched> {
        std::mem::take(&mut self.unwatched)
    }

    /// Pauses a function in every file, also in those to come; `None` if it has no probe of its own. What kept
    /// it attached is handed over: dropping it takes the kernel some 60 ms.
    pub(crate) fn let_go(&mut self, op: OpId) -> Option<Vec<Link>> {
        if !op.get().is_some_and(Op::may_be_hot) {
            return None;
        }
        self.without.insert(op);
        let groups = self.files.values_mut().flat_map(|file| &mut file.groups);
        Some(groups.filter(|group| group.is_only(op)).flat_map(|group| group.links.drain(..)).collect())
    }

    /// Takes a function back in every file. Returns whether it could be: in one alone it would look complete.
    pub(crate) fn take_back(&mut self, programs: &Programs, op: OpId) -> bool {
        let mut failed = None;
        for probed in self.files.values_mut() {
            let mut groups = std::mem::take(&mut probed.groups);
            for group in groups.iter_mut().filter(|group| group.is_only(op) && group.links.is_empty()) {
                if let Err(error) = group.attach(programs, probed) {
                    failed = Some(error);
                }
            }
            probed.groups = groups;
        }
        match failed {
            None => self.without.remove(&op),
            Some(error) => {
                self.warnings.push(error.to_string());
                self.let_go(op);
                false
            }
        }
    }

    /// Gives up everything that keeps probes attached.
    pub(crate) fn take_links(&mut self) -> Vec<Link> {
        let groups = self.files.drain().flat_map(|(_, file)| file.groups);
        groups.flat_map(|group| group.links).collect()
    }
}

impl Group {
    fn is_only(&self, op: OpId) -> bool {
        matches!(self.functions.as_slice(), [(only, _)] if only.id == op)
    }

    fn attach(&mut self, programs: &Programs, file: &Probed) -> Result<()> {
        let Some(open) = &file.file else { return Ok(()) };
        let pinned = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        self.links = programs.attach(&pinned, &self.functions, file.linked_in)?;
        Ok(())
    }
}

fn most_descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to a struct of ours.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Functions that may be called so often that one must be paused have a probe each; the others of one program share one.
fn groups(functions: impl Iterator<Item = (&'static Op, Site)>) -> Vec<Vec<(&'static Op, Site)>> {
    let mut groups: Vec<Vec<(&'static Op, Site)>> = Vec::new();
    for (op, site) in functions {
        let shared = |group: &&mut Vec<(&'static Op, Site)>| {
            group.iter().all(|(other, _)| !other.may_be_hot() && same_program(op, other))
        };
        match groups.iter_mut().find(shared).filter(|_| !op.may_be_hot()) {
            Some(group) => group.push((op, site)),
            None => groups.push(vec![(op, site)]),
        }
    }
    groups
}

/// Detaches many at a time, and waits until that is done.
pub(crate) fn detach(mut links: Vec<Link>) {
    let share = links.len().div_ceil(AT_ONCE).max(1);
    std::thread::scope(|scope| {
        while !links.is_empty() {
            let part = links.split_off(links.len().saturating_sub(share));
            // Where no thread can be had, the closure and its links are dropped here, one after another.
            let _ = std::thread::Builder::new().stack_size(64 * 1024).spawn_scoped(scope, move || drop(part));
        }
    });
}
