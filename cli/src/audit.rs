//! `outgate audit`: read and verify audit logs.
//!
//! Text in a record comes from guests and upstreams: nothing of it reaches a terminal but printable
//! characters.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use outgate_gateway::audit::{
    AuditError, EventKind, Filter, Head, Report, StoredRecord, TailOptions, tail, verify,
};
use outgate_policy::Reason;

use crate::exit::{Code, Failure};
use crate::output::{self, printable};

/// `outgate audit …`
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Show the last records, and the next ones as they are written
    Tail(TailArgs),
    /// Prove that no record was changed, removed, moved or slipped in
    Verify(VerifyArgs),
}

/// Show the last records, and the next ones as they are written.
#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Folder of the audit log [default: that of the newest run]
    dir: Option<PathBuf>,
    /// Wait for more
    #[arg(short, long)]
    follow: bool,
    /// How many of the last matching records to show
    #[arg(short = 'n', value_name = "N", default_value_t = 20)]
    last: usize,
    /// Print the records as they are in the log, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Only records of this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Only records with this verdict
    #[arg(long, value_parser = ["allow", "deny", "ask"])]
    verdict: Option<String>,
    /// Only records with this reason code
    #[arg(long, hide_possible_values = true,
          value_parser = PossibleValuesParser::new(Reason::ALL.iter().map(|reason| reason.as_str())))]
    reason: Option<String>,
    /// Only records about this destination
    #[arg(long)]
    host: Option<String>,
    /// Only records of this kind
    #[arg(long, hide_possible_values = true,
          value_parser = PossibleValuesParser::new(EventKind::ALL.map(EventKind::as_str)))]
    kind: Option<String>,
}

/// Prove that no record was changed, removed, moved or slipped in.
///
/// Ends with 0 when the log is whole, 1 when it is not, 2 when it can't be read.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Folder of the audit log [default: that of the newest run]
    dir: Option<PathBuf>,
    /// A head that this log had, from an earlier `verify` and kept elsewhere: shows that nothing is
    /// gone from the end, and that the log was not made anew
    #[arg(long, value_name = "SEQ:HASH")]
    expect_head: Option<Head>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl AuditCommand {
    /// `default_dir` is read when the command line names no folder.
    ///
    /// # Errors
    /// The log can't be read, or standard output can't be written.
    pub(crate) fn run(self, default_dir: PathBuf) -> anyhow::Result<ExitCode> {
        match self {
            Self::Tail(args) => args.run(default_dir),
            Self::Verify(args) => args.run(default_dir),
        }
    }
}

