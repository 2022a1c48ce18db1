//! The pages under `docs/` that are made from the types. `OUTGATE_BLESS=1` writes them anew.

use std::fmt::Write;
use std::path::Path;

use outgate_policy::Reason;

#[test]
fn the_page_of_reason_codes_is_up_to_date() {
    let mut page = String::from(
        "# Reason codes\n\n\
         Every denial, every refusal and every record of the audit log carries one of these codes. The\n\
         list is stable: a code keeps its meaning. The status is that of an answer over HTTP; flows that\n\
         aren't HTTP are reset, and names are answered with NXDOMAIN.\n\n\
         This page is made from the types; `OUTGATE_BLESS=1 cargo nextest run -p outgate-policy --test docs`\n\
         writes it anew.\n\n\
         | code | status | meaning | what to do |\n|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        let status = match reason {
            Reason::Allowed => "—".to_owned(),
            other => other.http_status().to_string(),
        };
        writeln!(
            page,
            "| `{reason}` | {status} | {} | {} |",
            reason.explanation(),
            reason.how_to_fix()
        )
        .unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reasons.md");
    if std::env::var_os("OUTGATE_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reasons.md is out of date; run this test with OUTGATE_BLESS=1"
    );
}
