// SPDX-License-Identifier: Apache-2.0
//! Python's texts, as they lie in memory.

/// Decodes characters of one, two or four bytes: Latin-1, UCS-2, UCS-4. Invalid characters (a lone surrogate represents
/// a byte of a file name that is not UTF-8) become U+FFFD. `None` for any other width.
pub fn decode(bytes: &[u8], width: u8) -> Option<String> {
    let character = |value: u32| char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
    Some(match width {
        1 => bytes.iter().map(|byte| char::from(*byte)).collect(),
        2 => bytes.chunks_exact(2).map(|b| character(u16::from_ne_bytes([b[0], b[1]]).into())).collect(),
        4 => bytes.chunks_exact(4).map(|b| character(u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))).collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_width_is_read_and_nonsense_replaced() {
        assert_eq!(decode(b"caf\xe9", 1).as_deref(), Some("café"));
        let wide: Vec<u8> = "日本".encode_utf16().flat_map(u16::to_ne_bytes).collect();
        assert_eq!(decode(&wide, 2).as_deref(), Some("日本"));
        let lone: Vec<u8> = [0x61u16, 0xdcff].into_iter().flat_map(u16::to_ne_bytes).collect();
        assert_eq!(decode(&lone, 2).as_deref(), Some("a\u{fffd}"));
        let widest: Vec<u8> = [0x2000bu32, 0xffff_ffff].into_iter().flat_map(u32::to_ne_bytes).collect();
        assert_eq!(decode(&widest, 4).as_deref(), Some("𠀋\u{fffd}"));
        assert_eq!(decode(b"abc", 3), None);
        assert_eq!(decode(b"abc", 2).as_deref(), Some("\u{6261}"), "half a character is left out");
    }
}
