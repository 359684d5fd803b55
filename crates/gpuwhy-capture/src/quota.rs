// SPDX-License-Identifier: Apache-2.0
//! Limits the number of files gpuwhy attaches to, per user. Each file stays open and each probe needs a file
//! descriptor, so a user who maps a thousand copies of a library could exhaust them for all others.

use std::collections::HashMap;

/// Files that get probes at most.
const MOST_FILES: usize = 1024;
/// Of one user. A job has some four, a user's environments a few copies of these.
const MOST_FILES_OF_A_USER: usize = 96;
/// Descriptors that one file may take: one for itself, two for each function.
const MOST_OF_A_FILE: usize = 512;

/// What was used so far.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    files: usize,
    descriptors: usize,
}

impl Held {
    fn add(&mut self, descriptors: usize) {
        self.files += 1;
        self.descriptors += descriptors;
    }
}

/// Usage per user, by file owner: only users who can write can multiply a file, whoever maps it.
#[derive(Debug)]
pub(crate) struct Quotas {
    users: HashMap<u32, Held>,
    all_users: Held,
    all: Held,
    most_descriptors: usize,
}

impl Quotas {
    /// For a process that may have this many descriptors. A quarter is for everything else.
    pub(crate) fn new(descriptors: usize) -> Self {
        let most_descriptors = descriptors / 4 * 3;
        Self { users: HashMap::new(), all_users: Held::default(), all: Held::default(), most_descriptors }
    }

    /// Whether one more file of this owner may get probes. Those of the system are root's, and others' leave half of
    /// everything to them.
    pub(crate) fn admit(&self, owner: u32) -> bool {
        let room = |held: Held, files, descriptors: usize| {
            held.files < files && held.descriptors + MOST_OF_A_FILE <= descriptors.max(MOST_OF_A_FILE)
        };
        let of_user = self.users.get(&owner).copied().unwrap_or_default();
        let user = owner == 0
            || room(of_user, MOST_FILES_OF_A_USER, self.most_descriptors / 4)
                && room(self.all_users, MOST_FILES / 2, self.most_descriptors / 2);
        user && room(self.all, MOST_FILES, self.most_descriptors)
    }

    /// Notes that a file of this owner has probes now.
    pub(crate) fn took(&mut self, owner: u32, descriptors: usize) {
        self.all.add(descriptors);
        if owner != 0 {
            self.all_users.add(descriptors);
            self.users.entry(owner).or_default().add(descriptors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: u32 = 65534;

    /// How many of a user's files get probes.
    fn take_all(quotas: &mut Quotas, owner: u32, descriptors: usize) -> usize {
        let mut files = 0;
        while quotas.admit(owner) && files < 10_000 {
            quotas.took(owner, descriptors);
            files += 1;
        }
        files
    }

    #[test]
    fn a_user_with_a_thousand_copies_leaves_room_for_everybody_else() {
        let mut quotas = Quotas::new(20_000);
        assert_eq!(take_all(&mut quotas, NOBODY, 20), MOST_FILES_OF_A_USER);
        assert!(quotas.admit(1000) && quotas.admit(0));
        assert_eq!(take_all(&mut quotas, 1000, 20), MOST_FILES_OF_A_USER);
    }

    #[test]
    fn all_users_together_leave_half_to_the_system() {
        let mut quotas = Quotas::new(20_000);
        let taken: usize = (1..=100).map(|user| take_all(&mut quotas, user, 10)).sum();
        assert_eq!(taken, MOST_FILES / 2);
        assert!(!quotas.admit(5000) && quotas.admit(0));
        assert!(take_all(&mut quotas, 0, 10) > 100);
    }

    #[test]
    fn descriptors_are_never_used_up() {
        for per_file in [1, 40, MOST_OF_A_FILE] {
            let mut quotas = Quotas::new(20_000);
            let files: usize = (0..100).map(|user| take_all(&mut quotas, user, per_file)).sum();
            assert!(files * per_file <= 15_000 && files >= 20, "{files} files of {per_file}");
        }
        assert!(Quotas::new(256).admit(NOBODY), "one file, however little there is");
    }
}
