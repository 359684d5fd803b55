// SPDX-License-Identifier: Apache-2.0
//! Prints what a memory snapshot says, as JSON: `cargo run --release -p gpuwhy-torch --example snapshot FILE`.

use gpuwhy_torch::snapshot;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("give a snapshot file")?;
    let report = snapshot::analyse(std::fs::File::open(path)?, &snapshot::Options::default(), None)?;
    serde_json::to_writer_pretty(std::io::stdout().lock(), &report)?;
    for line in report.findings.iter().map(|finding| finding.to_text()).chain(report.warnings) {
        eprintln!("{line}");
    }
    Ok(())
}
