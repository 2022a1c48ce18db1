//! Deciding asks for no memory: not for an allow, not for a default deny, not for a deny rule, however
//! many rules there are. What is made when a rule is first asked is made in the round before.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use outgate_policy::Reason::{self, Allowed, DefaultDeny, RuleDeny};
use outgate_policy::{CanonicalRequest, Policy, Source};

thread_local! {
    /// Allocations of this thread: the test runner has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get().wrapping_add(1));
}

// SAFETY: every call goes to the system's allocator as it came, so its promises are ours; counting
// neither allocates nor unwinds, and its cell needs no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn allocations<R>(work: impl FnOnce() -> R) -> u64 {
    let before = ALLOCATIONS.get();
    drop(black_box(work()));
    ALLOCATIONS.get() - before
}

const RULES: usize = 10_000;
/// Rules that are asked for: a few of each kind of the ten.
const ASKED: usize = 200;

fn policy(layers: &[fn(usize) -> String]) -> Policy {
    let sources: Vec<Source> = layers
        .iter()
        .enumerate()
        .map(|(at, rule)| {
            let rules: String = (0..RULES)
                .map(|n| format!("  - {{ id: r{n}, {} }}\n", rule(n)))
                .collect();
            Source::new(
                format!("l{at}.yaml"),
                format!("version: 1\nrules:\n{rules}"),
            )
        })
        .collect();
    Policy::load(&sources).unwrap()
}

/// Ten rules a group: names, wildcards, networks, every kind of path pattern, and a deny rule.
fn many_hosts(n: usize) -> String {
    let (group, high, low) = (n / 10, n >> 8, n & 0xff);
    let host = format!("g{group}.example.com");
    match n % 10 {
        0 => format!(
            "action: deny, to: {{ hosts: [{host}] }}, http: {{ paths: [\"/**/secrets/**\"] }}"
        ),
        1 | 2 => format!(
            "action: allow, to: {{ hosts: [{host}] }}, http: {{ methods: [GET], paths: [\"/repos/o{n}/**\", \"/user/*/keys\"] }}"
        ),
        3 => {
            format!("action: allow, to: {{ hosts: [{host}] }}, http: {{ paths: [\"/*/p{n}/**\"] }}")
        }
        4 => format!(
            "action: allow, to: {{ hosts: [{host}] }}, http: {{ paths: [\"/x{{a,b}}/[0-9]?/*.tgz\"] }}"
        ),
        5 => format!(
            "action: allow, to: {{ hosts: [\"*.{host}\"] }}, http: {{ paths: [\"/v1/**\"] }}"
        ),
        6 => format!("action: allow, to: {{ hosts: [h{n}.example.com] }}"),
        7 => format!("action: allow, to: {{ ips: [20.{high}.{low}.0/24] }}"),
        8 => format!(
            "action: allow, to: {{ ips: [\"2600:{n:x}::/32\"] }}, http: {{ paths: [\"/v1/**\"] }}"
        ),
        _ => format!("action: deny, to: {{ hosts: [\"*.closed{n}.example.com\"] }}"),
    }
}

/// All for one host: literal paths, a wildcard before what differs, and deny rules among them.
fn one_host(n: usize) -> String {
    let to = "to: { hosts: [api.example.com] }";
    match n % 4 {
        0 => format!(
            "action: deny, {to}, http: {{ paths: [\"/repos/o{}/secrets/**\"] }}",
            n + 1
        ),
        1 => {
            format!("action: allow, {to}, http: {{ methods: [GET], paths: [\"/repos/o{n}/**\"] }}")
        }
        2 => format!("action: allow, {to}, http: {{ paths: [\"/*/p{n}/**\"] }}"),
        _ => format!("action: allow, {to}, http: {{ methods: [POST], paths: [\"/upload/f{n}\"] }}"),
    }
}

fn many_hosts_requests(n: usize) -> Vec<(String, Reason)> {
    let (group, high, low) = (n / 10, n >> 8, n & 0xff);
    let host = format!("g{group}.example.com");
    let hit = match n % 10 {
        0 => (
            format!("GET https://{host}/repos/o{}/secrets/x", n + 1),
            RuleDeny,
        ),
        1 => (format!("GET https://{host}/repos/o{n}/issues/1"), Allowed),
        2 => (format!("GET https://{host}/user/u{n}/keys"), Allowed),
        3 => (format!("DELETE https://{host}/team/p{n}/x?page=2"), Allowed),
        4 => (format!("PUT https://{host}/xb/17/f.tgz"), Allowed),
        5 => (format!("GET https://a.b.{host}/v1/x"), Allowed),
        6 => (format!("GET https://h{n}.example.com/anything"), Allowed),
        7 => (format!("GET https://20.{high}.{low}.7/anything"), Allowed),
        8 => (format!("GET https://[2600:{n:x}::7]/v1/x"), Allowed),
        _ => (format!("GET https://a.closed{n}.example.com/"), RuleDeny),
    };
    let misses = [
        format!("GET https://{host}/orgs/o{n}"),
        format!("PATCH https://{host}/repos/o{n}/%3Bv=1//issues/"),
        format!("GET https://a.h{n}.example.org/repos/o{n}/x"),
        format!("GET https://45.{high}.{low}.7/v1/x"),
        format!("GET https://[2c0f:{n:x}::7]/v1/x"),
        format!("GET https://{host}:8443/repos/o{n}/issues/1"),
    ];
    let misses = misses.map(|line| (line, DefaultDeny));
    std::iter::once(hit).chain(misses).collect()
}

