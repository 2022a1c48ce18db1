//! The shapes that ten thousand rules are measured in: each a rule by its number, and requests that
//! are about that rule.

use outgate_policy::Verdict::{self, Allow, Deny};

/// Rules of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    rule: fn(usize) -> String,
    /// The same rule in Cedar's language, for shapes that are compared.
    cedar: Option<fn(usize) -> String>,
    pub(crate) cases: &'static [Case],
}

/// Requests of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The request that is about the rule with this number.
    pub(crate) line: fn(usize) -> String,
    pub(crate) verdict: Verdict,
}

impl Shape {
    /// A policy file.
    pub(crate) fn text(&self, rules: usize) -> String {
        let mut text = "version: 1\nrules:\n".to_owned();
        for n in 0..rules {
            text.push_str(&format!("  - {{ id: r{n}, {} }}\n", (self.rule)(n)));
        }
        text
    }

    /// The same in Cedar's language.
    pub(crate) fn cedar_text(&self, rules: usize) -> Option<String> {
        self.cedar.map(|rule| (0..rules).map(rule).collect())
    }
}

const fn case(name: &'static str, verdict: Verdict, line: fn(usize) -> String) -> Case {
    Case {
        name,
        line,
        verdict,
    }
}

const HIT: &str = "hit";
const OTHER_PATH: &str = "miss, other path";
const OTHER_HOST: &str = "miss, unknown host";

/// All shapes.
pub(crate) const SHAPES: &[Shape] = &[
    Shape {
        name: "one host a rule",
        rule: |n| {
            format!(
                "action: allow, to: {{ hosts: [h{n}.example.com] }}, http: {{ methods: [GET, HEAD], \
                 paths: [\"/repos/o{n}/**\", \"/user/*/keys\"] }}"
            )
        },
        cedar: Some(|n| {
            format!(
                "permit(principal, action in [Action::\"GET\", Action::\"HEAD\"], \
                 resource == Host::\"h{n}.example.com\") when {{ \
                 context.path like \"/repos/o{n}/*\" || context.path like \"/user/*/keys\" }};\n"
            )
        }),
        cases: &[
            case(HIT, Allow, |n| match n % 2 {
                0 => format!("GET https://h{n}.example.com/repos/o{n}/issues/17"),
                _ => format!("GET https://h{n}.example.com/user/u{n}/keys"),
            }),
            case(OTHER_PATH, Deny, |n| {
                format!("GET https://h{n}.example.com/orgs/o{n}/issues")
            }),
            case(OTHER_HOST, Deny, |n| {
                format!("GET https://h{n}.example.org/repos/o{n}/issues/17")
            }),
        ],
    },
    Shape {
        name: "one host, /repos/oN/**",
        rule: |n| {
            format!(
                "action: allow, to: {{ hosts: [api.example.com] }}, http: {{ methods: [GET], \
                 paths: [\"/repos/o{n}/**\"] }}"
            )
        },
        cedar: Some(|n| {
            format!(
                "permit(principal, action == Action::\"GET\", resource == Host::\"api.example.com\") \
                 when {{ context.path like \"/repos/o{n}/*\" }};\n"
            )
        }),
        cases: &[
            case(HIT, Allow, |n| {
                format!("GET https://api.example.com/repos/o{n}/issues/17")
            }),
            case(OTHER_PATH, Deny, |n| {
                format!("GET https://api.example.com/repos/x{n}/issues/17")
            }),
            case(OTHER_HOST, Deny, |n| {
                format!("GET https://api{n}.example.org/repos/o{n}/issues/17")
            }),
        ],
    },
    Shape {
        name: "one host, /*/pN/**",
        rule: |n| {
            format!(
                "action: allow, to: {{ hosts: [api.example.com] }}, http: {{ methods: [GET], \
                 paths: [\"/*/p{n}/**\"] }}"
            )
        },
        cedar: None,
        cases: &[
            case(HIT, Allow, |n| {
                format!("GET https://api.example.com/team{}/p{n}/x", n % 97)
            }),
            case(OTHER_PATH, Deny, |n| {
                format!("GET https://api.example.com/team{}/q{n}/x", n % 97)
            }),
            case(OTHER_HOST, Deny, |n| {
                format!("GET https://api{n}.example.org/team/p{n}/x")
            }),
        ],
    },
    Shape {
        name: "wildcards *.hN.example.com",
        rule: |n| {
            format!(
                "action: allow, to: {{ hosts: [\"*.h{n}.example.com\"] }}, \
                 http: {{ paths: [\"/v1/**\"] }}"
            )
        },
        cedar: None,
        cases: &[
            case(HIT, Allow, |n| {
                format!("GET https://a.b.h{n}.example.com/v1/x")
            }),
            case(OTHER_PATH, Deny, |n| {
                format!("GET https://a.b.h{n}.example.com/v2/x")
            }),
            case(OTHER_HOST, Deny, |n| {
                format!("GET https://a.b.k{n}.example.com/v1/x")
            }),
        ],
    },
    Shape {
        name: "mixed, one deny in ten",
        rule: mixed_rule,
        cedar: None,
        cases: &[
            case(HIT, Allow, mixed_hit),
            case("hit of a deny rule", Deny, |n| {
                let group = n / 10;
                let first = group * 10 + 1;
                format!("GET https://g{group}.example.com/repos/o{first}/secrets/key")
            }),
            case(OTHER_PATH, Deny, |n| {
                format!("GET https://g{}.example.com/orgs/o{n}/issues", n / 10)
            }),
            case(OTHER_HOST, Deny, |n| {
                format!("GET https://h{n}.example.org/v1/x")
            }),
        ],
    },
    Shape {
        name: "networks",
        rule: |n| {
            format!(
                "action: allow, to: {{ ips: [\"{}\"] }}, http: {{ paths: [\"/v1/**\"] }}",
                network(n)
            )
        },
        cedar: None,
        cases: &[
            case(HIT, Allow, |n| {
                format!("GET https://{}/v1/x", address_within(n))
            }),
            case(OTHER_PATH, Deny, |n| {
                format!("GET https://{}/v2/x", address_within(n))
            }),
            case("miss, unknown address", Deny, |n| match n % 2 {
                0 => format!("GET https://45.{}.{}.7/v1/x", n >> 8, n & 0xff),
                _ => format!("GET https://[2c0f:{n:x}::7]/v1/x"),
            }),
        ],
    },
];

