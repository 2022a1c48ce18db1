//! `outgate policy replay`: which recorded requests a policy would decide otherwise.
//!
//! Logs may hold millions of records: they are read one by one, and only changes are kept, grouped.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outgate_gateway::audit::StoredRecord;
use outgate_policy::{Decision, Policy, Reason, Verdict};
use serde::Serialize;

use super::check::counted;
use super::logs::{Asked, Decided, LogArgs, Tally};
use super::read::{Reader, load, read_with};
use crate::exit::Code;
use crate::output::{self, printable};

/// Groups that are kept. A guest can ask for as many different paths as it likes.
const MAX_GROUPS: usize = 10_000;
/// Bytes of text in them.
const MAX_GROUP_BYTES: usize = 32 * 1024 * 1024;
/// Bytes kept of a time or an id: beyond any that a gateway writes.
const MAX_TEXT: usize = 64;

/// Say which recorded requests a policy would decide otherwise.
///
/// Ends with 0 when there is none, 1 when there is one, 2 when the policy doesn't load or a log can't
/// be read.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The policy file; `-` is standard input
    file: PathBuf,
    #[command(flatten)]
    logs: LogArgs,
    /// Another layer, which has to allow a request too
    #[arg(long, value_name = "FILE")]
    layer: Vec<PathBuf>,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

impl ReplayArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let layers = std::iter::once(&self.file).chain(&self.layer);
        let policy = load(&read_with(&mut Reader::default(), layers)?)?;
        let mut replay = Replay::new(&policy);
        let tally = self.logs.each(|record, asked| replay.take(record, asked))?;
        let answer = replay.finish(tally);
        if self.json {
            output::line(serde_json::to_string(&answer)?)?;
        } else {
            answer.print()?;
        }
        Ok(if answer.counts.changes() > 0 {
            Code::CheckFailed.into()
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// How many requests came out how.
#[derive(Debug, Default, Serialize)]
struct Counts {
    /// Requests, tunnels, and refused connections and names.
    requests: u64,
    same: u64,
    now_allowed: u64,
    /// Allowed or denied outright, and now for a person to decide.
    now_asked: u64,
    /// Refused before a request could be made, and now let on to be asked.
    now_reachable: u64,
    now_denied: u64,
    other_credential: u64,
    /// A rule looks at what no record holds: query values, headers, bodies.
    undecidable: u64,
    /// Refused before they became requests, whatever the policy.
    rejected: u64,
}

impl Counts {
    const fn changes(&self) -> u64 {
        self.now_allowed
            + self.now_asked
            + self.now_reachable
            + self.now_denied
            + self.other_credential
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    NowAllowed,
    NowAsked,
    NowReachable,
    NowDenied,
    OtherCredential,
}

impl Change {
    const ALL: [Self; 5] = [
        Self::NowAllowed,
        Self::NowAsked,
        Self::NowReachable,
        Self::NowDenied,
        Self::OtherCredential,
    ];

    const fn title(self) -> &'static str {
        match self {
            Self::NowAllowed => "now allowed",
            Self::NowAsked => "now asked about",
            Self::NowReachable => "now reachable",
            Self::NowDenied => "now denied",
            Self::OtherCredential => "now with another credential",
        }
    }
}

/// What one side said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Said {
    /// `allow`, `deny` or `ask`.
    verdict: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    credential: Option<String>,
}

/// Changes that are told as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Group {
    change: Change,
    /// Empty for a tunnel, a connection or a name.
    method: String,
    /// `https://host:port`; a name alone for one that was not resolved.
    place: String,
    path: String,
    old: Said,
    new: Said,
}

/// How often a group was seen, when, and where to look it up.
#[derive(Debug, Serialize)]
struct Sightings {
    count: u64,
    first: String,
    last: String,
    /// Id of one of the records.
    record: String,
}

struct Replay<'a> {
    policy: &'a Policy,
    counts: Counts,
    groups: BTreeMap<Group, Sightings>,
    group_bytes: usize,
    ungrouped: u64,
}

impl<'a> Replay<'a> {
    fn new(policy: &'a Policy) -> Self {
        Self {
            policy,
            counts: Counts::default(),
            groups: BTreeMap::new(),
            group_bytes: 0,
            ungrouped: 0,
        }
    }

