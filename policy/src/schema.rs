//! The JSON Schema of the policy language, for editors, from the types that the loader reads into.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::Value;

use crate::document::PolicySpec;

/// JSON Schema (2020-12) of a policy file. What this version doesn't enforce is not in it.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(refuse_null));
    settings
        .into_generator()
        .into_root_schema_for::<PolicySpec>()
        .to_value()
}

/// A key may be left out and may not be null; the derived schema allows both.
fn refuse_null(schema: &mut Schema) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
        if let [Value::Object(only)] = choices.as_slice() {
            let only = only.clone();
            schema.remove("anyOf");
            for (key, value) in only {
                schema.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_may_be_null() {
        assert!(!schema().to_string().contains("null"));
        assert_eq!(
            schema()["$defs"]["Rule"]["properties"]["http"]["$ref"],
            "#/$defs/Http"
        );
        assert_eq!(schema()["properties"]["name"]["type"], "string");
    }
}
