// SPDX-License-Identifier: Apache-2.0
//! `timeline.png`.
use crate::{Result, Timeline};
/// Stub.
pub fn png(_timeline: &Timeline) -> Result<Vec<u8>> {
    Ok(Vec::new())
}