fn one_host_requests(n: usize) -> Vec<(String, Reason)> {
    let host = "https://api.example.com";
    let hit = match n % 4 {
        0 => (format!("GET {host}/repos/o{}/secrets/x", n + 1), RuleDeny),
        1 => (format!("GET {host}/repos/o{n}/issues/1"), Allowed),
        2 => (format!("GET {host}/team/p{n}/x"), Allowed),
        _ => (format!("POST {host}/upload/f{n}"), Allowed),
    };
    let misses = [
        format!("GET {host}/repos/x{n}/issues/1"),
        format!("POST {host}/repos/o{n}/issues/1"),
        format!("GET https://api{n}.example.org/repos/o{n}/issues/1"),
    ];
    let misses = misses.map(|line| (line, DefaultDeny));
    std::iter::once(hit).chain(misses).collect()
}

fn asked(requests: fn(usize) -> Vec<(String, Reason)>) -> Vec<(CanonicalRequest, Reason)> {
    let step = RULES / ASKED;
    // Every kind of rule has its turn.
    let lines = (0..ASKED).flat_map(|at| requests(at * step + at % 10));
    lines
        .map(|(line, reason)| (CanonicalRequest::from_line(&line).unwrap(), reason))
        .collect()
}

/// Every request is decided as expected, and the second time without an allocation.
fn decides_without_allocating(policy: &Policy, requests: &[(CanonicalRequest, Reason)]) {
    for (request, reason) in requests {
        assert_eq!(policy.decide(request).reason(), *reason, "{request}");
    }
    for (request, reason) in requests {
        let count = allocations(|| policy.decide(request));
        assert_eq!(count, 0, "{reason}: {request}");
    }
    for kind in [Allowed, DefaultDeny, RuleDeny] {
        assert!(requests.iter().any(|(_, reason)| *reason == kind), "{kind}");
    }
}

#[test]
fn the_counter_sees_an_allocation() {
    assert_eq!(allocations(|| ()), 0);
    assert_eq!(allocations(|| Box::new(1)), 1);
    assert_eq!(allocations(|| "x".repeat(100)), 1);
}

#[test]
fn decisions_among_many_hosts() {
    decides_without_allocating(&policy(&[many_hosts]), &asked(many_hosts_requests));
}

#[test]
fn decisions_among_many_rules_of_one_host() {
    decides_without_allocating(&policy(&[one_host]), &asked(one_host_requests));
}

#[test]
fn decisions_of_two_layers() {
    decides_without_allocating(
        &policy(&[many_hosts, many_hosts]),
        &asked(many_hosts_requests),
    );
    // A baseline that opens less: what it closes is a default deny, and it closes nothing by a rule.
    let policy = policy(&[
        |n| format!("action: allow, to: {{ hosts: [h{n}.example.com] }}"),
        many_hosts,
    ]);
    let request = |line: &str| CanonicalRequest::from_line(line).unwrap();
    decides_without_allocating(
        &policy,
        &[
            (request("GET https://h6.example.com/x"), Allowed),
            (
                request("GET https://g0.example.com/repos/o1/x"),
                DefaultDeny,
            ),
            (
                request("GET https://g0.example.com/repos/o1/secrets/x"),
                RuleDeny,
            ),
        ],
    );
}

#[test]
fn admission_of_a_connection() {
    for (policy, requests) in [
        (policy(&[many_hosts]), asked(many_hosts_requests)),
        (policy(&[one_host]), asked(one_host_requests)),
        (
            policy(&[many_hosts, many_hosts]),
            asked(many_hosts_requests),
        ),
    ] {
        let mut admitted = 0;
        for (request, reason) in &requests {
            let admits = || policy.admits(request.destination(), request.port());
            let open = admits().any();
            assert!(open || *reason != Allowed, "{request}");
            admitted += usize::from(open);
            assert_eq!(allocations(admits), 0, "{request}");
        }
        assert!(admitted > 0 && admitted < requests.len(), "{admitted}");
    }
}
