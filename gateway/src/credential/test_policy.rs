//! A policy with credentials, for the tests of this module.

use outgate_policy::{CredentialSpec, Policy, Source};

/// The credentials of a policy: `github` from the environment and `model` from a file, both with a
/// placeholder, and `plain` without one.
pub(super) fn specs() -> Vec<CredentialSpec> {
    specs_with_file("/nonexistent/model-key")
}

pub(super) fn specs_with_file(path: &str) -> Vec<CredentialSpec> {
    let text = format!(
        r#"
version: 1
rules:
  - {{ id: github, action: allow, to: {{ hosts: [a.test] }}, credential: github }}
  - {{ id: model, action: allow, to: {{ hosts: [b.test] }}, credential: model }}
  - {{ id: plain, action: allow, to: {{ hosts: [c.test] }}, credential: plain }}
credentials:
  - name: github
    source: {{ env: OUTGATE_TEST_UNSET }}
    expose: {{ env: GITHUB_TOKEN, shape: "ghp_{{36}}" }}
    attach: [{{ header: Authorization, format: "Bearer {{}}" }}]
  - name: model
    source: {{ file: {path} }}
    expose: {{ env: MODEL_KEY, shape: "sk-ant-{{40}}" }}
    attach: [{{ header: X-Api-Key, format: "{{}}" }}, {{ header: X-Also, format: "<{{}}>" }}]
  - name: plain
    source: {{ env: CARGO_MANIFEST_DIR }}
    attach: [{{ header: Authorization, format: "Token {{}}" }}]
"#
    );
    let policy = Policy::load(&[Source::new("test.yaml", text)]).unwrap();
    policy.credentials().cloned().collect()
}

/// The credential of that name.
pub(super) fn spec(name: &str) -> CredentialSpec {
    named(specs(), name)
}

pub(super) fn named(specs: Vec<CredentialSpec>, name: &str) -> CredentialSpec {
    specs
        .into_iter()
        .find(|spec| spec.name.as_str() == name)
        .unwrap()
}
