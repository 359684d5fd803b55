// SPDX-License-Identifier: Apache-2.0
//! The keys of the file outside its event list: devices, ranks, versions.

use super::json::{self, Cursor, Stop};
use super::rows::{DeviceProperties, Header};

/// Most keys remembered for an error message.
const MAX_KEYS: usize = 12;

/// The start of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The offset of the first event, after the `[` of the list.
    Events(usize, Header),
    /// The object ended without one.
    NoEvents(Header),
}

/// Reads up to the event list. [`Stop::End`] asks for more text, [`Stop::Syntax`] means that this is not a JSON object.
pub(super) fn read_head(data: &[u8]) -> Result<Head, Stop> {
    let data_from = if data.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut cursor = Cursor::new(data, data_from, false);
    let mut header = Header::default();
    if cursor.take(b'[')? {
        return Ok(Head::Events(cursor.at(), header));
    }
    cursor.expect(b'{')?;
    while let Some(key) = cursor.key()? {
        if key == b"traceEvents" {
            cursor.expect(b'[')?;
            return Ok(Head::Events(cursor.at(), header));
        }
        member(&mut cursor, key, &mut header)?;
    }
    Ok(Head::NoEvents(header))
}

/// Reads the keys after the event list, up to the first that is damaged.
pub(super) fn read_foot(data: &[u8]) -> Header {
    let mut cursor = Cursor::new(data, 0, false);
    let mut header = Header::default();
    while let Ok(Some(key)) = cursor.key() {
        if member(&mut cursor, key, &mut header).is_err() {
            break;
        }
    }
    header
}

fn member(cursor: &mut Cursor<'_>, key: &[u8], header: &mut Header) -> Result<(), Stop> {
    if header.keys.len() < MAX_KEYS {
        header.keys.push(json::unescape(key));
    }
    match key {
        b"deviceProperties" => {
            // Later lists (of other files merged in) add devices.
            let found = devices(cursor)?;
            header.devices.extend(found);
        }
        b"distributedInfo" if cursor.peek()? == b'{' => distributed(cursor, header)?,
        b"baseTimeNanoseconds" => header.base_time_ns = json::unsigned(cursor.scalar()?),
        b"with_stack" => header.with_stack = on(cursor.scalar()?),
        b"record_shapes" => header.record_shapes = on(cursor.scalar()?),
        _ => cursor.skip()?,
    }
    Ok(())
}

fn on(value: &[u8]) -> bool {
    matches!(value, b"1" | b"true" | b"True")
}

fn devices(cursor: &mut Cursor<'_>) -> Result<Vec<DeviceProperties>, Stop> {
    let mut found = Vec::new();
    if cursor.peek()? != b'[' {
        cursor.skip()?;
        return Ok(found);
    }
    cursor.expect(b'[')?;
    loop {
        match cursor.peek()? {
            b']' => {
                cursor.expect(b']')?;
                return Ok(found);
            }
            b',' => cursor.expect(b',')?,
            b'{' => {
                cursor.expect(b'{')?;
                let mut device = DeviceProperties::default();
                while let Some(key) = cursor.key()? {
                    match key {
                        b"id" => device.id = json::signed(cursor.scalar()?).unwrap_or(0).try_into().unwrap_or(-1),
                        b"name" => device.name = json::unescape(cursor.scalar()?),
                        b"totalGlobalMem" => device.memory_bytes = json::unsigned(cursor.scalar()?).unwrap_or(0),
                        _ => cursor.skip()?,
                    }
                }
                found.push(device);
            }
            _ => cursor.skip()?,
        }
    }
}

fn distributed(cursor: &mut Cursor<'_>, header: &mut Header) -> Result<(), Stop> {
    cursor.expect(b'{')?;
    while let Some(key) = cursor.key()? {
        match key {
            b"rank" => header.rank = json::unsigned(cursor.scalar()?),
            b"world_size" => header.world_size = json::unsigned(cursor.scalar()?),
            b"backend" => header.backend = Some(json::unescape(cursor.scalar()?)),
            _ => cursor.skip()?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_before_and_behind() {
        let head = br#" {"deviceProperties": [{"id": 3, "name": "A100", "totalGlobalMem": 42505273344}],
            "distributedInfo": {"rank": 2, "world_size": 8, "backend": "nccl", "pg_config": [{"ranks": [0]}]},
            "with_stack": 1, "traceEvents": [ {"#;
        let Ok(Head::Events(at, header)) = read_head(head) else { panic!("no events") };
        assert_eq!(&head[at..], b" {");
        assert_eq!((header.devices[0].id, header.devices[0].name.as_str()), (3, "A100"));
        assert_eq!((header.rank, header.world_size, header.with_stack), (Some(2), Some(8), true));
        let foot = read_foot(br#", "traceName": "x", "baseTimeNanoseconds": 17, "distributedInfo": "none" }"#);
        assert_eq!(foot.base_time_ns, Some(17));
    }

    #[test]
    fn what_is_no_trace_is_told_apart() {
        assert_eq!(read_head(b"  [ {").map(|h| matches!(h, Head::Events(3, _))), Ok(true));
        assert!(matches!(read_head(br#"{"nodes": []}"#), Ok(Head::NoEvents(h)) if h.keys == ["nodes"]));
        assert_eq!(read_head(br#"{"schemaVersion": 1, "dev"#), Err(Stop::End));
        assert_eq!(read_head(b"\x80\x04 pickle"), Err(Stop::Syntax));
        assert_eq!(read_head(b""), Err(Stop::End));
    }
}
