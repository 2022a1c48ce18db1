//! The tree of a file read into the types of the language.
//!
//! The words listed as `LATER_…` belong to the language and are not enforced by this version. They
//! are errors: a rule that can't be kept must not look as if it were.

use std::sync::Arc;

use super::fields::{Fields, Findings, choice, flag, list, port, text};
use super::spec::{
    Action, At, CredentialEntry, EncodedSlash, Expectation, ExposeSpec, HeaderSpec, HttpSpec, Mode,
    PolicySpec, RequestMap, RequestSpec, RuleSpec, SourceSpec, TestSpec, ToSpec,
};
use super::yaml::{self, Kind, Node};
use crate::{Protocol, Source};

const LATER_TOP: &[&str] = &["include", "budgets", "sandboxes", "limits"];
const LATER_RULE: &[&str] = &[
    "ask",
    "limits",
    "tls",
    "rate",
    "concurrency",
    "request_body",
    "response_body",
    "duration",
    "grpc",
    "git",
    "graphql",
    "mcp",
    "websocket",
];
const LATER_HTTP: &[&str] = &[
    "query",
    "headers",
    "content_types",
    "content_type",
    "max_body",
    "body",
    "grpc",
    "git",
    "graphql",
    "mcp",
    "websocket",
];
const LATER_SOURCE: &[&str] = &[
    "vault",
    "exec",
    "oauth",
    "aws",
    "gcp",
    "azure",
    "github_app",
];
const LATER_CREDENTIAL: &[&str] = &["sign", "refresh", "scope", "query"];
const LATER_ATTACH: &[&str] = &["query", "body", "basic", "sign"];
const LATER_TEST: &[&str] = &["sandbox"];
const LATER_REQUEST: &[&str] = &["headers", "body", "sandbox"];

/// The version of the language that this crate reads.
const VERSION: &str = "1";

/// Reads one source. `None` only together with at least one finding.
pub(crate) fn decode(source: &Arc<Source>) -> (Option<PolicySpec>, Findings) {
    let mut found = Findings::new(Arc::clone(source));
    let root = match yaml::parse(source) {
        Ok(Some(root)) => root,
        Ok(None) => {
            let help = "a policy that denies everything is the single line `version: 1`";
            found.error_help("empty_file", &(0..0), "the file is empty", help);
            return (None, found);
        }
        Err(errors) => {
            found.list = errors;
            return (None, found);
        }
    };
    let spec = policy(&root, &mut found);
    (spec, found)
}

fn policy(node: &Node, found: &mut Findings) -> Option<PolicySpec> {
    let mut fields = Fields::of(node, "a policy", found)?;
    let span = fields.span.clone();
    if let Some(node) = fields.required("version", found) {
        version(node, found);
    }
    let name = fields.optional("name").and_then(|node| text(node, found));
    let description = fields
        .optional("description")
        .and_then(|node| text(node, found));
    let mode = fields.optional("mode");
    let mode =
        mode.and_then(|node| choice(node, found, &[("enforce", Mode::Enforce)], &["observe"]));
    let rules = fields
        .optional("rules")
        .and_then(|node| list(node, found, rule));
    let credentials = fields
        .optional("credentials")
        .and_then(|node| list(node, found, credential));
    let tests = fields
        .optional("tests")
        .and_then(|node| list(node, found, test));
    fields.finish(LATER_TOP, found);
    Some(PolicySpec {
        version: 1,
        name: name.map(|at| at.value),
        description: description.map(|at| at.value),
        mode: mode.map(|at| at.value),
        rules: rules.unwrap_or_default(),
        credentials: credentials.unwrap_or_default(),
        tests: tests.unwrap_or_default(),
        span,
    })
}

fn version(node: &Node, found: &mut Findings) {
    let known = matches!(&node.kind, Kind::Scalar { text, plain: true } if text == VERSION);
    if !known {
        let message = "this version of outgate reads version 1 of the policy language only";
        found.error_help("unknown_version", &node.span, message, "write `version: 1`");
    }
}

fn rule(node: &Node, found: &mut Findings) -> Option<RuleSpec> {
    let mut fields = Fields::of(node, "a rule", found)?;
    let id = fields
        .required("id", found)
        .and_then(|node| text(node, found));
    let actions = [("allow", Action::Allow), ("deny", Action::Deny)];
    let action = fields.required("action", found);
    let action = action.and_then(|node| choice(node, found, &actions, &["ask"]));
    let protocol = fields
        .optional("protocol")
        .and_then(|node| protocol(node, found));
    let to = fields
        .required("to", found)
        .and_then(|node| to(node, found));
    let http = fields.optional("http").and_then(|node| http(node, found));
    let credential = fields
        .optional("credential")
        .and_then(|node| text(node, found));
    let message = fields
        .optional("message")
        .and_then(|node| text(node, found));
    let suffix = fields
        .optional("allow_public_suffix")
        .and_then(|node| flag(node, found));
    fields.finish(LATER_RULE, found);
    Some(RuleSpec {
        id: id?,
        action: action?,
        protocol,
        to: to?,
        http,
        credential,
        message,
        allow_public_suffix: suffix.unwrap_or(false),
    })
}

