//! `outgate policy suggest`: the narrowest rules that would have allowed what was denied.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outgate_gateway::audit::StoredRecord;
use outgate_policy::{Destination, Policy, Reason, Sighting, Suggester, Suggestions, Verdict};
use serde::Serialize;

use super::logs::{Asked, Decided, LogArgs, Tally};
use super::read::{Reader, load, read_with};
use crate::output;

/// Write the rules that would have allowed what was denied.
///
/// The answer is a policy that loads. What was asked for is not always what is needed: read each rule
/// before you keep it.
#[derive(Debug, Args)]
pub(crate) struct SuggestArgs {
    #[command(flatten)]
    logs: LogArgs,
    /// Only what this policy still denies, with ids that are free in it; give one for each layer
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,
    /// Leave out what was asked fewer than N times
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_count: u64,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    suggestions: &'a Suggestions,
    /// The rules as a file.
    policy: String,
    #[serde(flatten)]
    tally: &'a Tally,
}

impl SuggestArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let policy = if self.policy.is_empty() {
            None
        } else {
            Some(load(&read_with(&mut Reader::default(), &self.policy)?)?)
        };
        let rules = policy.iter().flat_map(Policy::rules);
        let mut denials = Denials {
            policy: policy.as_ref(),
            suggester: Suggester::new(rules.map(|rule| rule.id.as_ref())),
        };
        let tally = self
            .logs
            .each(|record, asked| denials.take(record, &asked))?;
        let suggestions = denials.suggester.finish(self.min_count);
        let text = suggestions.to_string();
        if self.json {
            let answer = Answer {
                suggestions: &suggestions,
                policy: text,
                tally: &tally,
            };
            output::line(serde_json::to_string(&answer)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        output::line(text.trim_end())?;
        for line in tally.caveats() {
            output::line(format_args!("# {line}"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

struct Denials<'a> {
    /// What would be in force.
    policy: Option<&'a Policy>,
    suggester: Suggester,
}

impl Denials<'_> {
    fn take(&mut self, record: &StoredRecord, asked: &Asked) {
        let sighting = Sighting {
            time: record.text("time").unwrap_or_default(),
            sandbox: record.text("sandbox.id").unwrap_or_default(),
            count: record.number("count").unwrap_or(1),
        };
        match asked {
            Asked::Request(decided)
                if decided.verdict != Verdict::Allow || decided.would_deny.is_some() =>
            {
                self.request(decided, sighting);
            }
            Asked::Connection { to, reason } => {
                let admission = self
                    .policy
                    .map(|policy| policy.admits(&to.destination, to.port));
                match admission {
                    Some(admission) if admission.any() => {}
                    Some(admission) => {
                        self.connection(&to.destination, to.port, admission.reason(), sighting);
                    }
                    None => self.connection(&to.destination, to.port, *reason, sighting),
                }
            }
            Asked::Name { name, host: None } => {
                let why = Reason::BadHost.explanation();
                self.suggester.leave_out(name, why, sighting);
            }
            Asked::Name {
                host: Some(host), ..
            } => {
                if !self.policy.is_some_and(|policy| policy.admits_name(host)) {
                    let name = Destination::Name(host.clone());
                    self.suggester.unread(&name, None, sighting);
                }
            }
            Asked::Reject { reason } => {
                let why = format!("{} No policy was asked.", reason.explanation());
                self.suggester.leave_out(reason.as_str(), &why, sighting);
            }
            Asked::Request(_) | Asked::Other => {}
        }
    }

    fn request(&mut self, decided: &Decided, sighting: Sighting<'_>) {
        let request = &decided.request;
        let mut reason = decided.would_deny.unwrap_or(decided.reason);
        let mut rule = decided.rule.clone();
        if let Some(policy) = self.policy {
            let decision = policy.decide(request);
            let is_allowed = decision.verdict() == Verdict::Allow;
            let was_refused = decided.policy_verdict != Verdict::Allow;
            if is_allowed && (was_refused || decided.would_deny.is_some()) {
                return;
            }
            if !is_allowed {
                reason = decision.reason();
                rule = decision.rule().map(|rule| rule.id.to_string());
            }
        }
        if is_openable(reason) {
            self.suggester.denied(request, sighting);
            return;
        }
        let rule = rule.filter(|_| reason == Reason::RuleDeny);
        let why = match rule {
            Some(rule) => format!("{reason} by {rule}: {}", reason.how_to_fix()),
            None => format!("{reason}: {}", reason.how_to_fix()),
        };
        self.suggester
            .leave_out(&request.to_string(), &why, sighting);
    }

    fn connection(&mut self, to: &Destination, port: u16, reason: Reason, sighting: Sighting<'_>) {
        if is_openable(reason) {
            self.suggester.unread(to, Some(port), sighting);
        } else {
            let why = format!("{reason}: {}", reason.how_to_fix());
            self.suggester
                .leave_out(&format!("{to} port {port}"), &why, sighting);
        }
    }
}

/// Whether an allow rule changes anything about it.
const fn is_openable(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::DefaultDeny
            | Reason::NoPolicy
            | Reason::ProtocolNotAllowed
            | Reason::PrivateAddress
            | Reason::EncodedSlash
    )
}
