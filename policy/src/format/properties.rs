//! Whatever a file holds and however it is written: formatted it says the same, has every comment
//! where it belongs, and formats to itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::format;
use super::odd_style::{File, Tree, write};
use crate::document::{Kind, Node, parse_commented};
use crate::{Diagnostics, Source};

fn texts() -> impl Strategy<Value = Tree> {
    const PLAIN: [&str; 10] = [
        "443", "true", "~", "null", "no", "1e3", "0x1f", "-1", "y", ".5",
    ];
    const ODD: [&str; 59] = [
        "",
        "~",
        "null",
        "443",
        "true",
        "*.a.test",
        "a: b",
        "a #b",
        "#",
        "- a",
        "-",
        "?",
        ":",
        "a:",
        " a",
        "a ",
        "a, b",
        "[a]",
        "{}",
        "}",
        "\"",
        "'",
        "\\",
        "a\nb",
        "a\n\n b\n",
        "\n",
        "a\n\n\n",
        "\na",
        "  a\nb",
        "a\n  \nb",
        "\ta",
        "a\tb",
        "%",
        "@a",
        "`",
        "!a",
        "&a",
        "|",
        ">",
        "|-\na",
        "...",
        "---",
        "--- a",
        "2001-12-14",
        "1.1.1.1",
        "12:30",
        "=",
        "<<",
        "ü 🦀",
        "\u{202e}",
        "\u{feff}",
        "\u{85}",
        "\u{2028}",
        "\u{7}",
        "\r\n",
        "a\\",
        "# a",
        "a # b # c",
        "\u{a0}",
    ];
    prop_oneof![
        proptest::sample::select(&PLAIN[..]).prop_map(|text| Tree::Text(text.to_owned(), true)),
        proptest::sample::select(&ODD[..]).prop_map(|text| Tree::Text(text.to_owned(), false)),
        "[a-z]{1,12}".prop_map(|text| Tree::Text(text, false)),
        "[a-z ,:#*'\"\\[\\]{}\\-\n]{0,40}".prop_map(|text| Tree::Text(text, false)),
        "[a-z]{1,9}( [a-z]{1,9}){10,40}".prop_map(|text| Tree::Text(text, false)),
        "[^\u{0}]{0,6}".prop_map(|text| Tree::Text(text, false)),
    ]
}

const KNOWN: [&str; 16] = [
    "version",
    "name",
    "rules",
    "credentials",
    "tests",
    "budgets",
    "id",
    "action",
    "to",
    "http",
    "hosts",
    "ports",
    "paths",
    "methods",
    "request",
    "expect",
];

fn trees() -> impl Strategy<Value = Tree> {
    let collections = |inner: BoxedStrategy<Tree>| {
        let key = prop_oneof![
            proptest::sample::select(&KNOWN[..]).prop_map(str::to_owned),
            "[a-z]{1,8}",
            Just("a: b".to_owned()),
            Just("*".to_owned()),
            Just("x".repeat(1100)),
        ];
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Tree::List),
            vec((key, inner), 0..5).prop_map(|pairs| {
                let mut map: Vec<(String, Tree)> = Vec::new();
                for (key, value) in pairs {
                    if map.iter().all(|(other, _)| *other != key) {
                        map.push((key, value));
                    }
                }
                Tree::Map(map)
            }),
        ]
    };
    let inner = texts().prop_recursive(6, 60, 5, move |inner| collections(inner.boxed()));
    prop_oneof![4 => collections(inner.clone().boxed()), 1 => inner]
}

/// What a file says; entries of mappings in the order of their keys.
fn read(text: &str) -> Tree {
    fn of(node: &Node) -> Tree {
        match &node.kind {
            Kind::Scalar { text, plain } => {
                let matters = crate::document::quotes_matter(text);
                Tree::Text(text.clone(), *plain && matters)
            }
            Kind::List(items) => Tree::List(items.iter().map(of).collect()),
            Kind::Map(pairs) => Tree::Map(
                pairs
                    .iter()
                    .map(|(key, value)| match &key.kind {
                        Kind::Scalar { text, .. } => (text.clone(), of(value)),
                        _ => panic!("keys are texts here"),
                    })
                    .collect(),
            ),
        }
    }
    let source = Arc::new(Source::new("p.yaml", text));
    let read = parse_commented(&source).unwrap_or_else(|found| panic!("{found:?}\n{text}"));
    sorted(&of(&read.root.unwrap()))
}

fn sorted(tree: &Tree) -> Tree {
    match tree {
        Tree::Text(..) => tree.clone(),
        Tree::List(items) => Tree::List(items.iter().map(sorted).collect()),
        Tree::Map(pairs) => {
            let pairs: BTreeMap<_, _> = pairs
                .iter()
                .map(|(key, value)| (key, sorted(value)))
                .collect();
            let pairs = pairs.into_iter().map(|(key, value)| (key.clone(), value));
            Tree::Map(pairs.collect())
        }
    }
}

fn comments_of(text: &str) -> Vec<String> {
    let source = Arc::new(Source::new("p.yaml", text));
    let read = parse_commented(&source).unwrap();
    let mut comments: Vec<String> = read
        .comments
        .iter()
        .map(|span| text[span.clone()].trim_end().to_owned())
        .collect();
    comments.sort();
    comments
}

