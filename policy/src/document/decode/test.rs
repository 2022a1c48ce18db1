//! Tests and the requests that they make.

use std::collections::BTreeMap;

use super::rule::protocol;
use crate::document::fields::{Fields, Findings, choice, list, pairs, text};
use crate::document::spec::{At, Expectation, RequestMap, RequestSpec, TestSpec};
use crate::document::yaml::{Kind, Node};

pub(super) fn test(node: &Node, found: &mut Findings) -> Option<TestSpec> {
    let mut fields = Fields::of(node, "a test", found)?;
    let name = fields
        .required("name", found)
        .and_then(|node| text(node, found));
    let request = fields
        .required("request", found)
        .and_then(|node| request(node, found));
    let words = [
        ("allow", Expectation::Allow),
        ("deny", Expectation::Deny),
        ("ask", Expectation::Ask),
        ("reject", Expectation::Reject),
    ];
    let expect = fields.required("expect", found);
    let expect = expect.and_then(|node| choice(node, found, &words));
    let rule = fields.optional("rule").and_then(|node| text(node, found));
    let credential = fields
        .optional("credential")
        .and_then(|node| text(node, found));
    let reason = fields.optional("reason").and_then(|node| text(node, found));
    fields.finish(&["sandbox", "observed"], found);
    Some(TestSpec {
        name: name?,
        request: request?,
        expect: expect?,
        rule,
        credential,
        reason,
    })
}

fn request(node: &Node, found: &mut Findings) -> Option<RequestSpec> {
    if !matches!(node.kind, Kind::Map(_)) {
        return text(node, found).map(|at| RequestSpec::Line(at.value));
    }
    let mut fields = Fields::of(node, "`request`", found)?;
    let word = |node: Option<&Node>, found: &mut Findings| {
        node.and_then(|node| text(node, found))
            .map(|at: At<String>| at.value)
    };
    let method = word(fields.optional("method"), found);
    let url = word(fields.required("url", found), found);
    let spoken = fields
        .optional("protocol")
        .and_then(|node| protocol(node, found));
    let sni = word(fields.optional("sni"), found);
    let connect = word(fields.optional("connect"), found);
    let headers = fields.read("headers", found, |node, found| {
        pairs(node, "`headers`", found, header)
    });
    let body = fields.optional("body").and_then(|node| match &node.kind {
        // Whatever a body is, it is text: `{}` and `1` need quotes only where YAML does.
        Kind::Scalar { text, .. } => Some(text.clone()),
        Kind::List(_) | Kind::Map(_) => word(Some(node), found),
    });
    let sandbox = fields.read("sandbox", found, sandbox);
    fields.finish(&[], found);
    let protocol = spoken.map(|at| at.value);
    Some(RequestSpec::Map(RequestMap {
        method,
        url: url?,
        protocol,
        sni,
        connect,
        headers: headers.map(|headers| {
            let plain = |(name, values): (At<String>, Vec<String>)| (name.value, values);
            headers.into_iter().map(plain).collect()
        }),
        body,
        sandbox,
    }))
}

/// A value, or a list of values.
fn header(_: &At<String>, node: &Node, found: &mut Findings) -> Option<Vec<String>> {
    if let Kind::List(_) = node.kind {
        let values = list(node, found, text)?;
        return Some(values.into_iter().map(|at| at.value).collect());
    }
    text(node, found).map(|at| vec![at.value])
}

fn sandbox(node: &Node, found: &mut Findings) -> Option<BTreeMap<String, String>> {
    let mut fields = Fields::of(node, "`sandbox`", found)?;
    let labels = fields.required("labels", found);
    let labels =
        labels.and_then(|node| pairs(node, "labels", found, |_, value, found| text(value, found)));
    fields.finish(&[], found);
    let plain = |(name, value): (At<String>, At<String>)| (name.value, value.value);
    Some(labels?.into_iter().map(plain).collect())
}
