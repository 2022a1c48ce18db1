//! Configurations of pip and uv, good and bad, and what they open.

use proptest::prelude::*;

use super::super::fake::{Fake, allows, check};
use super::super::load;
use super::super::machine::MAX_FILE;

const ANSWER: &str = "https://index.test/simple\nfiles.test\n";

#[test]
fn pip_is_asked_where_nothing_is_configured() {
    let preset = Fake::new().answer("python3", ANSWER).preset("pip");
    for (request, expected) in [
        ("GET https://index.test/simple/requests/", true),
        ("GET https://index.test/simple/requests", true),
        ("GET https://index.test/pypi/requests/2.0/json", true),
        (
            "GET https://files.test/packages/aa/bb/requests-2.0-py3-none-any.whl",
            true,
        ),
        (
            "GET https://files.test/packages/aa/bb/requests-2.0-py3-none-any.whl.metadata",
            true,
        ),
        ("GET https://files.test/other", false),
        ("GET https://index.test/manage/account/token/", false),
        ("POST https://index.test/legacy/", false),
        ("POST https://upload.index.test/legacy/", false),
    ] {
        assert_eq!(allows(&preset, request), expected, "{request}");
    }
    assert!(preset.text.contains("# From the default of pip.\n"));
    assert_eq!(preset.notes, Vec::<String>::new());
}

#[test]
fn the_files_of_a_known_index_are_known_too() {
    let preset = Fake::new()
        .answer("python", ANSWER)
        .file(
            "/etc/pip.conf",
            "[global]\nindex-url = https://index.test/simple/\n",
        )
        .preset("pip");
    assert!(allows(&preset, "GET https://files.test/packages/x"));
    assert!(preset.text.contains("# From `/etc/pip.conf`, line 2.\n"));
    assert!(preset.notes.is_empty());
}

#[test]
fn a_mirror_replaces_the_default() {
    let preset = Fake::new()
        .answer("python3", ANSWER)
        .variable(
            "PIP_INDEX_URL",
            "https://nexus.example.com:8443/repository/py/simple",
        )
        .preset("pip");
    for (request, expected) in [
        (
            "GET https://nexus.example.com:8443/repository/py/simple/x/",
            true,
        ),
        (
            "GET https://nexus.example.com:8443/repository/py/packages/x/1/x-1.whl",
            true,
        ),
        (
            "GET https://nexus.example.com:8443/repository/other/simple/x/",
            false,
        ),
        (
            "GET https://nexus.example.com/repository/py/simple/x/",
            false,
        ),
        ("GET https://index.test/simple/x/", false),
        ("GET https://files.test/packages/x", false),
    ] {
        assert_eq!(allows(&preset, request), expected, "{request}");
    }
    assert_eq!(preset.notes.len(), 1);
    assert!(preset.notes[0].starts_with("pages of nexus.example.com:8443 may link"));
}

#[test]
fn the_precedence_is_that_of_pip() {
    let config = |host: &str| format!("[global]\nindex-url = https://{host}/simple\n");
    let hosts = [
        "xdg.test",
        "etc.test",
        "old.test",
        "new.test",
        "env.test",
        "file.test",
    ];
    let machine = Fake::new()
        .variable("VIRTUAL_ENV", "/home/me/env")
        .file("/etc/xdg/pip/pip.conf", &config(hosts[0]))
        .file("/etc/pip.conf", &config(hosts[1]))
        .file("/home/me/.pip/pip.conf", &config(hosts[2]))
        .file("/home/me/.config/pip/pip.conf", &config(hosts[3]))
        .file("/home/me/env/pip.conf", &config(hosts[4]))
        .file("/home/me/named", &config(hosts[5]));
    let winner = |machine: &Fake| {
        let preset = machine.preset("pip");
        let of = |host: &&&str| allows(&preset, &format!("GET https://{host}/simple/x/"));
        let found: Vec<&str> = hosts.iter().filter(of).copied().collect();
        found.join(" ")
    };
    assert_eq!(winner(&machine), "env.test");
    let machine = machine.variable("VIRTUAL_ENV", "");
    assert_eq!(winner(&machine), "new.test");
    let machine = machine.variable("XDG_CONFIG_HOME", "/home/me/elsewhere");
    assert_eq!(winner(&machine), "old.test");
    let machine = machine.variable("PIP_CONFIG_FILE", "/home/me/missing");
    assert_eq!(winner(&machine), "old.test");
    let machine = machine.variable("PIP_CONFIG_FILE", "/home/me/named");
    assert_eq!(winner(&machine), "file.test");
    let machine = machine.variable("PIP_CONFIG_FILE", "/dev/null");
    let machine = machine.variable("PIP_INDEX_URL", "https://etc.test/simple");
    assert_eq!(winner(&machine), "etc.test");
}

