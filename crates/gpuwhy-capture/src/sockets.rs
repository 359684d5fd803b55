// SPDX-License-Identifier: Apache-2.0
//! Finds the owner of a socket. The kernel retransmits a TCP segment from a timer, in no process's context, so the
//! owner is found by the socket's inode among the files of the traced processes.

use std::collections::{BTreeSet, HashMap};

/// Sockets looked at in one go; a job with more has the rest's retransmits left out.
const MAX_KNOWN: usize = 100_000;

/// Caches the owners of sockets. All are looked up at once, and not again until [`Sockets::forget`], so that many
/// retransmits do not delay reading the ring.
#[derive(Default)]
pub(crate) struct Sockets {
    owners: Option<HashMap<u64, u32>>,
}

impl Sockets {
    /// The traced process that has this socket, if any does.
    pub(crate) fn owner(&mut self, inode: u64, processes: &BTreeSet<u32>) -> Option<u32> {
        if inode == 0 {
            return None;
        }
        let all = || processes.iter().flat_map(|pid| sockets_of(*pid)).take(MAX_KNOWN).collect();
        self.owners.get_or_insert_with(all).get(&inode).copied()
    }

    /// Forgets everything, because inode numbers are used again.
    pub(crate) fn forget(&mut self) {
        self.owners = None;
    }
}

/// The inodes of a process's sockets, each with the process.
fn sockets_of(pid: u32) -> impl Iterator<Item = (u64, u32)> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(move |file| {
        let link = std::fs::read_link(file.path()).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some((inode.parse().ok()?, pid))
    })
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
