// SPDX-License-Identifier: Apache-2.0
//! Which line an instruction is on. Tables come from programs that may have written anything into them: what makes no
//! sense has no line.

use super::offsets::Version;

/// The line of the instruction `lasti` bytes after a code object's first one, by its line table. Before the first
/// instruction it is the first line; `None` where the instruction has no line, or the table does not reach it.
pub fn line(version: Version, table: &[u8], first_line: i32, lasti: i32) -> Option<u32> {
    let found = match (u32::try_from(lasti), version.minor) {
        (Err(_), _) => Some(first_line.into()),
        (Ok(lasti), ..=9) => by_lnotab(table, first_line.into(), lasti),
        (Ok(lasti), 10) => by_linetable(table, first_line.into(), lasti),
        (Ok(lasti), 11..) => by_locations(table, first_line.into(), lasti),
    };
    u32::try_from(found?).ok().filter(|line| *line > 0)
}

/// Up to 3.9: pairs of how far the next line is in bytes, unsigned, and in lines, signed.
fn by_lnotab(table: &[u8], first_line: i64, lasti: u32) -> Option<i64> {
    let (mut at, mut line) = (0u32, first_line);
    for pair in table.chunks_exact(2) {
        at = at.checked_add(pair[0].into())?;
        if at > lasti {
            break;
        }
        line += i64::from(pair[1] as i8);
    }
    Some(line)
}

/// 3.10: pairs of the number of code bytes and the line difference to the previous pair; -128 means no line.
fn by_linetable(table: &[u8], first_line: i64, lasti: u32) -> Option<i64> {
    let (mut end, mut line) = (0u32, first_line);
    for pair in table.chunks_exact(2) {
        let delta = pair[1] as i8;
        end = end.checked_add(pair[0].into())?;
        if delta != i8::MIN {
            line += i64::from(delta);
        }
        if lasti < end {
            return (delta != i8::MIN).then_some(line);
        }
    }
    None
}

/// From 3.11: entries whose first byte has its high bit set (others do not), then four bits for the kind and three for
/// the number of instructions minus one.
fn by_locations(table: &[u8], first_line: i64, lasti: u32) -> Option<i64> {
    let (mut end, mut line, mut at) = (0u32, first_line, 0);
    while let Some(&first) = table.get(at) {
        if first & 0x80 == 0 {
            return None;
        }
        let kind = first >> 3 & 15;
        let has_line = kind != 15;
        line = line.checked_add(match kind {
            10..=12 => i64::from(kind - 10),
            13 | 14 => signed_varint(table.get(at + 1..)?)?,
            _ => 0,
        })?;
        end = end.checked_add((u32::from(first & 7) + 1) * 2)?;
        if lasti < end {
            return has_line.then_some(line);
        }
        at += 1;
        while table.get(at).is_some_and(|byte| byte & 0x80 == 0) {
            at += 1;
        }
    }
    None
}

/// Six bits per byte, low bits first; 0x40 means that more bytes follow. The lowest bit of the value is the sign.
fn signed_varint(bytes: &[u8]) -> Option<i64> {
    let mut value = 0i64;
    for (index, byte) in bytes.iter().take(6).enumerate() {
        value |= i64::from(byte & 0x3f) << (6 * index);
        if byte & 0x40 == 0 {
            return Some(if value & 1 == 1 { -(value >> 1) } else { value >> 1 });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_tables_never_panic() {
        let mut state = 0x1234_5678_9abc_def0_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20_000 {
            let table: Vec<u8> = (0..random() % 64).map(|_| random() as u8).collect();
            for minor in [8, 9, 10, 11, 12, 13, 14] {
                let first = [1, 0, -7, i32::MAX, i32::MIN][(random() % 5) as usize];
                for lasti in [-1, 0, 2, 30, random() as i32, i32::MAX] {
                    line(Version::three(minor), &table, first, lasti);
                }
            }
        }
    }

    #[test]
    fn before_the_first_instruction_is_the_first_line() {
        for minor in 8..15 {
            assert_eq!(line(Version::three(minor), &[], 7, -1), Some(7));
        }
        assert_eq!(line(Version::three(12), &[], 7, 0), None);
    }
}