#[test]
fn lists_go_on_in_further_lines_and_sections() {
    let config = "\u{feff}# company\n\n[global]\r\n  Extra_Index_URL: https://a.test/simple\n\n\
                  \x20   https://b.test/x/+simple/ # not a comment here\n  timeout = 60\n\
                  [install]\nindex-url=https://c.test/simple\n[freeze]\nindex-url = https://d.test/\n";
    let error = Fake::new().file("/etc/pip.conf", config).refusal("pip");
    assert_eq!(
        error,
        "`/etc/pip.conf`, line 4: this is no http or https address: `#` is no absolute URL"
    );
    let config = config.replace("# not a comment here", "\n;\n    https://e.test/simple");
    let preset = Fake::new().file("/etc/pip.conf", &config).preset("pip");
    for (request, expected) in [
        ("GET https://a.test/simple/x/", true),
        ("GET https://b.test/x/+simple/y/", true),
        ("GET https://b.test/x/+f/aa/y.whl", true),
        ("GET https://c.test/simple/x/", true),
        ("GET https://d.test/x", false),
        ("GET https://e.test/simple/x/", true),
    ] {
        assert_eq!(allows(&preset, request), expected, "{request}");
    }
}

#[test]
fn links_open_their_folder() {
    let preset = Fake::new()
        .answer("python3", ANSWER)
        .variable(
            "PIP_FIND_LINKS",
            "/opt/wheels file:///x https://a.test/whl/stable.html http://b.test/dir/ https://c.test/links",
        )
        .preset("pip");
    for (request, expected) in [
        ("GET https://a.test/whl/stable.html", true),
        ("GET https://a.test/whl/cpu/torch-2.0.whl", true),
        ("GET https://a.test/other", false),
        ("GET http://b.test/dir/x-1.0.whl", true),
        ("GET https://b.test/dir/x-1.0.whl", false),
        ("GET https://c.test/links", true),
        ("GET https://c.test/links/x-1.0.whl", true),
        ("GET https://c.test/linksx", false),
        ("GET https://index.test/simple/x/", true),
    ] {
        assert_eq!(allows(&preset, request), expected, "{request}");
    }
}

#[test]
fn no_index_leaves_the_links() {
    let machine = Fake::new()
        .answer("python3", ANSWER)
        .variable("PIP_NO_INDEX", "true")
        .variable("PIP_INDEX_URL", "https://a.test/simple");
    let error = machine.refusal("pip");
    assert!(error.starts_with("pip needs no network here"), "{error}");
    let machine = machine.variable("PIP_FIND_LINKS", "https://b.test/links/");
    let preset = machine.preset("pip");
    assert!(!allows(&preset, "GET https://a.test/simple/x/"));
    assert!(!allows(&preset, "GET https://index.test/simple/x/"));
    assert!(allows(&preset, "GET https://b.test/links/x.whl"));
}

