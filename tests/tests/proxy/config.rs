//! The configuration file: what is wrong is said before anything listens.

use std::process::{Command, Output};

use outgate_tests::harness::{PROXY, TOKEN, outgate};

/// `outgate gateway --config FILE …` in a folder with `policy.yaml`.
fn gateway(configuration: &str, options: &[&str]) -> (Output, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gateway.yaml");
    std::fs::write(&path, configuration).expect("written");
    std::fs::write(
        folder.path().join("policy.yaml"),
        "version: 1\nname: p\nrules: []\n",
    )
    .expect("written");
    std::fs::write(folder.path().join("token"), format!("{TOKEN}\n")).expect("written");
    let output = Command::new(outgate().expect("the program under test exists"))
        .args(["gateway", "--config"])
        .arg(&path)
        .args(options)
        .env("OUTGATE_STATE", folder.path().join("state"))
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !folder.path().join("state").exists() || options.is_empty(),
        "--check writes nothing"
    );
    (output, said)
}

fn file(sandbox: &str) -> String {
    format!(
        "version: 1\nproxies:\n  - name: p\n    listen: {PROXY}\nsandboxes:\n  - id: s1\n{sandbox}"
    )
}

#[test]
fn a_good_file_is_said_to_be_good() {
    let good = file("    policies: [policy.yaml]\n    token: { file: token }\n");
    let (output, said) = gateway(&good, &["--check"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "the configuration loads: 1 listeners, 1 sandboxes\n");
}

#[test]
fn b011_c15_what_is_not_understood_ends_the_start() {
    for (text, expected) in [
        (
            file("    polices: [policy.yaml]\n    token: { file: token }\n"),
            "`polices` is no key here",
        ),
        (
            file("    policies: [missing.yaml]\n    token: { file: token }\n"),
            "missing.yaml",
        ),
        (
            file("    policies: [gateway.yaml]\n    token: { file: token }\n"),
            "the policy does not load",
        ),
        (file("    token: { file: missing }\n"), "can't be read"),
        (file("    token: { file: policy.yaml }\n"), "holds no token"),
        (
            file("    token: { env: NOT_SET_ANYWHERE }\n"),
            "`NOT_SET_ANYWHERE` of the token is not set",
        ),
        (
            file("    token: { sha256: 5a1d8e2f9c4b7063d2e1f0a9b8c7d6e5 }\n"),
            "no SHA-256",
        ),
        ("version: 2\n".to_owned(), "version 2"),
        (String::new(), "does not load"),
    ] {
        for options in [&["--check"][..], &[]] {
            let (output, said) = gateway(&text, options);
            assert_eq!(output.status.code(), Some(2), "{text}: {said}");
            assert!(said.contains(expected), "{said}");
            assert!(
                !said.contains("5a1d8e2f9c4b"),
                "a token is not quoted: {said}"
            );
        }
    }
}

#[test]
fn b010_a_listener_that_cant_be_opened_is_a_failed_start() {
    let good = file("    policies: [policy.yaml]\n    token: { file: token }\n");
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let held = holder.local_addr().expect("an address").to_string();
    let (output, said) = gateway(&good.replace(&PROXY.to_string(), &held), &[]);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("listener `p`: can't listen on"), "{said}");
}
