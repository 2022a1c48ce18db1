//! `format` against pairs of files, and the policies that users start from. `OUTGATE_BLESS=1` writes
//! the expected files anew.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use outgate_policy::{Policy, Source, format};

fn formatted(name: &str, text: &str) -> String {
    match format(&Source::new(name, text)) {
        Ok(text) => text,
        Err(errors) => panic!("{errors}"),
    }
}

#[test]
fn files_get_the_expected_layout() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format");
    let entries = std::fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path().display().to_string());
    let inputs: Vec<String> = paths.filter(|path| path.ends_with(".in.yaml")).collect();
    assert!(!inputs.is_empty());
    for path in inputs {
        let expected = PathBuf::from(path.replace(".in.yaml", ".out.yaml"));
        let once = formatted(&path, &std::fs::read_to_string(&path).unwrap());
        if std::env::var_os("OUTGATE_BLESS").is_some() {
            std::fs::write(&expected, &once).unwrap();
        }
        let written = std::fs::read_to_string(&expected).unwrap_or_default();
        assert_eq!(once, written, "{}", expected.display());
        assert_eq!(formatted(&path, &once), once, "{}", expected.display());
    }
}

#[test]
fn starting_policies_decide_as_before() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/policies");
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.display().to_string();
        let once = formatted(&name, &text);
        assert_eq!(formatted(&name, &once), once, "{name}");
        let load = |text: &str| Policy::load(&[Source::new("p.yaml", text)]).unwrap();
        let (before, after) = (load(&text).run_tests(), load(&once).run_tests());
        assert_eq!(before.len(), after.len());
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.name, after.name);
            assert!(before.passed() && after.passed(), "{name}: {}", after.name);
            let line = once.lines().nth(after.line - 1).unwrap();
            assert!(line.contains(&after.name), "{line}");
        }
        seen += 1;
    }
    assert!(seen > 0);
}

/// The code of the only error.
fn refusal(text: &str) -> &'static str {
    match format(&Source::new("p.yaml", text)) {
        Ok(text) => panic!("formats:\n{text}"),
        Err(errors) => {
            assert_eq!(errors.len(), 1, "{errors}");
            errors.iter().next().map_or("", |found| found.code)
        }
    }
}

fn stable(text: &str) -> String {
    let once = formatted("p.yaml", text);
    assert_eq!(formatted("p.yaml", &once), once, "\n{text}");
    once
}

#[test]
fn what_the_loader_cannot_read_gives_its_errors() {
    for text in [
        "a: [1\n",
        "a: &x 1\nb: *x\n",
        "a: *.example.com\n",
        "a: !!str 1\n",
        "a: 1\n---\nb: 2\n",
        "%YAML 1.1\n---\na: 1\n",
        "a:\n\tb: 1 # c\n",
        "# c\n\"",
    ] {
        let source = Source::new("p.yaml", text);
        let expected = Policy::load(std::slice::from_ref(&source)).unwrap_err();
        assert_eq!(format(&source).unwrap_err(), expected, "{text}");
    }
}

#[test]
fn nothing_stays_nothing() {
    for (text, expected) in [
        ("", ""),
        ("\n\n", ""),
        ("\u{feff}", ""),
        ("---\n...\n", ""),
        ("\n# only\n\n\n# comments", "# only\n\n# comments\n"),
        ("--- # c\n", "# c\n"),
        ("{}", "{}\n"),
        ("[ # c\n]", "[]\n# c\n"),
        ("null", "null\n"),
        ("|\n  a\n  b", "\"a\\nb\\n\"\n"),
    ] {
        assert_eq!(stable(text), expected, "{text:?}");
    }
}

#[test]
fn deep_files_format_as_far_as_they_load() {
    let blocks = "- ".repeat(32);
    let flows = format!("{}x{}", "[".repeat(32), "]".repeat(32));
    let commented = format!("{} # a\n x{}", "[".repeat(32), "\n ]".repeat(32));
    for text in [
        format!("{blocks}x"),
        flows.clone(),
        commented.clone(),
        format!("{blocks}{flows}"),
        format!("{blocks}{commented} # b"),
        format!("a:\n  {}{flows}: x", "- ".repeat(30)),
        format!("? {}x\n: y", "- ".repeat(30)),
    ] {
        let once = stable(&text);
        assert_eq!(once.matches('#').count(), text.matches('#').count());
    }
    // As a key, the lists would have to stand on one line, and more than the loader reads there.
    assert_eq!(
        refusal(&format!("? {}[[[x]]]\n: y", "- ".repeat(30))),
        "nested_too_deeply"
    );
}

#[test]
fn size_is_bounded_before_and_after() {
    let limit = 16 * 1024 * 1024;
    assert_eq!(refusal(&"x".repeat(limit + 1)), "file_too_large");
    // Each item gets a line of its own, far to the right.
    let wide = format!(
        "{}{}{}",
        "[".repeat(24),
        "x,".repeat(400_000),
        "]".repeat(24)
    );
    assert_eq!(refusal(&wide), "file_too_large");
    let long = "x".repeat(1024 * 1024);
    assert_eq!(stable(&format!("a: '{long}'")), format!("a: {long}\n"));
    assert_eq!(
        stable(&format!("? {long}\n: a")),
        format!("? {long}\n: a\n")
    );
    assert_eq!(stable(&format!("a: 1 #{long}")), format!("a: 1  #{long}\n"));
}