    fn take(&mut self, record: &StoredRecord, asked: Asked) {
        match asked {
            Asked::Request(decided) => self.request(record, &decided),
            Asked::Connection { to, reason } => {
                let admission = self.policy.admits(&to.destination, to.port);
                self.unread(record, to.to_string(), reason, admission.any());
            }
            Asked::Name { name, host } => {
                let is_let_on = host.is_some_and(|host| self.policy.admits_name(&host));
                self.unread(record, name, Reason::DnsNameDenied, is_let_on);
            }
            Asked::Reject { .. } => self.counts.rejected += 1,
            Asked::Other => {}
        }
    }

    fn request(&mut self, record: &StoredRecord, decided: &Decided) {
        self.counts.requests += 1;
        let request = &decided.request;
        if self.policy.depends_on_unrecorded(request) {
            self.counts.undecidable += 1;
            return;
        }
        let decision = self.policy.decide(request);
        let new = Said::now(&decision);
        let change = match (decided.policy_verdict, decision.verdict()) {
            (Verdict::Deny | Verdict::Ask, Verdict::Allow) => Change::NowAllowed,
            (Verdict::Deny | Verdict::Allow, Verdict::Ask) => Change::NowAsked,
            (Verdict::Allow | Verdict::Ask, Verdict::Deny) => Change::NowDenied,
            // What the gateway refused has no credential in its record.
            (Verdict::Allow, Verdict::Allow)
                if decided.verdict == Verdict::Allow && decided.credential != new.credential =>
            {
                Change::OtherCredential
            }
            _ => {
                self.counts.same += 1;
                return;
            }
        };
        let group = Group {
            change,
            method: request.method().to_owned(),
            place: format!("{}://{}", request.protocol(), request.authority()),
            path: request.path().to_owned(),
            old: Said::then(decided),
            new,
        };
        self.changed(record, group);
    }

    /// What was refused before anybody knew what would be asked.
    fn unread(&mut self, record: &StoredRecord, place: String, reason: Reason, is_let_on: bool) {
        self.counts.requests += 1;
        if !is_let_on {
            self.counts.same += 1;
            return;
        }
        let group = Group {
            change: Change::NowReachable,
            method: String::new(),
            place,
            path: String::new(),
            old: Said::of(Verdict::Deny, reason),
            new: Said::of(Verdict::Allow, Reason::Allowed),
        };
        self.changed(record, group);
    }

    fn changed(&mut self, record: &StoredRecord, group: Group) {
        *match group.change {
            Change::NowAllowed => &mut self.counts.now_allowed,
            Change::NowAsked => &mut self.counts.now_asked,
            Change::NowReachable => &mut self.counts.now_reachable,
            Change::NowDenied => &mut self.counts.now_denied,
            Change::OtherCredential => &mut self.counts.other_credential,
        } += 1;
        let text = |field| cut(record.text(field).unwrap_or_default());
        if let Some(seen) = self.groups.get_mut(&group) {
            seen.count += 1;
            seen.last = text("time");
            return;
        }
        let bytes = group.path.len() + group.place.len();
        if self.groups.len() >= MAX_GROUPS || self.group_bytes + bytes > MAX_GROUP_BYTES {
            self.ungrouped += 1;
            return;
        }
        self.group_bytes += bytes;
        let seen = Sightings {
            count: 1,
            first: text("time"),
            last: text("time"),
            record: text("id"),
        };
        self.groups.insert(group, seen);
    }

