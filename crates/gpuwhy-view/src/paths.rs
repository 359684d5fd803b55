// SPDX-License-Identifier: Apache-2.0
//! The shortest forms of paths that still tell files apart.

use std::collections::{BTreeMap, BTreeSet};

/// The short forms of a set of paths.
#[derive(Debug, Default)]
pub(crate) struct ShortPaths<'a> {
    short: BTreeMap<&'a str, &'a str>,
}

impl<'a> ShortPaths<'a> {
    /// File names, with as many parent folders as needed where several files share one.
    pub(crate) fn new(paths: impl Iterator<Item = &'a str>) -> Self {
        let mut alike: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for path in paths {
            alike.entry(end(path, 1)).or_default().insert(path);
        }
        let mut short = BTreeMap::new();
        for group in alike.values() {
            for path in group {
                let parts = path.split('/').count();
                let others = || group.iter().filter(|other| *other != path);
                let unique = |parts: &usize| others().all(|other| end(other, *parts) != end(path, *parts));
                short.insert(*path, end(path, (1..parts).find(unique).unwrap_or(parts)));
            }
        }
        Self { short }
    }

    /// The short form of one of them.
    pub(crate) fn short<'b>(&self, path: &'b str) -> &'b str
    where
        'a: 'b,
    {
        self.short.get(path).copied().unwrap_or(path)
    }
}

/// The last `parts` parts of a path.
fn end(path: &str, parts: usize) -> &str {
    // Python's names for code without a file, such as `<frozen a/b>`, are not paths.
    if path.starts_with('<') {
        return path;
    }
    path.rmatch_indices('/').nth(parts - 1).map_or(path, |(at, _)| &path[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_short_as_can_be_and_not_shorter() {
        let all = ["/a/b/x.py", "/a/c/x.py", "/z/c/x.py", "/a/b/y.py", "<frozen a/b>", "x.py", "/a/b/y.py"];
        let paths = ShortPaths::new(all.into_iter());
        let short = all.map(|path| paths.short(path));
        assert_eq!(short, ["b/x.py", "a/c/x.py", "z/c/x.py", "y.py", "<frozen a/b>", "x.py", "y.py"]);
    }
}