#[test]
fn uv_is_read_beside_pip() {
    let toml = "index-url = 'https://a.test/simple'\n[pip]\nextra-index-url = ['https://b.test/simple']\n\
                [[index]]\nname = 'c'\nurl = 'https://c.test/simple'\n";
    let preset = Fake::new()
        .answer("python3", ANSWER)
        .file("/home/me/.config/uv/uv.toml", toml)
        .variable(
            "UV_INDEX",
            "own=https://d.test/x/simple https://e.test/simple?a=b",
        )
        .variable("UV_FIND_LINKS", "https://f.test/,/opt/x")
        .preset("pip");
    for host in [
        "a.test/simple",
        "b.test/simple",
        "c.test/simple",
        "d.test/x/simple",
        "e.test/simple",
        "f.test",
    ] {
        assert!(allows(&preset, &format!("GET https://{host}/x/")), "{host}");
    }
    assert!(!allows(&preset, "GET https://index.test/simple/x/"));
    assert!(
        preset
            .text
            .contains("# From `/home/me/.config/uv/uv.toml`, line 6.\n")
    );

    let preset = Fake::new()
        .answer("python3", ANSWER)
        .file(
            "/etc/uv/uv.toml",
            "[[index]]\nurl = 'https://c.test/simple'\n",
        )
        .preset("pip");
    assert!(allows(&preset, "GET https://index.test/simple/x/"));
    let preset = Fake::new()
        .answer("python3", ANSWER)
        .variable("UV_CONFIG_FILE", "/home/me/uv.toml")
        .file(
            "/home/me/uv.toml",
            "index = [{ url = 'https://c.test/simple', default = true }]\n",
        )
        .preset("pip");
    assert!(!allows(&preset, "GET https://index.test/simple/x/"));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let at = |text: &str| Fake::new().file("/etc/pip.conf", text).refusal("pip");
    assert_eq!(
        at("[global]\nindex-url = https://a.test/simple\nindex-url\n"),
        "`/etc/pip.conf`, line 3: this is neither a `[section]` nor a `key = value` in a section"
    );
    assert!(at("index-url = https://a.test/\n").starts_with("`/etc/pip.conf`, line 1: "));
    assert!(at("[global\n").starts_with("`/etc/pip.conf`, line 1: "));
    assert_eq!(
        at("[global]\nindex-url = pypi.test/simple\n"),
        "`/etc/pip.conf`, line 2: this is no http or https address: `pypi.test/simple` is no absolute URL"
    );
    let at = |text: &str| Fake::new().file("/etc/uv/uv.toml", text).refusal("pip");
    assert!(at("\n[index\n").starts_with("`/etc/uv/uv.toml`, line 2: this is no TOML: "));
    assert_eq!(
        at("\nindex-url = 1\n"),
        "`/etc/uv/uv.toml`, line 2: `index-url` must be a text"
    );
    assert_eq!(
        at("extra-index-url = [1]"),
        "`/etc/uv/uv.toml`, line 1: `extra-index-url` must be a list of texts"
    );
    assert!(at("index = 'x'").contains("must be a list of tables"));
    assert!(at("[[index]]\nname = 'x'").contains("must be a list of tables"));
    assert!(at("pip = 1").contains("`pip` must be a table"));
    let deep = format!("x = {}", "[".repeat(1000));
    assert!(at(&deep).contains("this is no TOML"));
    let error = Fake::new().unreadable("/etc/pip.conf").refusal("pip");
    assert!(
        error.starts_with("`/etc/pip.conf` can't be read: permission denied;"),
        "{error}"
    );
}

#[test]
fn nothing_at_all_says_what_to_set() {
    assert_eq!(
        Fake::new().refusal("pip"),
        "nothing on this machine says where pip gets its packages; set `PIP_INDEX_URL`, or `index-url` in pip.conf, or install pip"
    );
    for answer in ["", "x", "one\ntwo\nthree\n"] {
        assert!(
            Fake::new()
                .answer("python3", answer)
                .refusal("pip")
                .starts_with("nothing on this")
        );
    }
    let preset = Fake::new()
        .variable("PIP_EXTRA_INDEX_URL", "https://a.test/simple")
        .preset("pip");
    assert!(
        preset
            .notes
            .iter()
            .any(|note| note.starts_with("the index that pip uses by itself is not known"))
    );
}

