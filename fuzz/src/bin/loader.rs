//! Policy files: any text is refused with findings that can be shown, or loads and keeps its word.
//!
//! A line `# next layer` begins another source.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use outgate_fuzz::{text, within};
use outgate_policy::{
    CanonicalRequest, Destination, Diagnostic, Policy, Protocol, Source, Verdict, Within, format,
};

/// For 16 KiB, with coverage counters in everything.
const LIMIT: Duration = Duration::from_secs(2);

fuzz_target!(|data: &[u8]| {
    let texts = text(data).split("\n# next layer\n");
    let sources: Vec<Source> = texts
        .enumerate()
        .map(|(layer, text)| Source::new(format!("layer{layer}.yaml"), text))
        .collect();
    match within(LIMIT, "loading", || Policy::load(&sources)) {
        Ok(policy) => keeps_its_word(&policy, &sources),
        Err(errors) => {
            within(LIMIT, "rendering", || errors.render());
            errors.iter().for_each(is_well_formed);
        }
    }
});

fn is_well_formed(found: &Diagnostic) {
    let text = &found.source.text;
    assert!(text.get(found.span.clone()).is_some(), "{found:?}");
    assert!(!found.message.is_empty() && found.line > 0 && found.column > 0);
    let shown = found.render();
    let name = &found.source.name;
    assert!(shown.starts_with(&format!("{name}:{}:", found.line)));
    // Whatever the file holds, a terminal sees no control character of it.
    assert!(
        !shown.contains(|c: char| c.is_control() && c != '\n'),
        "{shown:?}"
    );
}

fn keeps_its_word(policy: &Policy, sources: &[Source]) {
    within(LIMIT, "linting", || policy.lints())
        .iter()
        .for_each(is_well_formed);
    for source in sources {
        let formatted = within(LIMIT, "formatting", || format(source));
        let formatted = formatted.unwrap_or_else(|errors| panic!("{errors}"));
        let again = format(&Source::new(&source.name, &formatted));
        assert_eq!(again.as_ref(), Ok(&formatted), "formatted twice");
    }
    let itself = within(LIMIT, "comparing", || policy.within(policy));
    assert!(!matches!(itself, Within::Counterexample { .. }), "{itself}");
    let outcomes = within(LIMIT, "running the tests", || policy.run_tests());
    for outcome in &outcomes {
        assert!(outcome.line > 0 && outcome.passed() == outcome.differences.is_empty());
        if let Ok(request) = CanonicalRequest::from_line(&outcome.request) {
            is_consistent(policy, &request);
        }
    }
    for line in [
        "GET https://a.test/",
        "POST http://10.0.0.1/x",
        "tcp://db.test:5432",
    ] {
        let request = CanonicalRequest::from_line(line).expect("is canonical");
        is_consistent(policy, &request);
    }
    let again = Policy::load(sources).expect("it loaded before");
    assert_eq!(policy.revision(), again.revision());
    assert_eq!(outcomes, again.run_tests());
}

/// What is decided is what is explained; what is allowed is let in by the checks before it.
fn is_consistent(policy: &Policy, request: &CanonicalRequest) {
    let decision = policy.decide(request);
    let explanation = policy.explain(request);
    assert_eq!(decision.reason(), explanation.reason, "{request}");
    if decision.verdict() == Verdict::Allow {
        let admission = policy.admits(request.destination(), request.port());
        let protocol = request.protocol();
        let open = match protocol {
            Protocol::Https => admission.https,
            Protocol::Http => admission.http,
            Protocol::Tcp => admission.tcp,
            Protocol::Udp => admission.udp,
            Protocol::Tls => admission.tls,
        };
        assert!(open, "{request}: {admission:?}");
        if let Destination::Name(name) = request.destination() {
            assert!(policy.admits_name(name), "{request}");
        }
        let is_explained = decision.rule().is_some() || decision.would_deny().is_some();
        assert!(decision.permit().is_some() && is_explained);
    }
}
