//! Findings and test outcomes as JUnit XML, the format of test reports.
//!
//! The library escapes what XML can't hold; what a terminal or a page would take for more than text
//! is escaped before.

use outgate_policy::Severity;
use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};

use super::findings::{Checked, Finding};
use super::test::Tested;
use crate::output::{printable, printable_lines};

/// A suite for each file: that it loads, and each finding. A warning fails when it is denied.
pub(super) fn of_findings(
    checked: &[Checked],
    deny_warnings: bool,
) -> Result<String, SerializeError> {
    let mut report = Report::new("outgate policy check");
    for file in checked {
        let mut suite = TestSuite::new(printable(&file.name));
        if file.policy.is_some() {
            suite.add_test_case(case("loads", &file.name, None, TestCaseStatus::success()));
        }
        for finding in &file.findings {
            let is_failure = finding.severity == Severity::Error || deny_warnings;
            suite.add_test_case(of_finding(finding, is_failure));
        }
        report.add_test_suite(suite);
    }
    finish(&report)
}

/// A suite for each policy with its tests; what doesn't load is an error.
pub(super) fn of_tests(tested: &[Tested]) -> Result<String, SerializeError> {
    let mut report = Report::new("outgate policy test");
    for one in tested {
        let mut suite = TestSuite::new(printable(&one.policy));
        for finding in one
            .broken
            .iter()
            .filter(|found| found.severity == Severity::Error)
        {
            suite.add_test_case(of_finding(finding, true));
        }
        for outcome in &one.outcomes {
            let status = if outcome.passed() {
                TestCaseStatus::success()
            } else {
                let differences = outcome
                    .differences
                    .iter()
                    .map(|found| printable(&found.to_string()));
                let differences: Vec<String> = differences.collect();
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_type("test_failed");
                status.set_message(differences.join("; "));
                status.set_description(super::test::failure(outcome));
                status
            };
            let line = Some(outcome.line);
            suite.add_test_case(case(&outcome.name, &outcome.file, line, status));
        }
        report.add_test_suite(suite);
    }
    finish(&report)
}

fn of_finding(finding: &Finding, is_failure: bool) -> TestCase {
    let (name, line) = match finding.place.region {
        Some(at) => (
            format!("{} at {}:{}", finding.code, at.line, at.column),
            Some(at.line),
        ),
        None => (finding.code.to_owned(), None),
    };
    let status = if is_failure {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_type(finding.code);
        status.set_message(printable(&finding.message));
        status.set_description(&finding.text);
        status
    } else {
        TestCaseStatus::success()
    };
    let mut case = case(&name, &finding.place.file, line, status);
    if !is_failure {
        case.set_system_out(&finding.text);
    }
    case
}

fn case(name: &str, file: &str, line: Option<usize>, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(printable(name), status);
    let file = printable(file);
    case.set_classname(&file);
    // Not in every reader's schema, and what the others link the place with.
    case.extra.insert("file".into(), file.into());
    if let Some(line) = line {
        case.extra.insert("line".into(), line.to_string().into());
    }
    case
}

fn finish(report: &Report) -> Result<String, SerializeError> {
    let xml = report.to_string()?;
    Ok(printable_lines(xml.trim_end()))
}