/// Ten rules a group: nine open, one closes part of what they open.
fn mixed_rule(n: usize) -> String {
    let group = n / 10;
    let host = format!("g{group}.example.com");
    match n % 10 {
        0 => format!(
            "action: deny, to: {{ hosts: [{host}] }}, http: {{ paths: [\"/**/secrets/**\"] }}"
        ),
        1..=3 => format!(
            "action: allow, to: {{ hosts: [{host}] }}, http: {{ methods: [GET, HEAD], \
             paths: [\"/repos/o{n}/**\"] }}"
        ),
        4 | 5 => {
            format!("action: allow, to: {{ hosts: [{host}] }}, http: {{ paths: [\"/*/p{n}/**\"] }}")
        }
        6 => format!(
            "action: allow, to: {{ hosts: [\"*.{host}\"] }}, http: {{ paths: [\"/v1/**\"] }}"
        ),
        7 => format!("action: allow, to: {{ hosts: [h{n}.example.com] }}"),
        8 => format!("action: allow, to: {{ ips: [\"{}\"] }}", network(n)),
        _ => format!(
            "action: allow, to: {{ hosts: [{host}] }}, http: {{ methods: [POST], \
             paths: [\"/upload/{{small,large}}/*.tgz\"] }}"
        ),
    }
}

fn mixed_hit(n: usize) -> String {
    let group = n / 10;
    match n % 10 {
        1..=3 => format!("GET https://g{group}.example.com/repos/o{n}/issues/17"),
        4 | 5 => format!("DELETE https://g{group}.example.com/team/p{n}/x"),
        6 => format!("GET https://a.g{group}.example.com/v1/x"),
        7 => format!("GET https://h{n}.example.com/anything"),
        8 => format!("GET https://{}/anything", address_within(n)),
        9 => format!("POST https://g{group}.example.com/upload/small/f{n}.tgz"),
        _ => mixed_hit(n + 1),
    }
}

/// Networks of five lengths in both families, all of them public.
fn network(n: usize) -> String {
    let (high, low) = (n >> 8, n & 0xff);
    match n % 5 {
        0 => format!("20.{high}.{low}.0/24"),
        1 => format!("23.{high}.{low}.16/28"),
        2 => format!("31.{high}.{low}.7"),
        3 => format!("2600:{n:x}::/32"),
        _ => format!("2a00:{n:x}:0:1::/64"),
    }
}

fn address_within(n: usize) -> String {
    let (high, low) = (n >> 8, n & 0xff);
    match n % 5 {
        0 => format!("20.{high}.{low}.7"),
        1 => format!("23.{high}.{low}.17"),
        2 => format!("31.{high}.{low}.7"),
        3 => format!("[2600:{n:x}::7]"),
        _ => format!("[2a00:{n:x}:0:1::7]"),
    }
}
