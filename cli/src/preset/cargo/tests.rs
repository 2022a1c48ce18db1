//! Configurations of cargo, good and bad, and what they open.

use super::super::fake::{Fake, allows};

const INDEX: &str = "/home/me/.cargo/registry/index/";

fn with_default(machine: Fake) -> Fake {
    let config = format!("{INDEX}index.test-1949cf8c6b5b557f/config.json");
    machine.file(
        &config,
        r#"{"dl":"https://static.test/crates","api":"https://api.test"}"#,
    )
}

#[test]
fn the_default_registry_is_the_one_that_cargo_has_fetched() {
    let preset = with_default(Fake::new()).preset("cargo");
    for (request, expected) in [
        ("GET https://index.test/config.json", true),
        ("GET https://index.test/1/a", true),
        ("GET https://index.test/2/ab", true),
        ("GET https://index.test/3/a/abc", true),
        ("GET https://index.test/se/rd/serde", true),
        ("GET https://index.test/api/v1/crates", false),
        ("GET https://index.test/serde", false),
        ("GET https://static.test/crates/serde/1.0.0/download", true),
        ("GET https://static.test/crates/serde/1.0.0/owners", false),
        ("GET https://static.test/readmes/x", false),
        ("PUT https://api.test/api/v1/crates/new", false),
        ("GET https://api.test/api/v1/me", false),
    ] {
        assert_eq!(allows(&preset, request), expected, "{request}");
    }
    assert!(preset.notes.is_empty(), "{:?}", preset.notes);
    // An older cargo, and a folder elsewhere.
    let preset = Fake::new()
        .variable("CARGO_HOME", "/srv/cargo")
        .file(
            "/srv/cargo/registry/index/old.test-6f17d22bba15001f/config.json",
            r#"{"dl":"https://old.test/dl/{crate}/{crate}-{version}.crate"}"#,
        )
        .preset("cargo");
    assert!(allows(
        &preset,
        "GET https://old.test/dl/serde/serde-1.0.0.crate"
    ));
    assert!(!allows(&preset, "GET https://old.test/other/serde"));
}

#[test]
fn a_mirror_replaces_the_default() {
    let config = "[source.crates-io]\nreplace-with = 'mirror'\n[source.mirror]\nreplace-with = \"real\"\n\
                  [source.real]\nregistry = 'sparse+https://mirror.test/cargo/index/'\n";
    let machine = with_default(Fake::new()).file("/home/me/.cargo/config.toml", config);
    let preset = machine.preset("cargo");
    assert!(allows(
        &preset,
        "GET https://mirror.test/cargo/index/se/rd/serde"
    ));
    assert!(!allows(
        &preset,
        "GET https://mirror.test/cargo/api/v1/crates/serde/1.0.0/download"
    ));
    assert!(!allows(&preset, "GET https://index.test/se/rd/serde"));
    assert!(
        preset
            .text
            .contains("# From `/home/me/.cargo/config.toml`, line 6.\n")
    );
    assert!(preset.notes[0].contains("cargo has not fetched the index yet"));

    let fetched = format!("{INDEX}mirror.test-0123456789abcdef/config.json");
    let preset = machine
        .file(
            &fetched,
            r#"{"dl":"https://mirror.test/cargo/api/v1/crates"}"#,
        )
        .preset("cargo");
    assert!(allows(
        &preset,
        "GET https://mirror.test/cargo/api/v1/crates/serde/1.0.0/download"
    ));
    assert!(preset.notes.is_empty(), "{:?}", preset.notes);

    let vendored =
        "[source.crates-io]\nreplace-with = 'vendor'\n[source.vendor]\ndirectory = 'vendor'\n";
    let error = with_default(Fake::new())
        .file("/home/me/.cargo/config.toml", vendored)
        .refusal("cargo");
    assert!(error.starts_with("cargo needs no network here"), "{error}");
}

#[test]
fn registries_are_open_beside_the_default() {
    let config = "[registries]\nacme = { index = 'sparse+https://cargo.acme.test/i/' }\n\
                  [registries.old-git]\nindex = 'https://git.acme.test/crates/index.git'\n\
                  [registries.by-ssh]\nindex = 'ssh://git@git.acme.test/index.git'\n\
                  [registries.local]\nindex = 'file:///srv/index'\n";
    let preset = with_default(Fake::new())
        .file("/home/me/.cargo/config.toml", config)
        .variable(
            "CARGO_REGISTRIES_MY_OWN_INDEX",
            "sparse+http://10.0.0.1:8080/",
        )
        .preset("cargo");
    for (request, expected) in [
        ("GET https://cargo.acme.test/i/se/rd/serde", true),
        ("GET https://cargo.acme.test/se/rd/serde", false),
        (
            "GET https://git.acme.test/crates/index.git/info/refs?service=git-upload-pack",
            true,
        ),
        (
            "POST https://git.acme.test/crates/index.git/git-upload-pack",
            true,
        ),
        (
            "POST https://git.acme.test/crates/index.git/git-receive-pack",
            false,
        ),
        (
            "POST https://git.acme.test/other.git/git-upload-pack",
            false,
        ),
        ("GET http://10.0.0.1:8080/se/rd/serde", true),
        ("GET https://index.test/se/rd/serde", true),
    ] {
        assert_eq!(allows(&preset, request), expected, "{request}");
    }
    assert!(
        preset
            .notes
            .iter()
            .any(|note| note.contains("line 6 names a registry that is reached by SSH"))
    );
    // The variable goes before the file.
    let preset = with_default(Fake::new())
        .file("/home/me/.cargo/config.toml", config)
        .variable(
            "CARGO_REGISTRIES_ACME_INDEX",
            "sparse+https://new.acme.test/",
        )
        .preset("cargo");
    assert!(allows(&preset, "GET https://new.acme.test/config.json"));
    assert!(!allows(
        &preset,
        "GET https://cargo.acme.test/i/config.json"
    ));
}

