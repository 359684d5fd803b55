// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of a probe at startup: calls gpuwhy's own functions in short batches, with and without a probe. A
//! trap costs 1 µs on one machine and 10 µs on another, and depends on the instruction under the probe, so no figure
//! can be assumed.
//!
//! Noise (interrupts, other programs, a hypervisor) only adds time, so the minimum of many batches is the result.

use crate::arch::{FirstInstruction, PROLOGUE, SAMPLES, first_instruction, landing_pad};
use gpuwhy_strangers::{open_file, read_text};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Calls in a batch: short enough to fit between two ticks of a clock, long enough that reading the time costs nothing.
const CALLS: u32 = 32;
/// Batches looked at, and the time after which those there are have to do.
const BATCHES: u32 = 40;
const PATIENCE: Duration = Duration::from_millis(2);
/// Batches however long they take.
const LEAST: u32 = 5;
/// More than gpuwhy has mapped.
const MOST_TEXT: usize = 4 << 20;

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's message says it
pub enum CalibrateError {
    #[error("gpuwhy cannot read its own code: {0}")]
    Own(std::io::Error),
    #[error("gpuwhy's own code is not where /proc/self/maps says it is")]
    NotMapped,
}

/// Calls the functions that get the probes: one for each kind of first instruction.
#[derive(Debug)]
pub struct Calibrator {
    path: PathBuf,
    sites: Vec<OwnSite>,
}

/// A function of gpuwhy's own, and where to put the probe.
#[derive(Debug, Clone)]
pub struct OwnSite {
    /// Where it is in gpuwhy's file.
    pub offset: u64,
    /// The kind of instruction under the probe.
    pub first: FirstInstruction,
    function: extern "C" fn(),
    /// A call without a probe, ns.
    bare_ns: f64,
}

impl Calibrator {
    /// Finds the functions in gpuwhy's file and measures them without a probe.
    pub fn new() -> Result<Self, CalibrateError> {
        let maps = read_text(Path::new("/proc/self/maps"), MOST_TEXT).map_err(CalibrateError::Own)?;
        let path = PathBuf::from("/proc/self/exe");
        let file = open_file(&path).map_err(CalibrateError::Own)?;
        let site = |(_, function): &(FirstInstruction, extern "C" fn())| OwnSite::find(*function, &maps, &file);
        Ok(Self { sites: SAMPLES.iter().map(site).collect::<Result<_, _>>()?, path })
    }

    /// gpuwhy's own file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the probes go.
    pub fn sites(&self) -> &[OwnSite] {
        &self.sites
    }
}

impl OwnSite {
    fn find(function: extern "C" fn(), maps: &str, file: &File) -> Result<Self, CalibrateError> {
        let start = file_offset(maps, function as usize as u64).ok_or(CalibrateError::NotMapped)?;
        // From the file: in memory there is a breakpoint where a probe is.
        let mut code = [0; PROLOGUE];
        file.read_exact_at(&mut code, start).map_err(CalibrateError::Own)?;
        let pad = landing_pad(&code);
        let first = first_instruction(&code[pad as usize..]);
        Ok(Self { offset: start + pad, first, function, bare_ns: least_ns(&mut || function()) })
    }

    /// Calls it once.
    pub(crate) fn call(&self) {
        (self.function)();
    }

    /// The time the current probe adds to a call, ns.
    pub fn added_ns(&self) -> f64 {
        (least_ns(&mut || (self.function)()) - self.bare_ns).max(0.0)
    }
}

/// The least that a call took on average in a batch.
fn least_ns(call: &mut dyn FnMut()) -> f64 {
    let began = Instant::now();
    let mut least = f64::INFINITY;
    // The first touches memory that is not there yet.
    black_box(&mut *call)();
    for batch in 0..BATCHES {
        if batch >= LEAST && began.elapsed() > PATIENCE {
            break;
        }
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(&mut *call)();
        }
        least = least.min(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    least
}

/// Where in its file an address of this process's code lies.
fn file_offset(maps: &str, address: u64) -> Option<u64> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (from, to) = (hex(from)?, hex(to)?);
        let (_permissions, offset) = (fields.next()?, hex(fields.next()?)?);
        (from..to).contains(&address).then(|| address - from + offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn each_function_is_found_in_its_file_and_begins_as_it_is_to() {
        let calibrator = Calibrator::new().unwrap();
        let file = std::fs::read(calibrator.path()).unwrap();
        assert_eq!(calibrator.sites().len(), SAMPLES.len());
        for (site, (kind, _)) in calibrator.sites().iter().zip(SAMPLES) {
            let code = &file[site.offset as usize..];
            assert_eq!((site.first, first_instruction(code)), (*kind, *kind), "{:x?}", &code[..8]);
        }
    }

    #[test]
    fn addresses_lead_to_offsets() {
        let maps = "1000-3000 r--p 00000000 fe:00 12 /bin/x\n3000-5000 r-xp 00002000 fe:00 12 /bin/x\n\nx\n";
        assert_eq!(file_offset(maps, 0x3010), Some(0x2010));
        assert_eq!(file_offset(maps, 0x5000), None);
    }

    #[test]
    fn interruptions_do_not_count() {
        let mut calls = 0u32;
        let ns = least_ns(&mut || {
            calls += 1;
            // Every batch but some is disturbed.
            if calls.is_multiple_of(CALLS * 2) {
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        assert!(calls > CALLS && ns.is_finite() && ns >= 0.0, "{calls} {ns}");
    }

    /// A probe that only counts, through perf: needs root, and no program of ours.
    fn count_hits(path: &Path, offset: u64) -> std::io::Result<OwnedFd> {
        let kind = read_text(Path::new("/sys/bus/event_source/devices/uprobe/type"), 64)?;
        let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        let mut attr = [0u64; 14];
        attr[0] = kind.trim().parse::<u64>().map_err(std::io::Error::other)? | 112 << 32;
        (attr[7], attr[8]) = (path.as_ptr().addr() as u64, offset);
        // SAFETY: the attribute and the name outlive the call, and it says its own size. Of this thread, on any CPU.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 0) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    #[test]
    fn a_real_probe_is_hit_by_every_call_that_is_measured() {
        let calibrator = Calibrator::new().unwrap();
        for site in calibrator.sites() {
            let probe = match count_hits(calibrator.path(), site.offset) {
                Ok(probe) => probe,
                Err(error) => {
                    assert!(std::env::var_os("CI").is_none(), "CI must not skip it: {error}");
                    return;
                }
            };
            let ns = site.added_ns();
            let mut count = [0; 8];
            std::io::Read::read_exact(&mut File::from(probe), &mut count).unwrap();
            let hits = u64::from_ne_bytes(count);
            let kind = site.first;
            assert!(hits > u64::from(CALLS * LEAST) && hits <= u64::from(CALLS * BATCHES + 1), "{kind:?}: {hits} hits");
            assert!(ns.is_finite() && ns >= 0.0, "{kind:?}: {ns}");
            eprintln!("{kind:?}: a probe that counts adds {ns:.0} ns to {:.1} ns", site.bare_ns);
        }
    }
}
