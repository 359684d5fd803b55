// SPDX-License-Identifier: Apache-2.0
//! Whose socket it is. The kernel sends a TCP segment again from a timer, in nobody's name: the owner is found by
//! the socket's inode among the files of the traced processes.

use std::collections::{BTreeSet, HashMap};

/// Sockets remembered; beyond that everything is looked up anew.
const MAX_KNOWN: usize = 4096;

/// Remembers whose socket is whose.
#[derive(Default)]
pub(crate) struct Sockets {
    owners: HashMap<u64, Option<u32>>,
}

impl Sockets {
    /// The traced process that has this socket, if any does.
    pub(crate) fn owner(&mut self, inode: u64, processes: &BTreeSet<u32>) -> Option<u32> {
        if inode == 0 {
            return None;
        }
        if self.owners.len() >= MAX_KNOWN {
            self.owners.clear();
        }
        *self.owners.entry(inode).or_insert_with(|| processes.iter().copied().find(|pid| has_socket(*pid, inode)))
    }

    /// Forgets everything, because inode numbers are used again.
    pub(crate) fn forget(&mut self) {
        self.owners.clear();
    }
}

fn has_socket(pid: u32, inode: u64) -> bool {
    let link = format!("socket:[{inode}]");
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == link.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_leads_to_its_process() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let inode = link.to_str().unwrap().trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap();
        let mut sockets = Sockets::default();
        assert_eq!(sockets.owner(inode, &BTreeSet::from([1, std::process::id()])), Some(std::process::id()));
        sockets.forget();
        assert_eq!(sockets.owner(inode, &BTreeSet::new()), None);
        assert_eq!(sockets.owner(0, &BTreeSet::from([std::process::id()])), None);
    }
}