    fn finish(self, tally: Tally) -> Answer {
        let mut changes: Vec<GroupOf> = self
            .groups
            .into_iter()
            .map(|(group, seen)| GroupOf { group, seen })
            .collect();
        changes.sort_by_key(|one| (one.group.change, std::cmp::Reverse(one.seen.count)));
        Answer {
            counts: self.counts,
            changes,
            ungrouped: self.ungrouped,
            tally,
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

impl Said {
    fn of(verdict: Verdict, reason: Reason) -> Self {
        Self {
            verdict: verdict.to_string(),
            rule: None,
            reason: reason.to_string(),
            credential: None,
        }
    }

    fn then(decided: &Decided) -> Self {
        Self {
            rule: decided.rule.as_deref().map(cut),
            credential: decided.credential.as_deref().map(cut),
            ..Self::of(decided.policy_verdict, decided.reason)
        }
    }

    fn now(decision: &Decision) -> Self {
        let credential = decision.permit().and_then(|permit| permit.credential());
        Self {
            rule: decision.rule().map(|rule| rule.id.to_string()),
            credential: credential.map(ToString::to_string),
            ..Self::of(decision.verdict(), decision.reason())
        }
    }
}

/// `allow by github-read with github`, `deny (default_deny)`. Not escaped.
impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.verdict)?;
        match &self.rule {
            Some(rule) => write!(f, " by {rule}")?,
            None if self.reason != Reason::Allowed.as_str() => write!(f, " ({})", self.reason)?,
            None => {}
        }
        match &self.credential {
            Some(credential) => write!(f, " with {credential}"),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Serialize)]
struct GroupOf {
    #[serde(flatten)]
    group: Group,
    #[serde(flatten)]
    seen: Sightings,
}

#[derive(Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    counts: Counts,
    changes: Vec<GroupOf>,
    /// Changed requests that are in no group, because there were too many different ones.
    ungrouped: u64,
    #[serde(flatten)]
    tally: Tally,
}

impl Answer {
    fn print(&self) -> anyhow::Result<()> {
        for change in Change::ALL {
            let groups = || self.changes.iter().filter(|one| one.group.change == change);
            if groups().next().is_some() {
                output::line(format_args!("{}:", change.title()))?;
            }
            for one in groups() {
                one.print()?;
            }
        }
        if self.ungrouped > 0 {
            let ungrouped = self.ungrouped;
            output::line(format_args!(
                "{ungrouped} more changes are not listed: there were too many different ones"
            ))?;
        }
        let Counts {
            requests,
            same,
            now_allowed,
            now_asked,
            now_reachable,
            now_denied,
            other_credential,
            undecidable,
            rejected,
        } = &self.counts;
        let logs = counted(self.tally.logs, "log");
        output::line(format_args!(
            "{requests} requests in {} records of {logs}: {same} same, {now_allowed} now allowed, \
             {now_asked} now asked about, {now_reachable} now reachable, {now_denied} now denied, {other_credential} with another \
             credential, {undecidable} undecidable",
            self.tally.records,
        ))?;
        if *rejected > 0 {
            output::line(format_args!(
                "{rejected} more never became requests; no policy was asked"
            ))?;
        }
        for line in self.tally.caveats() {
            output::line(line)?;
        }
        Ok(())
    }
}

impl GroupOf {
    fn print(&self) -> anyhow::Result<()> {
        let Group {
            method,
            place,
            path,
            old,
            new,
            ..
        } = &self.group;
        let Sightings {
            count,
            first,
            last,
            record,
        } = &self.seen;
        let what = format!("{method} {place}{path}");
        output::line(format_args!(
            "  {count:>6}  {}",
            printable(what.trim_start())
        ))?;
        let lead = " ".repeat(10);
        output::line(printable(&format!("{lead}{old} -> {new}")))?;
        output::line(printable(&format!(
            "{lead}{first} to {last}, as in {record}"
        )))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outgate_policy::Source;

    use super::*;

    #[test]
    fn guests_cannot_fill_the_memory_in_silence() {
        let text = "version: 1\nrules:\n  - { id: a, action: allow, to: { hosts: [a.test] } }\n";
        let policy = Policy::load(&[Source::new("p.yaml", text)]).unwrap();
        let mut replay = Replay::new(&policy);
        let record = StoredRecord::parse(br#"{"id":"x","time":"t"}"#).unwrap();
        for at in 0..MAX_GROUPS + 5 {
            let group = Group {
                change: Change::NowDenied,
                method: "GET".to_owned(),
                place: "https://a.test:443".to_owned(),
                path: format!("/{at}"),
                old: Said::of(Verdict::Allow, Reason::Allowed),
                new: Said::of(Verdict::Deny, Reason::DefaultDeny),
            };
            replay.changed(&record, group);
        }
        let answer = replay.finish(Tally::default());
        assert_eq!(answer.changes.len(), MAX_GROUPS);
        assert_eq!(
            (answer.ungrouped, answer.counts.now_denied),
            (5, MAX_GROUPS as u64 + 5)
        );
    }
}
