// SPDX-License-Identifier: Apache-2.0
//! Parsers of flag values: times, sizes, addresses. clap puts the invalid value in front of their errors.

use super::MaxSize;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// `500ms`, `60s`, `5m`, `2h`; a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    moment(text).and_then(
        |d| {
            if d.is_zero() { Err("must be longer than 0, for example 60s".to_owned()) } else { Ok(d) }
        },
    )
}

/// A time counted from the start of the run; may be 0.
pub(super) fn moment(text: &str) -> Result<Duration, String> {
    gpuwhy_ask::part::parse_time(text)
}

/// `:8090` means loopback; otherwise an address or host name with a port.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let help = || "expected an address such as :8090, 127.0.0.1:8090 or 0.0.0.0:8090".to_owned();
    if let Some(port) = text.strip_prefix(':') {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().map_err(|_| help())?)));
    }
    text.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(help)
}

/// Bytes; a smaller file has no room for the rows that are always stored.
const LEAST_SIZE: f64 = 1e6;

/// `500MB`, `2GB`, `1GiB`; a bare number is bytes; `0` and `none` mean unlimited.
pub(super) fn max_size(text: &str) -> Result<MaxSize, String> {
    let help = || "expected a size such as 500MB, 2GB or 1GiB, or none".to_owned();
    if text.eq_ignore_ascii_case("none") {
        return Ok(MaxSize(None));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(help()),
    };
    let bytes = number.parse::<f64>().map_err(|_| help())? * factor;
    match bytes {
        0.0 => Ok(MaxSize(None)),
        bytes if bytes < LEAST_SIZE => Err("a run file needs at least 1 MB; 0 or none removes the limit".to_owned()),
        bytes if bytes < 9e18 => Ok(MaxSize(Some(bytes as u64))),
        _ => Err(help()),
    }
}

/// Bytes; SQLite's cache alone would not fit into less.
const LEAST_MEMORY: u64 = 200_000_000;

/// Like [`max_size`], for memory.
pub(super) fn memory(text: &str) -> Result<MaxSize, String> {
    match max_size(text)? {
        MaxSize(Some(bytes)) if bytes < LEAST_MEMORY => {
            Err("a query needs at least 200 MB, for example 2GB".to_owned())
        }
        size => Ok(size),
    }
}

pub(super) fn gigabytes(text: &str) -> Result<f64, String> {
    let gb = text.parse().ok().filter(|gb: &f64| *gb > 0.0 && *gb < 1e6);
    gb.ok_or_else(|| "expected a number of GB, such as 80".to_owned())
}

pub(super) fn ring_size(text: &str) -> Result<u32, String> {
    let size: u32 = text.parse().map_err(|_| "expected a number of KiB, such as 16384".to_owned())?;
    let fits = size.is_power_of_two() && (64..=1024 * 1024).contains(&size);
    if fits { Ok(size) } else { Err("expected a power of two from 64 to 1048576, such as 16384".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        for bad in ["", "s", "-1s", "5 parsecs", "0s", "1e99h", "nan"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(moment("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn a_port_alone_is_this_machine_alone() {
        assert_eq!(address(":8090"), Ok("127.0.0.1:8090".parse().unwrap()));
        assert_eq!(address("0.0.0.0:1"), Ok("0.0.0.0:1".parse().unwrap()));
        assert_eq!(address("[::1]:9"), Ok("[::1]:9".parse().unwrap()));
        for bad in ["", ":", "8090", ":99999", "127.0.0.1", "no such name:1"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let sizes = [
            ("500MB", 500_000_000),
            ("2gb", 2_000_000_000),
            ("1GiB", 1 << 30),
            ("1.5 M", 1_500_000),
            ("2000000", 2_000_000),
        ];
        for (text, bytes) in sizes {
            assert_eq!(max_size(text), Ok(MaxSize(Some(bytes))), "{text}");
        }
        assert_eq!(memory("4GB"), Ok(MaxSize(Some(4_000_000_000))));
        assert!(memory("100MB").unwrap_err().contains("200 MB"));
        assert_eq!((max_size("0"), max_size("none")), (Ok(MaxSize(None)), Ok(MaxSize(None))));
        for bad in ["", "MB", "-1MB", "5 elephants", "1kB", "999999", "1e9", "99999999TB"] {
            assert!(max_size(bad).is_err(), "{bad}");
        }
        assert!(max_size("10kB").unwrap_err().contains("at least 1 MB"));
    }
}