impl TailArgs {
    fn run(self, default_dir: PathBuf) -> anyhow::Result<ExitCode> {
        let dir = self.dir.unwrap_or(default_dir);
        let filter = Filter {
            sandbox: self.sandbox,
            verdict: self.verdict,
            reason: self.reason,
            host: self.host,
            kind: self.kind.and_then(|kind| kind.parse().ok()),
        };
        let options = TailOptions {
            last: self.last,
            follow: self.follow,
            filter,
        };
        let records = tail(&dir, options).map_err(unreadable)?;
        match show(records, self.json, &mut io::stdout().lock()) {
            // The reader went away (`| head`): it had what it wanted.
            Err(Stop::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            Err(Stop::Output(error)) => Err(error.into()),
            Err(Stop::Log(error)) => Err(unreadable(error)),
            Ok(()) => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Why no more records are shown.
enum Stop {
    Output(io::Error),
    Log(AuditError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn show(
    records: impl Iterator<Item = Result<StoredRecord, AuditError>>,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Stop> {
    if !json {
        writeln!(out, "{HEADING}")?;
    }
    for record in records {
        match record {
            Ok(record) if json => writeln!(out, "{}", record.line())?,
            Ok(record) => writeln!(out, "{}", row(&record))?,
            Err(error @ AuditError::NotARecord { .. }) => eprintln!("outgate: {error}"),
            Err(error) => return Err(Stop::Log(error)),
        }
        out.flush()?;
    }
    Ok(())
}

const HEADING: &str = "TIME (UTC)                  SEQ  SANDBOX       VERDICT  REASON                    \
                       WHAT";

/// One record for a person: fixed columns first, then what differs from kind to kind.
fn row(record: &StoredRecord) -> String {
    let text = |field| printable(record.text(field).unwrap_or("-"));
    let time = text("time").replace('T', " ");
    let time = time.get(..23).unwrap_or(&time);
    let seq = record.number("seq").unwrap_or_default();
    let mut row = format!(
        "{time:<23}  {seq:>6}  {:<12}  {:<7}  {:<24}  {}",
        text("sandbox.id"),
        text("verdict"),
        text("reason"),
        what(record),
    );
    for (name, field) in [
        ("status", "status"),
        ("sent", "bytes_sent"),
        ("received", "bytes_received"),
    ] {
        if let Some(number) = record.number(field) {
            push(&mut row, name, &number.to_string());
        }
    }
    for (name, field) in [("rule", "rule.id"), ("credential", "credential.name")] {
        if let Some(value) = record.text(field) {
            push(&mut row, name, &printable(value));
        }
    }
    if let Some(count) = record.number("count") {
        push(&mut row, "count", &count.to_string());
    }
    if let Some(detail) = record.text("detail") {
        let _ = write!(row, "  ({})", printable(detail));
    }
    row
}

fn push(row: &mut String, name: &str, value: &str) {
    row.extend(["  ", name, "=", value]);
}

/// `request GET https://host:port/path`, as far as the record knows.
fn what(record: &StoredRecord) -> String {
    let mut what = printable(record.text("kind").unwrap_or("-"));
    if let Some(method) = record.text("method") {
        what.extend([" ", &printable(method)]);
    }
    let Some(host) = record.text("host") else {
        return what;
    };
    what.push(' ');
    if let Some(protocol) = record.text("protocol") {
        what.extend([&*printable(protocol), "://"]);
    }
    what.push_str(&printable(host));
    if let Some(port) = record.number("port") {
        what.extend([":", &port.to_string()]);
    }
    what.push_str(&printable(record.text("path").unwrap_or_default()));
    what
}

impl VerifyArgs {
    fn run(self, default_dir: PathBuf) -> anyhow::Result<ExitCode> {
        let dir = self.dir.unwrap_or(default_dir);
        let report = verify(&dir, self.expect_head).map_err(unreadable)?;
        if self.json {
            output::line(serde_json::to_string(&report)?)?;
        } else {
            output::line(summary(&dir, &report, self.expect_head))?;
        }
        Ok(if report.is_intact() {
            ExitCode::SUCCESS
        } else {
            Code::CheckFailed.into()
        })
    }
}

fn summary(dir: &Path, report: &Report, pinned: Option<Head>) -> String {
    let Report {
        records,
        segments,
        head,
        recoveries,
        ..
    } = report;
    let mut text = match &report.fault {
        Some(fault) => format!(
            "BROKEN  {}\n{fault}\n{records} records before it fit",
            dir.display()
        ),
        None => format!(
            "intact  {}\n{records} records in {segments} files",
            dir.display()
        ),
    };
    if *recoveries > 0 {
        let _ = write!(
            text,
            "\nrecoveries after a crash: {recoveries}; see kind `recovery`"
        );
    }
    if let Some(head) = head {
        let name = if report.is_intact() {
            "head"
        } else {
            "last record that fits"
        };
        let _ = write!(text, "\n{name} {head}");
    }
    if report.is_intact() && pinned.is_none() {
        text.push_str(
            "\nto show next time that nothing is gone from the end, keep the head elsewhere and give \
             it as --expect-head",
        );
    }
    text
}

/// A log that can't be read is the caller's to mend: a wrong folder or missing rights.
fn unreadable(error: AuditError) -> anyhow::Error {
    Failure::new(Code::Usage, error).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: &str) -> StoredRecord {
        StoredRecord::parse(line.as_bytes()).expect("a record")
    }

    #[test]
    fn a_denial_is_one_row() {
        let record = record(
            r#"{"seq":7,"time":"2026-08-22T12:34:56.123456Z","kind":"request","sandbox":{"id":"sb1"},"verdict":"deny","reason":"rule_deny","rule":{"id":"no-push"},"protocol":"https","host":"api.example.com","port":443,"method":"POST","path":"/x","status":403,"bytes_sent":10,"bytes_received":20}"#,
        );
        assert_eq!(
            row(&record),
            "2026-08-22 12:34:56.123       7  sb1           deny     rule_deny                 \
             request POST https://api.example.com:443/x  status=403  sent=10  received=20  \
             rule=no-push"
        );
    }

    #[test]
    fn the_heading_stands_over_its_columns() {
        let record =
            record(r#"{"seq":1,"time":"2026-08-22T12:34:56.123456Z","kind":"gateway_start"}"#);
        let row = row(&record);
        for (title, cell) in [
            ("TIME", "2026"),
            ("VERDICT", "-        -"),
            ("WHAT", "gateway_start"),
        ] {
            assert_eq!(HEADING.find(title), row.find(cell), "{title}");
        }
    }

    #[test]
    fn b173_a_record_cannot_drive_the_terminal() {
        let record = record(
            "{\"seq\":1,\"time\":\"t\",\"kind\":\"reject\",\"host\":\"a\\u001b[2J\\u009b\\u202e\\u2028\\r\\nx\",\"detail\":\"\\u00e9\\u0000\"}",
        );
        let row = row(&record);
        assert!(
            row.ends_with(r"reject a\u{1b}[2J\u{9b}\u{202e}\u{2028}\r\nx  (é\0)"),
            "{row}"
        );
        assert!(!row.contains(char::is_control));
    }

    #[test]
    fn a_broken_log_is_named_first_and_in_words() {
        let report: Report = Report {
            records: 2,
            segments: 1,
            first_seq: Some(1),
            head: None,
            recoveries: 0,
            fault: Some(outgate_gateway::audit::Fault {
                kind: outgate_gateway::audit::FaultKind::Missing,
                file: "audit-000001.jsonl".to_owned(),
                line: 3,
                seq: Some(4),
                expected_seq: 3,
            }),
        };
        assert_eq!(
            summary(Path::new("/log"), &report, None),
            "BROKEN  /log\nmissing: `audit-000001.jsonl` line 3 should be record 3 and is record 4: \
             the records between are nowhere in the log\n2 records before it fit"
        );
    }
}
