//! Policy files that are hostile by size or shape: bounded time, bounded memory, an error that says
//! what to do, and nothing loaded. What is only large loads, and decides.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod measure;
mod texts;

use measure::cost;
use outgate_policy::{CanonicalRequest, Diagnostics, Policy, Source, Verdict};
use texts::{joined, rules};

/// Memory beyond the text itself.
const MEMORY: usize = 1024 * 1024 * 1024;

/// Does the work within the limits.
fn limited<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (result, memory) = cost(work);
    assert!(memory < MEMORY, "{what}: {memory} bytes");
    result
}

/// Loads a file within the limits, and finds fault with it or judges with it within them.
fn load(what: &str, text: String) -> Result<Policy, Diagnostics> {
    let sources = [Source::new("p.yaml", text)];
    let loaded = limited(what, || Policy::load(&sources));
    match &loaded {
        Ok(policy) => {
            limited(what, || policy.lints());
            limited(what, || policy.run_tests());
        }
        Err(errors) => {
            let shown = limited(what, || errors.render());
            assert!(shown.len() < 1024 * 1024, "{what}: {} bytes", shown.len());
        }
    }
    loaded
}

fn loads(what: &str, text: String) -> Policy {
    load(what, text).unwrap_or_else(|errors| panic!("{what}: {errors}"))
}

/// The code of every finding, each once.
fn codes(what: &str, text: String) -> Vec<&'static str> {
    let Err(errors) = load(what, text) else {
        panic!("{what} loads");
    };
    let mut codes: Vec<_> = errors.iter().map(|found| found.code).collect();
    codes.dedup();
    codes
}

fn verdict(policy: &Policy, line: &str) -> Verdict {
    let request = CanonicalRequest::from_line(line).unwrap();
    limited(line, || policy.decide(&request)).verdict()
}

#[test]
fn a_file_of_100_mib_is_refused_unread() {
    let text = format!("version: 1\n#{}\n", "x".repeat(100 * 1024 * 1024));
    let sources = [Source::new("p.yaml", text)];
    let (loaded, memory) = cost(|| Policy::load(&sources));
    let errors = loaded.unwrap_err();
    assert_eq!(
        errors.render(),
        "p.yaml:1:1: error[file_too_large]: the file is larger than 16777216 bytes\n\
         1 | \n  | ^\n  \
         help: split it into several policies\n"
    );
    assert!(memory < 64 * 1024, "{memory} bytes");
}

#[test]
fn a_billion_laughs_are_refused_before_the_first() {
    let mut text = String::from("version: 1\na0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]\n");
    for level in 1..10 {
        let inner = joined(10, ",", |_| format!("*a{}", level - 1));
        text.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
    }
    let found = codes("a billion laughs", text);
    assert!(
        found
            .iter()
            .all(|code| ["yaml_anchor", "yaml_alias"].contains(code))
    );

    let aliases = joined(5_000_000, ",", |_| "*a".to_owned());
    let text = format!("version: 1\na: &a x\nb: [{aliases}]\n");
    assert_eq!(
        codes("aliases", text),
        ["yaml_anchor", "yaml_alias", "more_findings"]
    );
}