fn protocol(node: &Node, found: &mut Findings) -> Option<At<Protocol>> {
    let words =
        [Protocol::Https, Protocol::Http, Protocol::Tcp].map(|known| (known.as_str(), known));
    choice(node, found, &words, &["udp"])
}

fn to(node: &Node, found: &mut Findings) -> Option<ToSpec> {
    let mut fields = Fields::of(node, "`to`", found)?;
    let hosts = fields
        .optional("hosts")
        .and_then(|node| list(node, found, text));
    let ips = fields
        .optional("ips")
        .and_then(|node| list(node, found, text));
    let ports = fields
        .optional("ports")
        .and_then(|node| list(node, found, port));
    let private = fields.optional("private");
    let private_span = private.map(|node| node.span.clone());
    let private = private.and_then(|node| flag(node, found)).unwrap_or(false);
    let span = fields.span.clone();
    fields.finish(&[], found);
    Some(ToSpec {
        hosts,
        ips,
        ports,
        private,
        span,
        private_span,
    })
}

fn http(node: &Node, found: &mut Findings) -> Option<HttpSpec> {
    let mut fields = Fields::of(node, "`http`", found)?;
    let methods = fields
        .optional("methods")
        .and_then(|node| list(node, found, text));
    let paths = fields
        .optional("paths")
        .and_then(|node| list(node, found, text));
    let words = [
        ("refuse", EncodedSlash::Refuse),
        ("data", EncodedSlash::Data),
    ];
    let encoded_slash = fields.optional("encoded_slash");
    let encoded_slash = encoded_slash.and_then(|node| choice(node, found, &words, &[]));
    let span = fields.span.clone();
    fields.finish(LATER_HTTP, found);
    Some(HttpSpec {
        methods,
        paths,
        encoded_slash,
        span,
    })
}

fn credential(node: &Node, found: &mut Findings) -> Option<CredentialEntry> {
    let mut fields = Fields::of(node, "a credential", found)?;
    let name = fields
        .required("name", found)
        .and_then(|node| text(node, found));
    let source = fields
        .required("source", found)
        .and_then(|node| source(node, found));
    let expose = fields
        .optional("expose")
        .and_then(|node| expose(node, found));
    let attach = fields.required("attach", found);
    let span = attach.map_or_else(|| fields.span.clone(), |node| node.span.clone());
    let attach = attach.and_then(|node| list(node, found, header));
    fields.finish(LATER_CREDENTIAL, found);
    Some(CredentialEntry {
        name: name?,
        source: source?,
        expose,
        attach: attach?,
        span,
    })
}

fn source(node: &Node, found: &mut Findings) -> Option<At<SourceSpec>> {
    let mut fields = Fields::of(node, "`source`", found)?;
    let span = fields.span.clone();
    let env = fields.optional("env").map(|node| text(node, found));
    let file = fields.optional("file").map(|node| text(node, found));
    let before = found.list.len();
    fields.finish(LATER_SOURCE, found);
    match (env, file) {
        (Some(env), None) => env.map(|at| At {
            value: SourceSpec::Env(at.value),
            span: at.span,
        }),
        (None, Some(file)) => file.map(|at| At {
            value: SourceSpec::File(at.value),
            span: at.span,
        }),
        (None, None) if found.list.len() > before => None,
        _ => {
            let message = "`source` needs exactly one of `env` and `file`";
            found.error_help(
                "bad_source",
                &span,
                message,
                "for example: `source: { env: MY_TOKEN }`",
            );
            None
        }
    }
}

fn expose(node: &Node, found: &mut Findings) -> Option<ExposeSpec> {
    let mut fields = Fields::of(node, "`expose`", found)?;
    let env = fields
        .required("env", found)
        .and_then(|node| text(node, found));
    let shape = fields.optional("shape").and_then(|node| text(node, found));
    fields.finish(&[], found);
    Some(ExposeSpec { env: env?, shape })
}

fn header(node: &Node, found: &mut Findings) -> Option<HeaderSpec> {
    let mut fields = Fields::of(node, "an entry of `attach`", found)?;
    let header = fields
        .required("header", found)
        .and_then(|node| text(node, found));
    let format = fields
        .required("format", found)
        .and_then(|node| text(node, found));
    fields.finish(LATER_ATTACH, found);
    Some(HeaderSpec {
        header: header?,
        format: format?,
    })
}

fn test(node: &Node, found: &mut Findings) -> Option<TestSpec> {
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
        ("reject", Expectation::Reject),
    ];
    let expect = fields.required("expect", found);
    let expect = expect.and_then(|node| choice(node, found, &words, &["ask"]));
    let rule = fields.optional("rule").and_then(|node| text(node, found));
    let credential = fields
        .optional("credential")
        .and_then(|node| text(node, found));
    let reason = fields.optional("reason").and_then(|node| text(node, found));
    fields.finish(LATER_TEST, found);
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
    fields.finish(LATER_REQUEST, found);
    let protocol = spoken.map(|at| at.value);
    Some(RequestSpec::Map(RequestMap {
        method,
        url: url?,
        protocol,
        sni,
        connect,
    }))
}
