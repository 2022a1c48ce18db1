//! JSON that has one reading (RFC 8259, RFC 7493): one document, UTF-8, no name twice.
//!
//! Of two members with one name some parsers take the first, others the last; a rule would judge
//! one and the upstream do the other. Only what the matchers ask for is kept: the document's own
//! members and theirs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{Unclear, shown};

/// Containers in one another. Clients stay far below; parsers differ in where they give up.
const MAX_DEPTH: usize = 64;
/// Objects down to this depth keep their members.
const KEPT_DEPTH: usize = 2;

/// The members of an object by their unescaped names.
pub(super) type Members<'a> = BTreeMap<Cow<'a, str>, Json<'a>>;

/// A value, as far as matchers look into it.
#[derive(Debug, PartialEq)]
pub(super) enum Json<'a> {
    Object(Members<'a>),
    /// An object deeper than [`KEPT_DEPTH`]: read, checked, and let go.
    DeepObject,
    Array,
    String(Cow<'a, str>),
    Null,
    /// A number, `true` or `false`.
    Other,
}

/// Reads one document.
pub(super) fn parse(bytes: &[u8]) -> Result<Json<'_>, Unclear> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let outermost = Level { depth: 1 };
    let value = outermost
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| Unclear::new(format!("the body is no strict JSON: {error}")))
}

/// Reads a value; a container that it turns out to be is at `depth`.
#[derive(Clone, Copy)]
struct Level {
    depth: usize,
}

impl Level {
    fn check<E: Error>(self) -> Result<Self, E> {
        if self.depth > MAX_DEPTH {
            let why = format!("more than {MAX_DEPTH} containers in one another");
            return Err(E::custom(why));
        }
        Ok(Self {
            depth: self.depth + 1,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Json<'de>, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::String(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::String(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json<'de>, A::Error> {
        let inner = self.check()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(Json::Array)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json<'de>, A::Error> {
        let inner = self.check()?;
        let mut read = Members::new();
        while let Some(name) = members.next_key_seed(Name)? {
            match read.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(members.next_value_seed(inner)?);
                }
                Entry::Occupied(place) => {
                    let why = format!("the name `{}` twice", shown(place.key().as_bytes()));
                    return Err(A::Error::custom(why));
                }
            }
        }
        Ok(if self.depth > KEPT_DEPTH {
            Json::DeepObject
        } else {
            Json::Object(read)
        })
    }
}

/// The name of a member.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Cow<'de, str>, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn why(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn members_and_theirs_are_kept() {
        let text = r#"{"a":"x","b":{"c":"A","d":{"e":1}},"f":[1,{}],"g":null,"h":-1.5e3,"i":true}"#;
        let Ok(Json::Object(members)) = parse(text.as_bytes()) else {
            panic!("no object");
        };
        assert_eq!(members["a"], Json::String("x".into()));
        let Json::Object(inner) = &members["b"] else {
            panic!("no object");
        };
        assert_eq!(inner["c"], Json::String("A".into()));
        assert_eq!(inner["d"], Json::DeepObject);
        assert_eq!(members["f"], Json::Array);
        assert_eq!(members["g"], Json::Null);
        assert_eq!(members["h"], Json::Other);
        assert_eq!(members["i"], Json::Other);
    }

    #[test]
    fn a_name_is_there_once_at_every_depth() {
        for text in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"\u0061":1,"a":1}"#,
            r#"{"/":1,"\/":2}"#,
            r#"{"x":{"y":{"z":{"a":1,"b":2,"a":1}}}}"#,
            r#"[[{"a":{},"a":{}}]]"#,
            r#"{"😀":1,"\ud83d\ude00":2}"#,
            r#"{"":1,"":2}"#,
        ] {
            assert!(why(text).contains("twice"), "{text}: {}", why(text));
        }
        // Not the same: composed and decomposed, upper and lower case.
        let alike = "{\"a\":1,\"A\":2,\"\u{e9}\":3,\"e\u{301}\":4}";
        assert!(parse(alike.as_bytes()).is_ok());
    }

    #[test]
    fn what_parsers_differ_in_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "{}{}",
            "{} x",
            "{}\0",
            "\u{feff}{}",
            "{}\u{feff}",
            "{'a':1}",
            "{a:1}",
            "{\"a\":1,}",
            "[1,]",
            "{\"a\":01}",
            "{\"a\":+1}",
            "{\"a\":.5}",
            "{\"a\":1.}",
            "{\"a\":0x1}",
            "{\"a\":NaN}",
            "{\"a\":Infinity}",
            "{\"a\":1e999}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\0\"}",
            "{\"a\":\"\\x41\"}",
            "{\"a\":\"\\u12\"}",
            "{\"a\":1}//",
            "{/**/\"a\":1}",
            "#\n{}",
            "\u{c}{}",
            "\u{a0}{}",
            r#"{"a":"\ud800"}"#,
            r#"{"a":"\udc00"}"#,
            r#"{"a":"\ud800\ud800"}"#,
            r#"{"a":"\ud800A"}"#,
            r#"{"\ud800":1}"#,
            "{1:2}",
            "{null:2}",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
        for bytes in [
            &b"{\"a\":\"\xff\"}"[..],
            b"{\"a\":\"\xc0\xa2\"}",
            b"{\"a\":\"\xed\xa0\x80\"}",
            b"{\"\xff\":1}",
            b"{\"a\":[[[\"\xff\"]]]}",
            b"\xff\xfe{\0}\0",
            b"{\0}\0",
            b"\0{\0}",
            b"\xef\xbb\xbf{}",
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn depth_ends_at_the_limit() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(parse(nested(MAX_DEPTH).as_bytes()), Ok(Json::Array));
        assert!(why(&nested(MAX_DEPTH + 1)).contains("more than 64 containers"));
        let objects = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        assert!(parse(objects(MAX_DEPTH).as_bytes()).is_ok());
        assert!(why(&objects(MAX_DEPTH + 1)).contains("more than 64 containers"));
        // Much deeper, as an attack on the stack.
        assert!(parse("[".repeat(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn the_reason_escapes_and_cuts_what_it_shows() {
        let name = format!("\\n{}", "x".repeat(1000));
        let why = why(&format!(r#"{{"{name}":1,"{name}":2}}"#));
        assert!(why.contains("`\\nxx") && why.len() < 200, "{why}");
    }

    /// Documents of a few pieces, most of them broken.
    fn soup() -> impl Strategy<Value = String> {
        let pieces = [
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"a\"",
            "\"\\u0061\"",
            "\"b\"",
            "1",
            "null",
            "true",
            "\"",
            "\\",
            " ",
        ];
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..24)
            .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }

        #[test]
        fn stricter_than_the_library_alone(text in soup()) {
            let lenient = serde_json::from_str::<serde_json::Value>(&text);
            if parse(text.as_bytes()).is_ok() {
                prop_assert!(lenient.is_ok());
            }
        }

        /// Whatever the library writes has unique names, so it must be read.
        #[test]
        fn proper_documents_are_read(names in prop::collection::btree_set("\\PC{0,6}", 0..8)) {
            let object: serde_json::Map<_, _> =
                names.into_iter().map(|name| (name.clone(), name.into())).collect();
            let expected = object.clone();
            let text = serde_json::to_string(&object).unwrap();
            let Ok(Json::Object(members)) = parse(text.as_bytes()) else {
                panic!("{text}");
            };
            prop_assert_eq!(members.len(), expected.len());
            for (name, value) in members {
                let wanted = expected[&*name].as_str().unwrap();
                prop_assert_eq!(value, Json::String(wanted.into()));
            }
        }
    }
}
