use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::desk::Desk;

const LOOSE: &str =
    "version:   1\nrules:\n    -   {id:   r,action: allow,   to: {hosts:   [a.test]}}\n";

#[test]
fn a_file_is_replaced_whole_and_keeps_mode_and_link() {
    let desk = Desk::with(&[("p.yaml", LOOSE)]);
    let path = desk.path().join("p.yaml");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    symlink("p.yaml", desk.path().join("link.yaml")).unwrap();
    desk.policy(&["fmt", "--check", "link.yaml"])
        .assert(1, "link.yaml\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), LOOSE);
    desk.policy(&["fmt", "link.yaml"]).assert(0, "link.yaml\n");
    let laid_out = fs::read_to_string(&path).unwrap();
    assert_ne!(laid_out, LOOSE);
    assert_eq!(
        path.metadata().unwrap().permissions().mode() & 0o7777,
        0o640
    );
    assert!(desk.path().join("link.yaml").is_symlink());
    assert_eq!(
        fs::read_dir(desk.path()).unwrap().count(),
        2,
        "nothing is left beside it"
    );
    desk.policy(&["fmt", "p.yaml"]).assert(0, "");
    desk.policy(&["fmt", "--check", "p.yaml"]).assert(0, "");
    let piped = desk.policy_reading(LOOSE, &["fmt", "--stdin"]);
    piped.assert(0, &laid_out);
}

#[test]
fn what_is_no_policy_is_left_alone_and_hides_nothing() {
    let desk = Desk::with(&[("bad.yaml", "rules: [\n"), ("p.yaml", LOOSE)]);
    let run = desk.policy(&["fmt", "bad.yaml", "none.yaml", "p.yaml"]);
    assert_eq!((run.code, run.out.as_str()), (2, "p.yaml\n"));
    assert!(
        run.err.contains("bad.yaml:") && run.err.contains("none.yaml"),
        "{}",
        run.err
    );
    assert_eq!(
        fs::read_to_string(desk.path().join("bad.yaml")).unwrap(),
        "rules: [\n"
    );
}
