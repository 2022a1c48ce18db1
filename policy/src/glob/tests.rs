//! What path globs match: tables, a slow oracle, and the library that defined them first.

use globset::{GlobBuilder, GlobSet};
use proptest::prelude::*;

use super::*;
use crate::canonical::CanonicalPath;

fn matches(pattern: &str, path: &str) -> bool {
    let patterns = PathPatterns::new(vec![PathGlob::parse(pattern).unwrap()]);
    patterns.matches(&CanonicalPath::parse(path).unwrap())
}

#[test]
fn the_documented_table() {
    for (pattern, path, expected) in [
        ("/public/**", "/public/x", true),
        ("/public/**", "/public/x/y", true),
        ("/public/**", "/public/", true),
        ("/public/**", "/public", false),
        ("/public/**", "/publicx", false),
        ("/public/**", "/PUBLIC/x", false),
        ("/public/**", "//public/x", false),
        ("/public{,/**}", "/public", true),
        ("/public{,/**}", "/public/x/y", true),
        ("/public{,/**}", "/publicx", false),
        ("/repos/*/x", "/repos/a/x", true),
        ("/repos/*/x", "/repos/a/b/x", false),
        ("/repos/*/x", "/repos//x", true),
        ("/a?c", "/abc", true),
        ("/a?c", "/a/c", false),
        ("/a[a-z]c", "/abc", true),
        ("/a[!x]c", "/a/c", false),
        ("/a[+-9]c", "/a/c", false),
        ("/{a,b}/c", "/b/c", true),
        ("/{a,b}/c", "/c/c", false),
        ("/**", "/", true),
        ("/**", "/a/b", true),
        ("/**/x", "/x", true),
        ("/**/x", "/a/b/x", true),
        ("/**/x", "/ax", false),
        ("/a/**/b", "/a/b", true),
        ("/a/**/b", "/a/x/y/b", true),
        ("/a/**/b", "/ab", false),
        ("/*", "/a", true),
        ("/*", "/a/b", false),
        ("/", "/", true),
        ("/*.js", "/a.js", true),
        ("/*.js", "/a/b.js", false),
        ("/a.b", "/axb", false),
        ("/user", "/user/", false),
        ("/@*/%2F", "/@x/%2f", true),
        ("/x[*]", "/x*", true),
        ("/a%20b", "/a%20b", true),
        ("/**/*.js", "/x/y.js", true),
    ] {
        assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
    }
}

#[test]
fn patterns_that_could_never_match_are_refused() {
    for (pattern, help) in [
        ("public/**", "write `/public/**`"),
        ("**", "write `/**`"),
        ("/a b", "write `/a%20b`"),
        ("/ü", "write `/%C3%BC`"),
        ("/%61", "write `/a`"),
        ("/%2f", "write `/%2F`"),
        ("/a/../b", "write the path without `.` and `..` segments"),
        ("/./b", "write the path without `.` and `..` segments"),
        (
            "/a\\*",
            "a literal `*` is written `[*]`; backslash is no escape",
        ),
        ("/a**", "write `/**` for any depth, `*` within a segment"),
        ("/**a", "write `/**` for any depth, `*` within a segment"),
        ("/a/***", "write `/**` for any depth, `*` within a segment"),
        (
            "/a{,/**}b",
            "write `/**` for any depth, `*` within a segment",
        ),
        (
            "/{a,/**/b}",
            "write `/**` for any depth, `*` within a segment",
        ),
        (
            "/x{/**,}/y",
            "write `/**` for any depth, `*` within a segment",
        ),
        (
            "/{a",
            "brackets and braces that are meant literally are written `[[]`, `[{]`",
        ),
        (
            "/[a",
            "brackets and braces that are meant literally are written `[[]`, `[{]`",
        ),
        (
            "/[z-a]",
            "brackets and braces that are meant literally are written `[[]`, `[{]`",
        ),
    ] {
        assert_eq!(
            PathGlob::parse(pattern).unwrap_err().help.as_deref(),
            Some(help),
            "{pattern}"
        );
    }
    for pattern in [
        "/a#b",
        "/%zz",
        "/a\nb",
        &format!("/{}", "a".repeat(MAX_PATTERN)),
    ] {
        assert!(PathGlob::parse(pattern).is_err(), "{pattern:?}");
    }
}

#[test]
fn a_deny_pattern_sees_every_reading_of_an_escape() {
    let patterns = PathPatterns::new(vec![
        PathGlob::parse("/m/*:run").unwrap(),
        PathGlob::parse("/admin/**").unwrap(),
    ]);
    for path in [
        "/m/x%3Arun",
        "/m/x:run",
        "/admin%2fkeys",
        "/admin/keys",
        "//admin/keys",
        "/admin;x/keys",
        "/admin%252fkeys",
    ] {
        assert!(
            patterns.matches_any_reading(&CanonicalPath::parse(path).unwrap()),
            "{path}"
        );
    }
    assert!(!patterns.matches(&CanonicalPath::parse("/m/x%3Arun").unwrap()));
    assert!(!patterns.matches_any_reading(&CanonicalPath::asterisk()));
}

