// SPDX-License-Identifier: Apache-2.0
//! Checks docs/memory-json.md against the real JSON.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeSet;

/// Every key of a value, however deep.
pub fn keys_in(value: &serde_json::Value, keys: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => object.iter().for_each(|(key, inner)| {
            keys.insert(key.clone());
            keys_in(inner, keys);
        }),
        serde_json::Value::Array(list) => list.iter().for_each(|inner| keys_in(inner, keys)),
        _ => {}
    }
}

/// Checks that the documentation of a schema has exactly these keys and those that the command adds.
pub fn assert_described(schema: &str, real: &BTreeSet<String>, added: &[&str]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/memory-json.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut parts = format!("\n{text}").split("\n# ").map(str::to_owned).collect::<Vec<_>>().into_iter();
    let text = parts.find(|part| part.starts_with(&format!("`{schema}`"))).unwrap();
    let first_column = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let words = first_column.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let documented: BTreeSet<&str> =
        words.map(|word| word.trim_end_matches("[]")).filter(|word| !added.contains(word)).collect();
    let missing: Vec<&&str> = documented.iter().filter(|key| !real.contains(**key)).collect();
    assert!(missing.is_empty(), "described but not there: {missing:?}");
    let has = |key: &str| text.contains(&format!("`{key}`")) || text.contains(&format!("`{key}[]`"));
    let silent: Vec<&String> = real.iter().filter(|key| !has(key)).collect();
    assert!(silent.is_empty(), "there but not described: {silent:?}");
}