#[test]
fn globs_that_explode_are_slow_nowhere() {
    let patterns = [
        ("braces", format!("/{}", "{a,b}".repeat(200))),
        (
            "nested braces",
            format!("/{}{}", "{a,".repeat(200), "}".repeat(200)),
        ),
        ("any depth", format!("{}/b", "/**/a".repeat(200))),
        ("stars", format!("/{}b", "*a".repeat(500))),
        ("classes", format!("/{}", "[!b-d]".repeat(160))),
        ("questions", format!("/{}*", "?".repeat(900))),
    ];
    // As near to a match as can be, and as long as a target may be.
    let paths = ["a".repeat(30_000), "a/".repeat(15_000), "a".repeat(900)];
    for (what, pattern) in &patterns {
        let one = |at| {
            format!(
                "action: allow, to: {{ hosts: [h{at}.test] }}, http: {{ paths: [\"{pattern}\"] }}"
            )
        };
        match load(what, rules(1, one)) {
            Ok(policy) => {
                for path in &paths {
                    let line = format!("GET https://h0.test/{path}");
                    let request = CanonicalRequest::from_line(&line).unwrap();
                    let (_, memory) = cost(|| policy.decide(&request));
                    assert!(memory < 16 * 1024 * 1024, "{what}: {memory} bytes");
                }
            }
            Err(errors) => assert_eq!(errors.iter().next().unwrap().code, "bad_path", "{what}"),
        }
        // The two that cost most, as many as a file may have.
        if ["any depth", "stars"].contains(what) {
            loads(what, rules(1_900, one));
            let all = joined(1_900, ",", |_| format!("\"{pattern}\""));
            let together = rules(1, |_| {
                format!("action: allow, to: {{ hosts: [a.test] }}, http: {{ paths: [{all}] }}")
            });
            loads(what, together);
        }
    }
    let (what, pattern) = (
        "braces that nearly explode",
        format!("/{}", "{a,b}".repeat(8)),
    );
    let many = rules(10_000, |at| {
        format!("action: deny, to: {{ hosts: [h{at}.test] }}, http: {{ paths: [\"{pattern}\"] }}")
    });
    assert_eq!(codes(what, many), ["too_many_patterns"]);
}

#[test]
fn a_hundred_thousand_rules_load_and_decide() {
    let policy = loads(
        "rules for hosts of their own",
        rules(100_000, |at| {
            format!("action: allow, to: {{ hosts: [h{at}.test] }}")
        }),
    );
    assert_eq!(verdict(&policy, "GET https://h99999.test/"), Verdict::Allow);
    assert_eq!(verdict(&policy, "GET https://h100000.test/"), Verdict::Deny);

    let ports = |at| at % 60_000 + 1;
    let policy = loads(
        "rules for one host",
        rules(100_000, |at| {
            format!(
                "action: allow, to: {{ hosts: [h.test], ports: [{}] }}",
                ports(at)
            )
        }),
    );
    assert_eq!(
        verdict(&policy, "GET https://h.test:60000/"),
        Verdict::Allow
    );
    assert_eq!(verdict(&policy, "GET https://h.test:60001/"), Verdict::Deny);

    let policy = loads(
        "rules for every host",
        rules(100_000, |at| {
            format!(
                "action: allow, to: {{ hosts: [any], ports: [{}] }}",
                ports(at)
            )
        }),
    );
    assert_eq!(
        verdict(&policy, "GET https://x.test:60000/"),
        Verdict::Allow
    );
    let codes: Vec<_> = policy.lints().iter().map(|lint| lint.code).collect();
    assert_eq!(codes.len(), 101);
    assert_eq!(codes.last(), Some(&"more_findings"));
}

#[test]
fn a_hundred_thousand_tunnels_and_judging_rules_are_told_apart() {
    let pair = |at: usize, tunnel: &str, judged: &str| match at % 2 {
        0 => format!("action: allow, protocol: tcp, to: {{ hosts: [{tunnel}], ports: [22] }}"),
        _ => format!(
            "action: allow, to: {{ hosts: [{judged}], ports: [443] }}, http: {{ methods: [GET] }}"
        ),
    };
    let apart = rules(100_000, |at| {
        let host = format!("h{at}.test");
        pair(at, &host, &host)
    });
    loads("apart", apart);
    let together = rules(100_000, |at| pair(at, "h.test", "\"*.test\""));
    assert_eq!(codes("together", together), ["tcp_bypass"]);
}

