// SPDX-License-Identifier: Apache-2.0
//! Putting probes on functions.

use super::{Flavour, Programs};
use crate::elf::Site;
use crate::error::{CaptureError, Result};
use gpuwhy_model::{Class, Op};
use libbpf_rs::{Link, ProgramMut, UprobeMultiOpts, UprobeOpts};
use std::path::Path;

/// What of a call a probe sees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Entry,
    Return,
    Session,
}

/// Places for probes in one file, and what to tell the program there.
struct Places<'a> {
    path: &'a Path,
    offsets: Vec<usize>,
    cookies: Vec<u64>,
}

impl Programs {
    /// Attaches functions of one file, all of which one program reads ([`same_program`]), with one link: it can only be let
    /// go as a whole, and the kernel takes its time over each. `linked_in`: the file is no library of its own but has the
    /// functions built in.
    pub(crate) fn attach(&self, path: &Path, functions: &[(&Op, Site)], linked_in: bool) -> Result<Vec<Link>> {
        let Some((first, _)) = functions.first() else { return Ok(Vec::new()) };
        let progs = &self.skel.progs;
        let places = Places {
            path,
            offsets: functions.iter().map(|(_, site)| site.offset as usize).collect(),
            cookies: functions.iter().map(|(op, _)| op.cookie(linked_in)).collect(),
        };
        let (rare, tensors) = (first.is_rare(), first.class == Class::Tensor);
        let links = match self.flavour {
            Flavour::Plain if tensors => places.plain(&progs.plain_torch, false),
            _ if tensors => places.multi(&progs.multi_torch, Kind::Entry).map(|link| vec![link]),
            Flavour::Session => {
                let program = if rare { &progs.session_rare } else { &progs.session };
                places.multi(program, Kind::Session).map(|link| vec![link])
            }
            Flavour::Multi => {
                let (enter, leave) = if rare {
                    (&progs.multi_enter_rare, &progs.multi_leave_rare)
                } else {
                    (&progs.multi_enter, &progs.multi_leave)
                };
                // The return first: an entry whose return is not watched yet would look unfinished.
                let leave = places.multi(leave, Kind::Return);
                leave.and_then(|leave| Ok(vec![leave, places.multi(enter, Kind::Entry)?]))
            }
            Flavour::Plain => {
                let (enter, leave) = if rare {
                    (&progs.plain_enter_rare, &progs.plain_leave_rare)
                } else {
                    (&progs.plain_enter, &progs.plain_leave)
                };
                places.plain(leave, true).and_then(|mut links| {
                    links.extend(places.plain(enter, false)?);
                    Ok(links)
                })
            }
        };
        let function = functions.iter().map(|(op, _)| op.function.as_str()).collect::<Vec<_>>().join(", ");
        links.map_err(|e| CaptureError::Attach { function, path: path.into(), why: e.to_string() })
    }
}

/// Whether one program reads both functions.
pub(crate) fn same_program(a: &Op, b: &Op) -> bool {
    let kind = |op: &Op| (op.is_rare(), op.class == Class::Tensor);
    kind(a) == kind(b)
}

impl Places<'_> {
    fn multi(&self, program: &ProgramMut<'_>, kind: Kind) -> libbpf_rs::Result<Link> {
        let opts = UprobeMultiOpts {
            offsets: self.offsets.clone(),
            cookies: self.cookies.clone(),
            retprobe: kind == Kind::Return,
            session: kind == Kind::Session,
            ..Default::default()
        };
        program.attach_uprobe_multi_with_opts(-1, self.path, "", opts)
    }

    fn plain(&self, program: &ProgramMut<'_>, retprobe: bool) -> libbpf_rs::Result<Vec<Link>> {
        let one = |(offset, cookie): (&usize, &u64)| {
            let opts = UprobeOpts { cookie: *cookie, retprobe, ..Default::default() };
            program.attach_uprobe_with_opts(-1, self.path, *offset, opts)
        };
        self.offsets.iter().zip(&self.cookies).map(one).collect()
    }
}
