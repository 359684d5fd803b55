// SPDX-License-Identifier: Apache-2.0
//! Programs that take a secret after a flag whose name does not show it: `curl -u me:password`.

/// Which part of the flag's value is secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Secret {
    /// The whole value.
    Whole,
    /// The part after the first colon; before it is the user.
    AfterColon,
}

/// A program.
#[derive(Debug)]
pub(super) struct Command {
    programs: &'static [&'static str],
    /// Flags whose value is the next word.
    flags: &'static [(&'static str, Secret)],
    /// Single-letter flags whose value may follow without a space: `-phunter2`.
    attached: &'static [(&'static str, Secret)],
}

const COMMANDS: [Command; 7] = [
    Command {
        programs: &["curl"],
        flags: &[
            ("-u", Secret::AfterColon),
            ("--user", Secret::AfterColon),
            ("-U", Secret::AfterColon),
            ("--proxy-user", Secret::AfterColon),
        ],
        attached: &[("-u", Secret::AfterColon), ("-U", Secret::AfterColon)],
    },
    Command { programs: &["sshpass"], flags: &[("-p", Secret::Whole)], attached: &[("-p", Secret::Whole)] },
    // A password after a blank would be the name of a database.
    Command {
        programs: &["mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump"],
        flags: &[],
        attached: &[("-p", Secret::Whole)],
    },
    Command { programs: &["redis-cli"], flags: &[("-a", Secret::Whole)], attached: &[] },
    Command {
        programs: &["ldapsearch", "ldapmodify", "ldapadd", "ldapwhoami"],
        flags: &[("-w", Secret::Whole)],
        attached: &[("-w", Secret::Whole)],
    },
    Command {
        programs: &["mongo", "mongosh", "mongodump"],
        flags: &[("-p", Secret::Whole)],
        attached: &[("-p", Secret::Whole)],
    },
    Command { programs: &["http", "https", "httpie"], flags: &[("-a", Secret::AfterColon)], attached: &[] },
];

/// The program that a word starts, if it is one of these; the word may be a path.
pub(super) fn named(word: &str) -> Option<&'static Command> {
    let name = word.rsplit('/').next().unwrap_or(word);
    COMMANDS.iter().find(|command| command.programs.contains(&name))
}

impl Command {
    /// What a flag of the program carries, and where its value starts in the word; `None`: in the next word.
    pub(super) fn flag(&self, word: &str) -> Option<(Secret, Option<usize>)> {
        if let Some((_, secret)) = self.flags.iter().find(|(flag, _)| *flag == word) {
            return Some((*secret, None));
        }
        let attached = self.attached.iter().find(|(flag, _)| word.len() > flag.len() && word.starts_with(flag));
        attached.map(|(flag, secret)| (*secret, Some(flag.len())))
    }
}