#[test]
fn a_million_hosts_load_and_decide() {
    let hosts = joined(1_000_000, ",", |at| format!("h{at}.te"));
    let policy = loads(
        "hosts",
        rules(1, |_| format!("action: allow, to: {{ hosts: [{hosts}] }}")),
    );
    let request = CanonicalRequest::from_line("GET https://h999999.te/").unwrap();
    assert_eq!(policy.decide(&request).verdict(), Verdict::Allow);
    assert_eq!(verdict(&policy, "GET https://h1000000.te/"), Verdict::Deny);

    let ips = joined(600_000, ",", |at| {
        format!("10.{}.{}.{}", at >> 16, at >> 8 & 255, at & 255)
    });
    let to = format!("action: allow, to: {{ ips: [{ips}], private: true }}");
    let policy = loads("addresses", rules(1, |_| to.clone()));
    assert_eq!(verdict(&policy, "GET https://10.9.39.191/"), Verdict::Allow);
    assert_eq!(verdict(&policy, "GET https://10.9.39.192/"), Verdict::Deny);

    let half = joined(500_000, ",", |at| format!("h{at}.te"));
    let policy = loads(
        "two rules with the same hosts",
        rules(2, |_| format!("action: allow, to: {{ hosts: [{half}] }}")),
    );
    assert_eq!(
        policy
            .lints()
            .iter()
            .map(|lint| lint.code)
            .collect::<Vec<_>>(),
        ["redundant_rule"]
    );
}

#[test]
fn nesting_has_an_end() {
    for (what, text) in [
        ("lists", "[".repeat(1_000_000)),
        ("mappings", "{a: ".repeat(1_000_000)),
        ("entries", "- ".repeat(1_000_000)),
        ("keys", "? ".repeat(1_000_000)),
        (
            "indented entries",
            (0..2_000)
                .map(|at| format!("{}-\n", " ".repeat(at)))
                .collect(),
        ),
        (
            "indented keys",
            (0..2_000)
                .map(|at| format!("{}a:\n", " ".repeat(at)))
                .collect(),
        ),
    ] {
        assert_eq!(codes(what, text), ["yaml_syntax"], "{what}");
    }
}

#[test]
fn numbers_have_an_end() {
    let huge = "9".repeat(1_000_000);
    for number in [
        "0",
        "65536",
        "-1",
        "1e3",
        "0x50",
        "4294967739",
        "18446744073709551659",
        ".inf",
        &huge,
    ] {
        let text = rules(1, |_| {
            format!("action: allow, to: {{ hosts: [a.test], ports: [{number}] }}")
        });
        assert_eq!(codes("port", text), ["wrong_type"]);
        let shape = format!(
            "version: 1\ncredentials:\n  - {{ name: c, source: {{ env: A }}, attach: [{{ header: X, format: '{{}}' }}], \
             expose: {{ env: A, shape: 'a{{{number}}}' }} }}\n"
        );
        assert_eq!(codes("shape", shape), ["bad_shape"]);
        assert_eq!(
            codes("version", format!("version: {number}\n")),
            ["unknown_version"]
        );
    }
}

#[test]
fn a_host_that_is_not_canonical_is_named_and_nothing_loads() {
    let text = rules(50_000, |at| match at {
        49_999 => "action: allow, to: { hosts: [Bad.test.] }".to_owned(),
        _ => format!("action: allow, to: {{ hosts: [h{at}.test] }}"),
    });
    let errors = load("one bad host", text.clone()).unwrap_err();
    assert_eq!(
        errors.render(),
        "p.yaml:50002:48: error[non_canonical_host]: `Bad.test.` is not the canonical spelling\n\
         50002 |   - { id: r49999, action: allow, to: { hosts: [Bad.test.] } }\n      \
         |                                                ^^^^^^^^^\n  \
         help: write `bad.test`\n"
    );
    // Neither does a good layer load beside it.
    let good = Source::new("good.yaml", "version: 1\n");
    let bad = Source::new("bad.yaml", text);
    assert!(Policy::load(&[good.clone(), bad.clone()]).is_err());
    assert!(Policy::load(&[bad, good]).is_err());
}

#[test]
fn of_a_million_mistakes_a_hundred_are_shown() {
    let text = rules(1, |_| {
        let hosts = joined(1_900_000, ",", |_| "A".to_owned());
        format!("action: allow, to: {{ hosts: [{hosts}] }}")
    });
    let errors = load("hosts", text).unwrap_err();
    assert_eq!(errors.len(), 101);
    let last = errors.iter().last().unwrap();
    assert_eq!(
        last.message,
        "there are more findings than the 100 that are shown"
    );

    let keys = joined(900_000, "\n", |at| format!("k{at}: 1"));
    assert_eq!(
        codes("keys", format!("version: 1\n{keys}\n")),
        ["unknown_key", "more_findings"]
    );
    let keys = joined(900_000, "\n", |_| "k: 1".to_owned());
    let found = codes("the same key", format!("version: 1\n{keys}\n"));
    assert_eq!(found, ["duplicate_key", "more_findings"]);
    let long = "k".repeat(16_000_000);
    let errors = load("one long value", format!("version: 1\nmode: \"{long}\"\n")).unwrap_err();
    assert!(errors.render().len() < 20_000);
}