fn formatted(text: &str) -> Result<String, Diagnostics> {
    format(&Source::new("p.yaml", text))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn nothing_is_lost_and_twice_is_once(tree in trees(), choices in vec(any::<u8>(), 0..400)) {
        check_kept(&tree, &choices);
    }

    #[test]
    fn comments_stay_with_what_they_speak_of(tree in trees(), choices in vec(any::<u8>(), 0..400)) {
        check_places(&tree, &choices);
    }

    #[test]
    fn any_text_formats_to_itself_or_not_at_all(
        parts in vec(proptest::sample::select(&PARTS[..]), 0..40),
    ) {
        check_any(&parts.concat());
    }

    #[test]
    fn a_damaged_file_formats_to_itself_or_not_at_all(
        tree in trees(),
        choices in vec(any::<u8>(), 0..400),
        damage in vec((any::<usize>(), 0..4_usize, proptest::sample::select(&PARTS[..])), 1..4),
    ) {
        let mut text: Vec<char> = write(&tree, &choices).text.chars().collect();
        for (at, removed, part) in damage {
            let at = at % (text.len() + 1);
            let end = (at + removed).min(text.len());
            text.splice(at..end, part.chars());
        }
        check_any(&text.into_iter().collect::<String>());
    }
}

fn check_kept(tree: &Tree, choices: &[u8]) {
    let File {
        text, mut comments, ..
    } = write(tree, choices);
    let tree = sorted(tree);
    assert_eq!(read(&text), tree, "the test writes well:\n{text}");
    let once = formatted(&text).unwrap_or_else(|found| panic!("{found}\n{text}"));
    assert_eq!(read(&once), tree, "\n{text}\n{once}");
    comments.sort();
    assert_eq!(comments_of(&once), comments, "\n{text}\n{once}");
    let twice = formatted(&once).unwrap_or_else(|found| panic!("{found}\n{once}"));
    assert_eq!(twice, once, "\n{text}");
    assert!(once.ends_with('\n') && !once.contains(['\r', '\u{feff}']));
}

fn check_places(tree: &Tree, choices: &[u8]) {
    let file = write(tree, choices);
    let once = formatted(&file.text).unwrap();
    let lines: Vec<&str> = once.lines().collect();
    let find = |comment: &String| {
        let at = lines.iter().position(|line| line.ends_with(comment));
        at.unwrap()
    };
    let is_note = |line: &str| line.trim_start().starts_with('#');
    for (comment, key) in &file.above {
        let mut below = lines[find(comment)..].iter();
        let next = below.find(|line| !is_note(line) && !line.trim().is_empty());
        // What stands right behind a dash or a long key has its notes before that.
        let is_there = |next: &&str| {
            next.contains(key) || next.contains("- ") || next.trim_start().starts_with("? ")
        };
        let text = &file.text;
        assert!(
            next.is_some_and(is_there),
            "{comment} {key}\n{text}\n{once}"
        );
    }
    for (comment, key) in &file.beside {
        let line = lines[find(comment)];
        // A line holds one comment; the others go before it.
        let is_there = line.contains(key) || is_note(line);
        assert!(is_there, "{comment} {key}\n{}\n{once}", file.text);
    }
}

const PARTS: [&str; 64] = [
    "a",
    "b",
    "\n",
    "\n",
    "\n  ",
    "\n    ",
    "\n\n",
    "- ",
    "-",
    "? ",
    ": ",
    ":",
    "a: ",
    "b:\n",
    "id: ",
    "rules:\n",
    "rules:\n- ",
    "tests: ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    ",",
    "# c\n",
    " # d\n",
    "  # e\n",
    "    # f\n",
    "\n# g\n",
    "|\n",
    "|+\n",
    ">-\n",
    ">2\n",
    "|1-\n",
    "'x'",
    "\"y\"",
    "'",
    "\"",
    "\\n",
    "\\",
    "1",
    "0x",
    "true",
    "~",
    " ",
    "  ",
    "\t",
    "\r\n",
    "\r",
    "---\n",
    "...\n",
    "--- ",
    "\u{feff}",
    "ü",
    "\u{85}",
    "\u{2028}",
    "text of words",
    "%",
    "*a",
    "&a ",
    "!t ",
    "<<: ",
    "=",
    "1.1.1.1",
];

/// Any text: a mistake of it is the loader's to tell; else formatting works, and works once.
fn check_any(text: &str) {
    let source = Arc::new(Source::new("p.yaml", text));
    let loader = parse_commented(&source).map_err(Diagnostics::sorted);
    match (formatted(text), loader) {
        (Ok(once), Ok(_)) => match formatted(&once) {
            Ok(twice) => assert_eq!(twice, once, "\n{text}"),
            Err(found) => panic!("{found}\n{text}\n{once}"),
        },
        (Err(found), Err(expected)) => assert_eq!(found, expected),
        (Err(found), Ok(_)) => panic!("{found}\n{text:?}\n{text}"),
        (Ok(_), Err(expected)) => panic!("{expected}\n{text}"),
    }
}
