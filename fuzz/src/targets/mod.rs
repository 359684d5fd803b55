// SPDX-License-Identifier: Apache-2.0
//! The targets and their table.

mod mcp;
mod run_file;
mod secrets;
mod torch;

use crate::Target;

/// Every target.
pub const ALL: &[Target] = &[
    Target {
        name: "secrets",
        seeds: secrets::seeds,
        words: secrets::WORDS,
        run: secrets::secrets,
        memory: 8 << 20,
        count: 2_000,
    },
    Target {
        name: "run_file",
        seeds: run_file::seeds,
        words: &[],
        run: run_file::run_file,
        memory: 512 << 20,
        count: 150,
    },
    Target { name: "mcp", seeds: mcp::seeds, words: mcp::WORDS, run: mcp::mcp, memory: 512 << 20, count: 150 },
    Target {
        name: "trace",
        seeds: torch::traces,
        words: torch::JSON,
        run: torch::trace,
        memory: 256 << 20,
        count: 300,
    },
    Target {
        name: "snapshot",
        seeds: torch::snapshots,
        words: &[],
        run: torch::snapshot,
        memory: 256 << 20,
        count: 200,
    },
];