/// Globs by backtracking over characters, for comparison.
mod oracle {
    pub(super) fn matches(pattern: &str, path: &str) -> bool {
        // Twice any depth is any depth.
        let once = |plain: &String| {
            let mut plain = plain.clone();
            while plain.contains("/**/**") {
                plain = plain.replace("/**/**", "/**");
            }
            plain
        };
        expand(pattern).iter().map(once).any(|plain| {
            let pattern: Vec<char> = plain.chars().collect();
            let path: Vec<char> = path.chars().collect();
            go(&pattern, &path)
        })
    }

    /// Alternatives without nesting.
    fn expand(pattern: &str) -> Vec<String> {
        let Some((front, rest)) = pattern.split_once('{') else {
            return vec![pattern.to_owned()];
        };
        let (inner, back) = rest.split_once('}').unwrap();
        inner
            .split(',')
            .flat_map(|choice| expand(&format!("{front}{choice}{back}")))
            .collect()
    }

    fn go(pattern: &[char], path: &[char]) -> bool {
        match pattern {
            [] => path.is_empty(),
            ['/', '*', '*', '/', rest @ ..] => {
                // Zero or more whole segments.
                path.first() == Some(&'/')
                    && (0..path.len()).any(|at| path[at] == '/' && go(rest, &path[at + 1..]))
            }
            ['/', '*', '*'] => path.first() == Some(&'/'),
            ['*', rest @ ..] => (0..=path.len())
                .take_while(|&at| at == 0 || path[at - 1] != '/')
                .any(|at| go(rest, &path[at..])),
            ['?', rest @ ..] => path.first().is_some_and(|c| *c != '/') && go(rest, &path[1..]),
            ['[', 'a', '-', 'c', ']', rest @ ..] => {
                path.first().is_some_and(|c| ('a'..='c').contains(c)) && go(rest, &path[1..])
            }
            ['[', '!', 'a', ']', rest @ ..] => {
                path.first().is_some_and(|c| *c != 'a' && *c != '/') && go(rest, &path[1..])
            }
            [c, rest @ ..] => path.first() == Some(c) && go(rest, &path[1..]),
        }
    }
}

fn pattern() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/", "/", "/", "a", "b", ".", ".js", "*", "?", "/**", "/**/", "[a-c]", "[!a]", "{a,b}",
        "{,/**}", "{,/**/a}", "{/**,/b}", "{a/b,c}", "ab", "%3A",
    ]);
    prop::collection::vec(piece, 0..7).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn agrees_with_the_slow_oracle(pattern in pattern(), paths in prop::collection::vec("/[abjs./]{0,8}(%3A)?[ab./]{0,3}", 6)) {
        let Ok(glob) = PathGlob::parse(&pattern) else { return Ok(()) };
        let patterns = PathPatterns::new(vec![glob]);
        for path in paths {
            let Ok(path) = CanonicalPath::parse(&path) else { continue };
            prop_assert_eq!(patterns.matches(&path), oracle::matches(&pattern, path.as_str()), "{} {}", pattern, path.as_str());
        }
    }
}

/// What decided before: the library that gave the language its globs.
fn library(pattern: &str) -> Option<GlobSet> {
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(false)
        .empty_alternates(true)
        .build()
        .ok()?;
    GlobSet::new([glob]).ok()
}

/// Pieces that touch every corner of the syntax, broken ones too.
fn any_pattern() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/",
        "/",
        "/",
        "a",
        "b",
        "x",
        "*",
        "?",
        "/**",
        "/**/",
        "[a-c]",
        "[!a-b]",
        "[^/x]",
        "[/a]",
        "[/]",
        "[]a]",
        "[a-]",
        "[--b]",
        "[a-b-c]",
        "[[:alpha:]]",
        "[^[:digit:]_]",
        "[[:x]",
        "[[]",
        "[*]",
        "[{]",
        "[}]",
        "[,]",
        "[",
        "]",
        "{",
        "}",
        ",",
        "{a,b}",
        "{,x}",
        "{*,a}",
        "{}",
        "{{a,b/}x,?}",
        "{,/**}",
        "{/**,/b}",
        "{a/**,b}",
        "**",
        "-",
        "!",
        "%2F",
        "%3B",
        ";",
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| format!("/{}", pieces.concat()))
}

