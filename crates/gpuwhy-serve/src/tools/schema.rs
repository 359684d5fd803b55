// SPDX-License-Identifier: Apache-2.0
//! Schemas of arguments and answers, kept short: the list of tools goes into every conversation.

use crate::error::ToolError;
use crate::text::clean;
use rmcp::model::JsonObject;
use serde_json::{Map, Value, json};

/// Schema keywords without use to clients: they warn about unknown number formats, and an optional argument needs no
/// null.
const NOISE: [&str; 4] = ["$schema", "format", "default", "minimum"];

/// The schema of arguments: each with its type and description.
pub(super) fn of_arguments(schema: &JsonObject) -> JsonObject {
    let mut schema = schema.clone();
    let defs = schema.remove("$defs");
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for argument in properties.values_mut() {
            inline(argument, defs.as_ref());
            without_null(argument);
            drop_noise(argument);
        }
    }
    NOISE.iter().for_each(|noise| drop(schema.remove(*noise)));
    schema
}

/// How many fields of an answer are required: enough to distinguish it from other answers.
const REQUIRED: usize = 2;

/// The schema of an answer: the required top-level fields with their types. Nested fields have self-explanatory names.
pub(super) fn of_answer(schema: &JsonObject) -> JsonObject {
    let defs = schema.get("$defs");
    let mut fields = Map::new();
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let all = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    for (name, field) in all.filter(|(name, _)| required.contains(&name.as_str())) {
        let mut field = field.clone();
        inline(&mut field, defs);
        let kind = field.get("type").cloned().unwrap_or_else(|| json!("object"));
        fields.insert(name.clone(), json!({ "type": kind }));
    }
    let mut short = JsonObject::new();
    short.insert("type".into(), "object".into());
    short.insert("properties".into(), fields.into());
    short.insert("required".into(), required.into_iter().take(REQUIRED).collect());
    short
}

/// Replaces a reference by its definition: the words of an enum, or the type of a larger value.
fn inline(field: &mut Value, defs: Option<&Value>) {
    let Some(object) = field.as_object_mut() else { return };
    let options = object.remove("anyOf").or_else(|| object.remove("allOf"));
    let of = |value: &Value| value.get("$ref").and_then(Value::as_str).map(str::to_owned);
    let reference = object.remove("$ref").and_then(|name| name.as_str().map(str::to_owned));
    let reference = reference.or_else(|| options.as_ref()?.as_array()?.iter().find_map(of));
    let Some(name) = reference.as_deref().and_then(|name| name.rsplit('/').next()) else { return };
    let Some(found) = defs.and_then(|defs| defs.get(name)) else { return };
    let words: Vec<Value> = words(found);
    if words.is_empty() {
        let kind = found.get("type").cloned().unwrap_or_else(|| "object".into());
        let nullable = options.is_some_and(|options| options.to_string().contains("\"null\""));
        object.insert("type".into(), if nullable { json!([kind, "null"]) } else { kind });
    } else {
        object.insert("type".into(), "string".into());
        object.insert("enum".into(), words.into());
    }
}

/// The words of an enum.
fn words(found: &Value) -> Vec<Value> {
    if let Some(words) = found.get("enum").and_then(Value::as_array) {
        return words.clone();
    }
    let each = found.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    each.flat_map(|one| match one.get("const") {
        Some(word) => vec![word.clone()],
        None => words(one),
    })
    .collect()
}

fn without_null(argument: &mut Value) {
    let Some(Value::Array(kinds)) = argument.get_mut("type") else { return };
    kinds.retain(|kind| kind != "null");
    if let [only] = kinds.as_slice() {
        argument["type"] = only.clone();
    }
}

fn drop_noise(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|name, value| !NOISE.contains(&name.as_str()) || value.is_object());
    }
}

/// Converts arguments to the types of their schema: models often write numbers and booleans as text.
pub(super) fn as_typed(tool: &str, schema: &JsonObject, mut arguments: JsonObject) -> Result<JsonObject, ToolError> {
    for (name, value) in &mut arguments {
        let kind = schema.get("properties").and_then(|all| all.get(name)?.get("type")?.as_str());
        let Some((kind, example)) = kind.and_then(described).filter(|_| !value.is_null()) else { continue };
        match typed(kind, value) {
            Some(read) => *value = read,
            None => {
                let given = clean(&value.to_string(), 40);
                return Err(ToolError::Arguments(format!("{tool}: invalid {name} {given}: give {example}")));
            }
        }
    }
    Ok(arguments)
}

/// A JSON type with its description.
fn described(kind: &str) -> Option<(&str, &'static str)> {
    match kind {
        "integer" => Some((kind, "a whole number from 0 to 4294967295")),
        "number" => Some((kind, "a number")),
        "boolean" => Some((kind, "true or false")),
        _ => None,
    }
}

fn typed(kind: &str, value: &Value) -> Option<Value> {
    let text = value.as_str().map(str::trim);
    match kind {
        "integer" => {
            let number = value.as_u64().or_else(|| text?.parse().ok())?;
            u32::try_from(number).ok().map(Value::from)
        }
        "number" => value.as_f64().or_else(|| text?.parse().ok()).filter(|number| number.is_finite()).map(Value::from),
        _ => value.as_bool().or_else(|| text?.to_ascii_lowercase().parse().ok()).map(Value::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> JsonObject {
        match value {
            Value::Object(object) => object,
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn arguments_lose_what_says_nothing() {
        let schema = object(json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "$defs": {"By": {"enum": ["line", "stack"]}},
            "properties": {
                "pid": {"description": "Only this process", "type": ["integer", "null"], "minimum": 0, "default": null},
                "from": {"description": "From here", "type": ["string", "number", "null"]},
                "by": {"description": "What", "$ref": "#/$defs/By", "default": "line"},
                "bar": {"description": "What", "anyOf": [{"$ref": "#/$defs/By"}, {"type": "null"}]},
            },
        }));
        let expected = object(json!({
            "type": "object",
            "properties": {
                "pid": {"description": "Only this process", "type": "integer"},
                "from": {"description": "From here", "type": ["string", "number"]},
                "by": {"description": "What", "type": "string", "enum": ["line", "stack"]},
                "bar": {"description": "What", "type": "string", "enum": ["line", "stack"]},
            },
        }));
        assert_eq!(of_arguments(&schema), expected);
    }

    #[test]
    fn answers_keep_the_types_of_their_fields() {
        let schema = object(json!({
            "type": "object", "$defs": {"One": {"type": "object", "properties": {}}},
            "required": ["entries", "one", "perhaps", "next"],
            "properties": {
                "often": {"type": "integer"},
                "entries": {"description": "Long words", "type": "array", "items": {"$ref": "#/$defs/One"}},
                "next": {"type": ["string", "null"]},
                "one": {"$ref": "#/$defs/One"},
                "perhaps": {"anyOf": [{"$ref": "#/$defs/One"}, {"type": "null"}]},
            },
        }));
        let expected = object(json!({
            "type": "object",
            "required": ["entries", "one"],
            "properties": {
                "entries": {"type": "array"}, "next": {"type": ["string", "null"]},
                "one": {"type": "object"}, "perhaps": {"type": ["object", "null"]},
            },
        }));
        assert_eq!(of_answer(&schema), expected);
    }
}
