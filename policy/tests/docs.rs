//! The pages under `docs/` that are made from the types. `OUTGATE_BLESS=1` writes them anew.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::fmt::Write;
use std::path::Path;

use outgate_policy::{Reason, schema};
use serde_json::Value;

#[test]
fn the_page_of_reason_codes_is_up_to_date() {
    let mut page = String::from(
        "# Reason codes\n\n\
         Every denial, every refusal and every record of the audit log carries one of these codes. The\n\
         list is stable: a code keeps its meaning. The status is that of an answer over HTTP; flows that\n\
         aren't HTTP are reset, and names are answered with NXDOMAIN.\n\n\
         This page is made from the types; `OUTGATE_BLESS=1 cargo nextest run -p outgate-policy --test docs`\n\
         writes it anew.\n\n\
         | code | status | meaning | what to do |\n|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        let status = match reason {
            Reason::Allowed => "—".to_owned(),
            other => other.http_status().to_string(),
        };
        writeln!(
            page,
            "| `{reason}` | {status} | {} | {} |",
            reason.explanation(),
            reason.how_to_fix()
        )
        .unwrap();
    }
    is_up_to_date("reasons.md", &page);
}

#[test]
fn the_policy_reference_is_up_to_date() {
    let schema = schema();
    let mut page = String::from(
        "# Policy reference\n\n\
         Every key of a policy file. [policy.md](policy.md) says how the parts work together. An unknown key, a duplicate key and a value that is not of the type given\n\
         here are errors. `outgate policy schema` prints the JSON Schema that editors complete from.\n\n\
         This page is made from the types; `OUTGATE_BLESS=1 cargo nextest run -p outgate-policy --test docs`\n\
         writes it anew.\n",
    );
    section(&mut page, "A policy file", &schema);
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        if definition.get("properties").is_some() {
            section(&mut page, name, definition);
        } else {
            choices(&mut page, name, definition);
        }
    }
    is_up_to_date("policy-reference.md", &page);
}

fn section(page: &mut String, title: &str, object: &Value) {
    write!(page, "\n## {title}\n\n{}\n\n", text(object)).unwrap();
    page.push_str("| key | type | needed | meaning |\n|---|---|---|---|\n");
    let required: Vec<&str> = object["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (key, property) in object["properties"].as_object().unwrap() {
        let needed = if required.contains(&key.as_str()) {
            "yes"
        } else {
            ""
        };
        writeln!(
            page,
            "| `{key}` | {} | {needed} | {} |",
            kind(property),
            text(property)
        )
        .unwrap();
    }
}

/// A type that is one of several things.
fn choices(page: &mut String, name: &str, definition: &Value) {
    write!(page, "\n## {name}\n\n{}\n\n", text(definition)).unwrap();
    for key in ["oneOf", "anyOf"] {
        for choice in definition[key].as_array().into_iter().flatten() {
            match choice["properties"].as_object() {
                Some(properties) => {
                    for (name, property) in properties {
                        let meaning = text(choice);
                        let meaning = if meaning.is_empty() {
                            text(property)
                        } else {
                            meaning
                        };
                        writeln!(page, "- `{name}: ` {}: {meaning}", kind(property)).unwrap();
                    }
                }
                None => writeln!(page, "- {}: {}", kind(choice), text(choice)).unwrap(),
            }
        }
    }
    for value in definition["enum"].as_array().into_iter().flatten() {
        writeln!(page, "- `{}`", value.as_str().unwrap()).unwrap();
    }
}

fn kind(property: &Value) -> String {
    if let Some(reference) = property["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(word) = property["const"].as_str() {
        return format!("`{word}`");
    }
    if let Some(choices) = property["anyOf"].as_array() {
        return choices.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(words) = property["enum"].as_array() {
        let words: Vec<String> = words
            .iter()
            .map(|word| format!("`{}`", word.as_str().unwrap()))
            .collect();
        return words.join(" or ");
    }
    match property["type"].as_str() {
        Some("array") => format!("list of {}", kind(&property["items"])),
        Some("object") => format!(
            "mapping of names to {}",
            kind(&property["additionalProperties"])
        ),
        Some("string") => "text".to_owned(),
        Some("integer") => "whole number".to_owned(),
        Some(other) => other.to_owned(),
        None => panic!("no type in {property}"),
    }
}

fn text(value: &Value) -> String {
    let text = value["description"].as_str().unwrap_or_default();
    text.replace('\n', " ").replace('|', "\\|")
}

fn is_up_to_date(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(name);
    if std::env::var_os("OUTGATE_BLESS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/{name} is out of date; run this test with OUTGATE_BLESS=1"
    );
}
