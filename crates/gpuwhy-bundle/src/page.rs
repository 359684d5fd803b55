// SPDX-License-Identifier: Apache-2.0
//! `timeline.html`.
use crate::{Result, Timeline};
/// Stub.
pub fn html(_timeline: &Timeline) -> Result<String> {
    Ok(String::new())
}