#[test]
fn a_registry_can_replace_the_default_by_its_name() {
    let config = "source.crates-io.replace-with = 'acme'\nregistries.acme.index = 'sparse+https://a.test/'\n";
    let machine = with_default(Fake::new());
    let preset = machine
        .file("/home/me/.cargo/config", config)
        .preset("cargo");
    assert!(allows(&preset, "GET https://a.test/config.json"));
    assert!(!allows(&preset, "GET https://index.test/config.json"));
}

#[test]
fn what_a_server_says_of_downloads_opens_at_most_a_place_of_crates() {
    let config = "[registries]\na = { index = 'sparse+https://a.test/' }\n";
    let fetched = format!("{INDEX}a.test-0123456789abcdef/config.json");
    for said in [
        "",
        "{}",
        "[]",
        r#"{"dl":1}"#,
        r#"{"dl":"{crate}"}"#,
        r#"{"dl":"https://{crate}.test/"}"#,
        r#"{"dl":"ftp://b.test/x"}"#,
        r#"{"dl":"http://localhost/x"}"#,
        r#"{"dl":"http://169.254.169.254/latest"}"#,
        r#"{"dl":"https://any/"}"#,
        r#"{"dl":"https://user:hunter2@b.test/x"}"#,
        r#"{"dl":"https://b.test/\"\nrules: []"}"#,
    ] {
        let preset = with_default(Fake::new())
            .file("/home/me/.cargo/config.toml", config)
            .file(&fetched, said)
            .preset("cargo");
        assert_eq!(preset.notes.len(), 1, "{said}");
        assert!(
            preset.notes[0].contains("has none that can be read"),
            "{said}"
        );
        assert!(!preset.text.contains("hunter2"));
    }
    // Two indexes of one host: it can't be known which is which.
    let preset = with_default(Fake::new())
        .file("/home/me/.cargo/config.toml", config)
        .file(&fetched, r#"{"dl":"https://b.test/x"}"#)
        .file(&format!("{INDEX}a.test-fedcba9876543210/config.json"), "{}")
        .preset("cargo");
    assert!(preset.notes[0].contains("several indexes of this host"));
    assert!(!preset.text.contains("b.test"));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let at = |text: &str| {
        let machine = with_default(Fake::new());
        machine
            .file("/home/me/.cargo/config.toml", text)
            .refusal("cargo")
    };
    let file = "`/home/me/.cargo/config.toml`, line";
    assert!(at("a = 1\n[registries\n").starts_with(&format!("{file} 2: this is no TOML")));
    assert_eq!(
        at("[registries]\nacme = 1"),
        format!("{file} 2: `acme` must be a table")
    );
    assert_eq!(
        at("[registries.acme]\nindex = 1"),
        format!("{file} 2: `index` must be a text")
    );
    assert_eq!(
        at("[source.crates-io]\nreplace-with = 'a'"),
        format!("{file} 2: there is no source `a`; declare it")
    );
    let circle = "[source.crates-io]\nreplace-with = 'a'\n[source.a]\nreplace-with = 'crates-io'\n";
    assert!(at(circle).contains("perhaps in a circle"));
    assert!(at("[registries.a]\nindex = 'sparse+a.test'").contains("line 2: this is no http"));
    assert!(at("registries = 'x'").contains("`registries` must be a table"));
}

#[test]
fn nothing_at_all_says_what_to_do() {
    let error = Fake::new().refusal("cargo");
    assert!(error.starts_with(
        "nothing on this machine says where cargo gets its packages; run `cargo fetch`"
    ));
    let config = "include = ['x.toml']\n[registries]\na = { index = 'sparse+https://a.test/' }\n";
    let preset = Fake::new()
        .file("/home/me/.cargo/config.toml", config)
        .preset("cargo");
    assert!(preset.notes[0].contains("line 1 includes other files"));
    assert!(
        preset
            .notes
            .iter()
            .any(|note| note.starts_with("cargo's default registry is not known"))
    );
}

#[test]
fn what_a_sandbox_may_have_written_opens_nothing() {
    let evil = "[source.crates-io]\nreplace-with = 'x'\n[source.x]\nregistry = 'sparse+https://evil.test/'\n";
    let preset = with_default(Fake::new())
        .file("/project/.cargo/config.toml", evil)
        .preset("cargo");
    assert!(!preset.text.contains("evil.test"));
    assert_eq!(preset.notes.len(), 1);
    let error = Fake::new()
        .variable("CARGO_HOME", "/project/.cargo")
        .file("/project/.cargo/config.toml", evil)
        .file(
            "/project/.cargo/registry/index/evil.test-1949cf8c6b5b557f/config.json",
            "{}",
        )
        .refusal("cargo");
    assert!(error.starts_with("nothing on this machine"), "{error}");
}