#[test]
fn what_a_sandbox_may_have_written_opens_nothing() {
    let evil = "[global]\nindex-url = https://evil.test/simple\n";
    let preset = Fake::new()
        .answer("python3", ANSWER)
        .variable("VIRTUAL_ENV", "/project/.venv")
        .variable("PIP_CONFIG_FILE", "pip.conf")
        .file("/project/.venv/pip.conf", evil)
        .file("pip.conf", evil)
        .preset("pip");
    assert!(!preset.text.contains("evil.test"), "{}", preset.text);
    assert!(
        preset
            .notes
            .iter()
            .any(|note| note.starts_with("`/project/.venv/pip.conf` is in the folder"))
    );
}

#[test]
fn nothing_of_a_configuration_becomes_more_than_a_place() {
    let limit = usize::try_from(MAX_FILE).unwrap();
    let long = format!(
        "[global]\nfind-links =\n{}",
        "  https://a.test/x/\n".repeat(limit / 32)
    );
    assert!(
        Fake::new()
            .file("/etc/pip.conf", &long)
            .refusal("pip")
            .contains("more than 512 places")
    );

    for value in [
        "https://a.test/simple\"\nrules: [{}]",
        "https://a.test/x#\n  - id: evil",
        "https://a.test/{}: [",
        "https://a.test/simple/'; &x *y !z | > %",
        "https://*.test/simple",
        "https://any/simple",
        "https://a.test/\u{202e}/simple",
        "https://a.test/\u{85}rules:",
    ] {
        let machine = Fake::new().variable("PIP_INDEX_URL", value);
        match load("pip", &machine) {
            Ok(preset) => {
                check(&preset.text);
                assert!(!allows(&preset, "GET https://example.org/"), "{value}");
            }
            Err(error) => assert!(!error.to_string().contains(char::is_control), "{value}"),
        }
    }
    // A path with line breaks stays in its comment.
    let preset = Fake::new()
        .variable("HOME", "/home/x\nrules: [{id: evil}]\n#")
        .file(
            "/home/x\nrules: [{id: evil}]\n#/.pip/pip.conf",
            "[global]\nindex-url = https://a.test/simple\n",
        )
        .preset("pip");
    assert!(
        preset
            .text
            .contains("# From `/home/x\\nrules: [{id: evil}]\\n#/.pip/pip.conf`, line 2.")
    );
}

fn address() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "https://",
        "http://",
        "a.test",
        "A.test",
        "10.0.0.1",
        "[::1]",
        "[2001:db8::2]",
        "any",
        "*",
        ".",
        ":8443",
        ":443",
        ":0",
        "/",
        "/",
        "simple",
        "x",
        "..",
        "%2e",
        "%2F",
        "%",
        "[",
        "]",
        "{",
        "}",
        ",",
        "?",
        "=",
        "#",
        "\"",
        "'",
        "\n",
        "\t",
        " ",
        ": ",
        "- ",
        "!",
        "&",
        "\\",
        "@",
        "\u{2028}",
        "\u{202e}",
        "é",
        "**",
        ";",
    ]);
    let tail = prop::collection::vec(piece.clone(), 0..8);
    let whole = prop::collection::vec(piece, 0..10);
    prop_oneof![
        tail.prop_map(|pieces| format!("https://a.test/{}", pieces.concat())),
        whole.prop_map(|pieces| pieces.concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever an address is, it opens what it names or nothing.
    #[test]
    fn no_address_opens_another_place(first in address(), second in address()) {
        let machine = Fake::new()
            .variable("UV_DEFAULT_INDEX", &first)
            .variable("PIP_INDEX_URL", &first)
            .variable("PIP_FIND_LINKS", &second);
        match load("pip", &machine) {
            Ok(preset) => {
                check(&preset.text);
                for request in ["GET https://example.org/x", "GET http://10.9.9.9/x", "PUT https://a.test/x"] {
                    prop_assert!(!allows(&preset, request), "{}", preset.text);
                }
            }
            Err(error) => prop_assert!(!error.to_string().contains(char::is_control)),
        }
    }
}
