// SPDX-License-Identifier: Apache-2.0
//! Any bytes at all: an error or a report whose accounts add up, never a panic.
#![no_main]

use gpuwhy_torch::trace::{Options, analyse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let options = Options { workers: 1, include_warmup: data.len() % 2 == 0, ..Options::default() };
    if let Ok(report) = analyse(data, &options, |_| ()) {
        for device in &report.devices {
            assert!(device.account.adds_up());
            assert!(device.steady.is_none_or(|steady| steady.adds_up()));
            let causes = report.idle_causes.iter().filter(|cause| cause.device == device.index);
            assert_eq!(causes.map(|cause| cause.total_ns).sum::<u64>(), device.account.idle_ns);
        }
    }
});
