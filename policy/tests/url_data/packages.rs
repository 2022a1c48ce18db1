//! Test data that others publish inside their crates: found where cargo keeps the sources, copied
//! nowhere. What isn't there is a failure that says what to do, never a skip.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The text of a file inside of a dependency's package.
pub(crate) fn read(package: &str, version: &str, file: &str) -> String {
    let path = folder(package, version).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!(
            "`{}` can't be read ({error}): the package {package} {version} has it; remove its \
             folder from cargo's registry and run `cargo fetch`",
            path.display()
        )
    })
}

/// Where cargo unpacked the package.
fn folder(package: &str, version: &str) -> PathBuf {
    let metadata: Value = serde_json::from_str(&metadata()).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let found = packages
        .iter()
        .find(|entry| entry["name"] == package && entry["version"] == version)
        .unwrap_or_else(|| {
            panic!(
                "{package} {version} is not in Cargo.lock: the counts in this test are for that \
                 version's data, so review them and name the new version"
            )
        });
    let manifest = Path::new(found["manifest_path"].as_str().unwrap());
    manifest.parent().unwrap().to_owned()
}

/// Only packages for this platform: the others need not be downloaded.
fn metadata() -> String {
    let host = cargo(&["-vV"]);
    let host = host
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap_or_else(|| panic!("`cargo -vV` names no host: {host}"));
    cargo(&[
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        host,
    ])
}

fn cargo(arguments: &[&str]) -> String {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap_or_else(|error| panic!("cargo can't be run: {error}"));
    assert!(
        output.status.success(),
        "`cargo {}` failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