#[test]
fn many_credentials_and_tests_are_looked_up_by_name() {
    let credential = |at| {
        format!(
            "  - {{ name: c{at}, source: {{ env: A }}, attach: [{{ header: x, format: '{{}}' }}] }}"
        )
    };
    let declared = joined(50_000, "\n", credential);
    let using = |letter| {
        rules(50_000, |at| {
            format!("action: allow, to: {{ hosts: [h{at}.test] }}, credential: {letter}{at}")
        })
    };
    loads(
        "credentials",
        format!("{}credentials:\n{declared}\n", using('c')),
    );
    let found = codes(
        "unknown ones",
        format!("{}credentials:\n{declared}\n", using('d')),
    );
    assert_eq!(found, ["unknown_credential", "more_findings"]);

    let layer = Source::new("p.yaml", format!("version: 1\ncredentials:\n{declared}\n"));
    let other = Source::new("q.yaml", layer.text.replace("env: A", "env: B"));
    let errors = limited("layers", || Policy::load(&[layer, other])).unwrap_err();
    assert_eq!(errors.len(), 101);

    let tests = joined(100_000, "\n", |at| {
        format!("  - {{ name: t{at}, request: \"GET https://h0.test/\", expect: deny }}")
    });
    let policy = loads("tests", format!("version: 1\ntests:\n{tests}\n"));
    let outcomes = policy.run_tests();
    assert_eq!(
        outcomes
            .last()
            .map(|outcome| (outcome.line, outcome.passed())),
        Some((100_002, true))
    );
}

/// Shapes that readers of YAML have been slow on, and the densest ones: as large as a file may be.
#[test]
fn no_shape_of_yaml_is_slow() {
    let list = |item: &str, count| {
        format!(
            "version: 1\na: [{}]\n",
            joined(count, ",", |_| item.to_owned())
        )
    };
    let line = |start: &str, line: &str, count: usize| {
        format!("version: 1\n{start}{}", line.repeat(count))
    };
    for (what, text, code) in [
        ("empty lists", list("[]", 1_990_000), "unknown_key"),
        ("scalars", list("a", 1_990_000), "unknown_key"),
        ("quotes", list("''", 1_990_000), "unknown_key"),
        ("pairs", list("a: b", 660_000), "unknown_key"),
        (
            "keys like JSON's",
            list("\"a\" : b", 660_000),
            "unknown_key",
        ),
        ("empty keys", list("? ", 660_000), "unknown_key"),
        ("more than may be", list("a", 2_100_000), "file_too_large"),
        ("tags", list("!a b", 3_000_000), "yaml_tag"),
        ("entries", line("a:\n", "- \n", 1_990_000), "unknown_key"),
        ("documents", line("", "---\n", 4_000_000), "yaml_documents"),
        (
            "an open quote",
            line("name: \"", "a\n ", 5_000_000),
            "yaml_syntax",
        ),
        (
            "an open list",
            line("name: ", "[a,", 5_000_000),
            "yaml_syntax",
        ),
        ("one long key", line("", "a", 16_000_000), "yaml_syntax"),
        (
            "byte order marks",
            "\u{feff}".repeat(5_000_000),
            "empty_file",
        ),
        ("tabs", line("", "\t", 16_000_000), "loads"),
        ("comments", line("", "#\n", 8_000_000), "loads"),
        (
            "plain lines",
            line("name: a\n", "  b\n", 4_000_000),
            "loads",
        ),
        (
            "folded lines",
            line("name: >\n", "  b\n\n", 3_000_000),
            "loads",
        ),
    ] {
        let found = match load(what, text) {
            Ok(_) => "loads",
            Err(errors) => errors.iter().next().unwrap().code,
        };
        assert_eq!(found, code, "{what}");
    }
}
