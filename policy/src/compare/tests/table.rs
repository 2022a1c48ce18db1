//! What a diff says of small changes that people make.

use super::{counterexample, diff, only, policy, shown};
use crate::{Reason, Within};

const READ: &str = "{ id: read, action: allow, to: { hosts: [api.test] }, http: { methods: [GET, HEAD], paths: [\"/repos/**\", /user] } }";

#[test]
fn nothing_differs_where_only_texts_do() {
    for (old, new) in [
        (READ, READ),
        (
            READ,
            "{ id: other, action: allow, to: { hosts: [api.test] }, http: { methods: [HEAD, GET], paths: [/user, \"/repos/**\"] } }",
        ),
        (
            "{ id: a, action: allow, to: { hosts: [a.test, b.test] } }",
            "{ id: b, action: allow, to: { hosts: [b.test] } }\n{ id: a, action: allow, to: { hosts: [a.test] } }",
        ),
        (
            "{ id: a, action: allow, to: { hosts: [a.test] }, http: { paths: [\"/a{,/**}\"] } }",
            "{ id: a, action: allow, to: { hosts: [a.test] }, http: { paths: [/a, \"/a/**\"] } }",
        ),
        (
            "{ id: a, action: allow, to: { ips: [1.0.0.0/8] } }",
            "{ id: a, action: allow, to: { ips: [1.0.0.0/9, 1.128.0.0/9] } }",
        ),
        // Denied anyway.
        ("", "{ id: d, action: deny, to: { hosts: [a.test] } }"),
        (
            "{ id: d, action: deny, to: { hosts: [any] } }",
            "{ id: d, action: deny, to: { hosts: [any] } }\n{ id: a, action: allow, to: { hosts: [a.test] } }",
        ),
        ("", "{ id: a, action: allow, to: { hosts: [] } }"),
        // Metadata services are closed to every rule.
        (
            "{ id: a, action: allow, to: { ips: [169.254.0.0/16], private: true } }\n",
            "{ id: a, action: allow, to: { ips: [169.254.0.0/16], private: true } }\n{ id: d, action: deny, to: { ips: [169.254.169.254] } }",
        ),
    ] {
        let difference = diff(old, new);
        assert!(difference.is_empty(), "{old}\n{new}\n{difference}");
        assert_eq!(
            difference.to_string(),
            "the policies decide every request alike\n"
        );
        assert_eq!(
            policy(&[new]).within(&policy(&[old])).to_string(),
            "within: no request gets more\n"
        );
    }
}

#[test]
fn what_becomes_allowed_has_its_region_and_an_example() {
    for (old, new, expected) in [
        (
            "",
            READ,
            "GET, HEAD over https to api.test, path /repos/** or /user -> GET https://api.test/user",
        ),
        (
            READ,
            "{ id: read, action: allow, to: { hosts: [api.test] }, http: { paths: [\"/repos/**\", /user] } }",
            "any but GET, HEAD over https to api.test, path /repos/** or /user -> POST https://api.test/user",
        ),
        (
            READ,
            "{ id: read, action: allow, to: { hosts: [api.test] }, http: { methods: [GET, HEAD], paths: [\"/repos/**\", /user, \"/orgs/*\"] } }",
            "GET, HEAD over https to api.test, path /orgs/* -> GET https://api.test/orgs/x",
        ),
        (
            READ,
            "{ id: read, action: allow, to: { hosts: [api.test] }, http: { methods: [GET, HEAD], paths: [\"/**\"] } }",
            "GET, HEAD over https to api.test, path /**, but not /repos/** or /user -> GET https://api.test/",
        ),
        (
            "",
            "{ id: a, action: allow, to: { hosts: [\"*.a.test\"] } }",
            "https to *.a.test -> GET https://x.a.test/",
        ),
        (
            "{ id: a, action: allow, to: { hosts: [x.a.test] } }",
            "{ id: a, action: allow, to: { hosts: [\"*.a.test\"] } }",
            "https to *.a.test -> GET https://a.a.test/",
        ),
        (
            "",
            "{ id: a, action: allow, to: { hosts: [any] } }",
            "https to any other host, 0.0.0.0/0, ::/0 -> GET https://other.example/",
        ),
        (
            "",
            "{ id: db, action: allow, protocol: tcp, to: { hosts: [db.test], ports: [5432] } }",
            "tcp to db.test, port 5432 -> tcp://db.test:5432",
        ),
        (
            "",
            "{ id: pin, action: allow, tls: passthrough, to: { hosts: [p.test] } }",
            "tls to p.test -> tls://p.test",
        ),
        (
            "",
            "{ id: a, action: allow, protocol: http, to: { ips: [1.1.1.0/24] } }",
            "http to 1.1.1.0/24 -> GET http://1.1.1.0/",
        ),
        (
            "{ id: a, action: allow, to: { ips: [1.1.1.0/24] } }",
            "{ id: a, action: allow, to: { ips: [1.1.0.0/16] } }",
            "https to 1.1.0.0/24, 1.1.2.0 to 1.1.255.255 -> GET https://1.1.0.0/",
        ),
        (
            "{ id: a, action: allow, to: { hosts: [a.test] } }",
            "{ id: a, action: allow, to: { hosts: [a.test] }, http: { encoded_slash: data } }",
            "https to a.test -> GET https://a.test/%2F",
        ),
        (
            "{ id: a, action: allow, to: { hosts: [a.test] } }",
            "{ id: a, action: allow, to: { hosts: [a.test], ports: [443, 8443] } }",
            "https to a.test, port 8443 -> GET https://a.test:8443/",
        ),
        (
            "{ id: a, action: allow, to: { hosts: [a.test] } }\n{ id: d, action: deny, to: { hosts: [a.test] }, http: { paths: [\"/admin/**\"] } }",
            "{ id: a, action: allow, to: { hosts: [a.test] } }",
            "https to a.test, path /admin/** -> GET https://a.test/admin/x",
        ),
        (
            "{ id: a, action: allow, to: { hosts: [a.test] } }\n{ id: d, action: deny, to: { hosts: [a.test] }, http: { methods: [DELETE] } }",
            "{ id: a, action: allow, to: { hosts: [a.test] } }",
            "DELETE, delete over https to a.test -> DELETE https://a.test/",
        ),
    ] {
        let difference = diff(old, new);
        assert_eq!(shown(only(&difference, &difference.allowed)), [expected]);
        assert!(difference.allows_more());
        let change = counterexample(policy(&[new]).within(&policy(&[old])));
        assert_eq!(change.request, difference.allowed[0].request);
        // The other way round it is denied.
        let back = diff(new, old);
        assert_eq!(shown(only(&back, &back.denied)), [expected]);
        assert!(!back.allows_more());
        assert!(policy(&[old]).within(&policy(&[new])).is_proven());
    }
}