/// Texts, as readings are: any bytes.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/", "/", "a", "b", "x", "-", "]", "[", "{", "}", ",", "*", "%2F", "%3B", ";", "_", "1",
        "\n", "\u{e9}",
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn agrees_with_globset(pattern in any_pattern(), texts in prop::collection::vec(any_text(), 8)) {
        match (PathGlob::parse(&pattern), library(&pattern)) {
            (Ok(glob), Some(library)) => {
                for text in texts {
                    let path = format!("/{text}");
                    prop_assert_eq!(glob.matches(path.as_bytes()), library.is_match(&path), "{} {:?}", pattern, path);
                }
            }
            (Ok(_), None) => prop_assert!(false, "`{}` is accepted here only", pattern),
            (Err(error), Some(_)) => prop_assert!(!error.message.contains("is no glob"), "{}", error.message),
            (Err(_), None) => {}
        }
    }

    #[test]
    fn relative_globs_agree_with_globset(pattern in any_pattern(), texts in prop::collection::vec(any_text(), 8)) {
        let pattern = pattern.trim_start_matches('/');
        if let (Ok(glob), Some(library)) = (PathGlob::parse_relative(pattern), library(pattern)) {
            for text in texts {
                prop_assert_eq!(glob.matches(text.as_bytes()), library.is_match(&text), "{} {:?}", pattern, text);
            }
        }
    }

    #[test]
    fn any_text_is_read_without_panic(pattern in "\\PC*") {
        let _ = PathGlob::parse(&pattern);
        let _ = PathGlob::parse_relative(&pattern);
        let _ = TextGlob::parse(&pattern);
    }
}

#[test]
fn relative_globs() {
    for (pattern, text, expected) in [
        ("acme/*", "acme/x", true),
        ("acme/*", "acme/x/y", false),
        ("acme/*", "/acme/x", false),
        ("refs/heads/**", "refs/heads/a/b", true),
        ("refs/heads/**", "refs/heads", false),
        ("**", "anything/at/all", true),
        ("**/x", "x", true),
        ("{acme,beta}/*", "beta/x", true),
    ] {
        let glob = PathGlob::parse_relative(pattern).unwrap();
        assert_eq!(glob.matches(text.as_bytes()), expected, "{pattern} {text}");
    }
    for pattern in [
        "", "/acme/*", "acme/", "acme//x", "../x", "a\\b", "a b", "a/x**", "[ü]",
    ] {
        assert!(PathGlob::parse_relative(pattern).is_err(), "{pattern}");
    }
}

#[test]
fn a_deny_pattern_with_escapes_sees_the_characters_too() {
    let denies = |pattern: &str, path: &str| {
        let patterns = PathPatterns::for_deny(vec![PathGlob::parse(pattern).unwrap()]);
        assert_eq!(patterns.texts().collect::<Vec<_>>(), [pattern]);
        patterns.matches_any_reading(&CanonicalPath::parse(path).unwrap())
    };
    for (pattern, paths) in [
        (
            "/m/x%3Arun",
            &["/m/x:run", "/m/x%3arun", "/m/x%253Arun"] as &[_],
        ),
        ("/%22a%22/**", &["/\"a\"/b", "/%22a%22/b"]),
        ("/%C3%BC/*", &["/%c3%bc/x", "/%25C3%25BC/x"]),
        ("/%FF", &["/%ff", "/%25FF"]),
        ("/a%20b{,/**}", &["/a%20b", "/a%2520b/c"]),
        ("/%2Ax%2C[%3A]", &["/*x,3", "/%2ax%2c3"]),
    ] {
        for path in paths {
            assert!(denies(pattern, path), "{pattern} {path}");
        }
    }
    for (pattern, path) in [
        ("/x%2Fy", "/x/y"),
        ("/%2Ax", "/ax"),
        ("/{a%2Cb,c}", "/a"),
        ("/[%3A]", "/:"),
        ("/%25", "/x"),
    ] {
        assert!(!denies(pattern, path), "{pattern} {path}");
    }
}

#[test]
fn braces_that_explode_are_refused() {
    let most = "/{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}";
    assert_eq!(PathGlob::parse(most).unwrap().alternatives().count(), 256);
    assert_eq!(
        PathGlob::parse("/{,a}{,a}{,a}")
            .unwrap()
            .alternatives()
            .count(),
        4
    );
    let many = format!("{most}{{a,b}}");
    let long = format!("/{}{}", "{a,b}".repeat(6), "x".repeat(200));
    let deep = format!("/{}a{}", "{".repeat(101), "}".repeat(101));
    for (pattern, message) in [
        (many, "is a path glob that explodes"),
        (long, "is a path glob that explodes"),
        (
            format!("/{}", "{a,b}".repeat(200)),
            "is a path glob that explodes",
        ),
        (deep, "is no glob: its braces are nested more than 100 deep"),
        ("/[[:foo:]]".to_owned(), "`[:foo:]` is no named class"),
        ("/[z-a]".to_owned(), "the range `z-a` ends before it begins"),
        ("/[{]/**,{}".to_owned(), "`**` is not a whole segment"),
    ] {
        let error = PathGlob::parse(&pattern).unwrap_err();
        assert!(error.message.contains(message), "{}", error.message);
        assert!(error.help.is_some());
    }
}

#[test]
fn hostile_patterns_end() {
    let path = "/".to_owned() + &"a".repeat(15_000) + &"/a".repeat(8_000);
    for pattern in [
        "/**/a????????????????b".to_owned(),
        format!("/{}b", "*a".repeat(300)),
        format!("/{}b", "**/a/".repeat(200)),
        format!("/{}", "**/*a*/".repeat(140)),
        format!("/{}x", "{*,a}".repeat(8)),
    ] {
        let glob = PathGlob::parse(&pattern).unwrap();
        assert!(!glob.matches(path.as_bytes()), "{pattern}");
    }
}
