//! A value of a file with its place.

use std::borrow::Cow;
use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// A value and the bytes that it was read from.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Range<usize>,
}

impl<T> At<T> {
    /// Another value at the same place.
    pub(crate) fn map<U>(self, with: impl FnOnce(T) -> U) -> At<U> {
        At {
            value: with(self.value),
            span: self.span,
        }
    }
}

/// In the schema, the place of a value is not seen.
impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// A time: a whole number and `s`, `m`, `h` or `d`.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
#[expect(dead_code, reason = "the schema of a duration")]
pub(crate) struct DurationText(#[schemars(regex(pattern = "^[0-9]{1,9}(s|m|h|d)$"))] String);

/// Bytes: a whole number, alone or with `KiB`, `MiB`, `GiB`, `TiB`, `KB`, `MB`, `GB` or `TB`.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[expect(dead_code, reason = "the schema of a size")]
pub(crate) enum SizeText {
    Bytes(u64),
    Text(#[schemars(regex(pattern = "^[0-9]{1,15}(B|[KMGT]i?B)?$"))] String),
}

/// So many in a time.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
#[expect(dead_code, reason = "the schema of a rate")]
pub(crate) struct RateText(#[schemars(regex(pattern = "^[0-9]{1,9}/(s|min|h|day)$"))] String);

/// A whole number from 1.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
#[expect(dead_code, reason = "the schema of a count")]
pub(crate) struct Count(#[schemars(range(min = 1))] u64);