#[test]
fn the_text_of_a_difference() {
    let old = "{ id: read, action: allow, to: { hosts: [api.test] }, http: { paths: [\"/repos/**\"] } }\n{ id: raw, action: allow, to: { hosts: [raw.test] } }";
    let new = "{ id: read, action: allow, to: { hosts: [api.test] }, http: { paths: [\"/repos/**\"] } }\n{ id: keep, action: deny, to: { hosts: [api.test] }, http: { methods: [DELETE] } }\n{ id: up, action: allow, to: { hosts: [up.test] }, http: { methods: [POST] } }";
    let expected = "\
+ allowed: POST over https to up.test
    request: POST https://up.test/
    old: deny, default_deny
    new: allow by up (layer0.yaml:5)
- denied: DELETE, delete over https to api.test, path /repos/**
    request: DELETE https://api.test/repos/x
    old: allow by read (layer0.yaml:3)
    new: deny by keep (layer0.yaml:4)
- denied: https to raw.test
    request: GET https://raw.test/
    old: allow by raw (layer0.yaml:4)
    new: deny, default_deny
";
    assert_eq!(diff(old, new).to_string(), expected);
    let json = serde_json::to_value(diff(old, new)).unwrap();
    assert_eq!(json["allowed"][0]["request"], "POST https://up.test/");
    assert_eq!(json["allowed"][0]["region"]["methods"], "POST");
    assert_eq!(json["denied"][0]["new"]["rule"]["id"], "keep");
}

#[test]
fn private_addresses_are_a_dimension_of_their_own() {
    let rule =
        |private: &str| format!("{{ id: a, action: allow, to: {{ hosts: [a.test]{private} }} }}");
    let difference = diff(&rule(""), &rule(", private: true"));
    let allowed = only(&difference, &difference.allowed);
    assert_eq!(
        allowed[0].given,
        ["where the name resolves to a private address"]
    );
    assert_eq!(allowed[0].old.reason, Reason::PrivateAddress);
    let net =
        |private: &str| format!("{{ id: a, action: allow, to: {{ ips: [0.0.0.0/0]{private} }} }}");
    let difference = diff(&net(""), &net(", private: true"));
    let allowed = only(&difference, &difference.allowed);
    assert_eq!(
        shown(allowed),
        ["https to 0.0.0.0/0 -> GET https://0.0.0.0/"]
    );
    assert_eq!(allowed[0].old.reason, Reason::PrivateAddress);
    // There is no private address in it.
    let one =
        |private: &str| format!("{{ id: a, action: allow, to: {{ ips: [1.1.1.1]{private} }} }}");
    assert!(diff(&one(""), &one(", private: true")).is_empty());
    let lab =
        |private: &str| format!("{{ id: a, action: allow, to: {{ ips: [10.0.0.0/8]{private} }} }}");
    assert!(diff("", &lab("")).is_empty());
    assert!(diff("", &lab(", private: true")).allows_more());
}

#[test]
fn websockets_and_the_asterisk_have_no_line_of_their_own() {
    let rule = |more: &str| format!("{{ id: a, action: allow, to: {{ hosts: [a.test] }}{more} }}");
    let difference = diff(&rule(""), &rule(", http: { websocket: allow }"));
    let allowed = only(&difference, &difference.allowed);
    assert_eq!(allowed[0].given, ["with the header `Upgrade: websocket`"]);
    let difference = diff(&rule(", http: { paths: [\"/**\"] }"), &rule(""));
    let allowed = only(&difference, &difference.allowed);
    assert_eq!(allowed[0].given, ["with the target `*`"]);
    assert_eq!(
        shown(allowed),
        ["OPTIONS over https to a.test -> OPTIONS https://a.test"]
    );
}

#[test]
fn a_fork_narrows_by_a_layer_more_and_widens_by_one_less() {
    let base = "{ id: base, action: allow, to: { hosts: [\"*.test\"] } }\n{ id: never, action: deny, to: { hosts: [c.test] } }";
    let own = "{ id: own, action: allow, to: { hosts: [a.test, c.test, other.example] }, http: { paths: [\"/a/**\"] } }";
    let parent = policy(&[base]);
    let child = policy(&[base, own]);
    assert!(child.within(&parent).is_proven());
    let change = counterexample(parent.within(&child));
    assert_eq!(change.old.reason, Reason::DefaultDeny);
    let loose = policy(&[own]);
    let change = counterexample(loose.within(&parent));
    assert_eq!(change.request, "GET https://c.test/a/x");
    assert_eq!(change.old.rule.unwrap().id.as_ref(), "never");
    assert!(crate::Policy::none().within(&parent).is_proven());
    assert!(!parent.within(&crate::Policy::none()).is_proven());
}

#[test]
fn deny_rules_are_compared_in_every_reading() {
    let rules = |deny: &str| {
        format!(
            "{{ id: a, action: allow, to: {{ hosts: [a.test] }}, http: {{ encoded_slash: data }} }}\n{{ id: d, action: deny, to: {{ hosts: [a.test] }}, http: {{ paths: [{deny}] }} }}"
        )
    };
    // A wider deny narrows.
    let difference = diff(&rules("/admin/keys"), &rules("\"/admin/**\""));
    only(&difference, &difference.denied);
    assert!(
        policy(&[&rules("\"/admin/**\"")])
            .within(&policy(&[&rules("/admin/keys")]))
            .is_proven()
    );
    // `/a%3Ab` denies `/a:b` as well, but `/a:b` doesn't deny what it isn't decoded to.
    assert!(diff(&rules("\"/a:b\""), &rules("\"/a%3Ab\"")).is_empty());
    // Both deny what a server makes of `;x`, but not if it drops the parameters of `/k;/x`.
    let difference = diff(&rules("/k"), &rules("\"/k\", \"/k;*\""));
    let denied = only(&difference, &difference.denied);
    assert_eq!(
        shown(denied),
        ["https to a.test, path /k;*, but not /k -> GET https://a.test/k;%2Fx"]
    );
    let difference = diff(&rules("/k"), &rules("/k, /l"));
    assert_eq!(
        shown(only(&difference, &difference.denied)),
        ["https to a.test, path /l -> GET https://a.test/l"]
    );
}

#[test]
fn a_deny_pattern_that_is_reworded_leaves_double_escapes_open() {
    let rules = |deny: &str| {
        format!(
            "{{ id: a, action: allow, to: {{ hosts: [a.test] }} }}\n{{ id: d, action: deny, to: {{ hosts: [a.test] }}, http: {{ paths: [{deny}] }} }}"
        )
    };
    // The same language in other words is seen to be one.
    assert!(diff(&rules("\"/a/{b,c}\""), &rules("/a/b, /a/c")).is_empty());
    // Only what is decoded twice has a bare percent sign.
    let (wide, narrow) = (rules("'/[\"-&]x'"), rules("'/[\"-$]x', '/&x'"));
    let difference = diff(&wide, &narrow);
    let [undecided] = difference.undecided.as_slice() else {
        panic!("{difference}")
    };
    assert!(undecided.why.contains("`%25`") && undecided.widens);
    let within = policy(&[&narrow]).within(&policy(&[&wide]));
    assert!(matches!(within, Within::Undecided { .. }), "{within}");
    assert!(policy(&[&wide]).within(&policy(&[&narrow])).is_proven());
}
