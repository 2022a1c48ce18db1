//! Credentials and budgets.

use crate::document::amounts::{count, duration, size, usd};
use crate::document::fields::{Fields, Findings, choice, list, text};
use crate::document::spec::{
    At, BudgetPer, BudgetSpec, CredentialEntry, ExposeSpec, HeaderSpec, SourceSpec, VaultSpec,
};
use crate::document::yaml::Node;

const LATER_SOURCE: &[&str] = &["exec", "oauth", "aws", "gcp", "azure", "github_app"];
const LATER_CREDENTIAL: &[&str] = &["sign", "refresh", "scope", "query", "foreign"];
const LATER_ATTACH: &[&str] = &["query", "body", "basic", "bearer", "cookie", "path", "sign"];

pub(super) fn credential(node: &Node, found: &mut Findings) -> Option<CredentialEntry> {
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
    let before = found.count();
    let mut given = Vec::new();
    if let Some(node) = fields.optional("env") {
        given.push(text(node, found).map(|at| at.map(SourceSpec::Env)));
    }
    if let Some(node) = fields.optional("file") {
        given.push(text(node, found).map(|at| at.map(SourceSpec::File)));
    }
    if let Some(node) = fields.optional("vault") {
        let span = node.span.clone();
        given.push(vault(node, found).map(|vault| At {
            value: SourceSpec::Vault(vault),
            span,
        }));
    }
    fields.finish(LATER_SOURCE, found);
    let how_many = given.len();
    match given.pop() {
        Some(only) if how_many == 1 => only,
        None if found.count() > before => None,
        _ => {
            let message = "`source` needs exactly one of `env`, `file` and `vault`";
            let help = "for example: `source: { env: MY_TOKEN }`";
            found.error_help("bad_source", &span, message, help);
            None
        }
    }
}

fn vault(node: &Node, found: &mut Findings) -> Option<VaultSpec> {
    let mut fields = Fields::of(node, "`vault`", found)?;
    let mut word = |key, found: &mut Findings| {
        let node = fields.required(key, found);
        node.and_then(|node| text(node, found))
    };
    let mount = word("mount", found);
    let path = word("path", found);
    let field = word("field", found);
    fields.finish(&["version", "namespace", "engine", "role"], found);
    Some(VaultSpec {
        mount: mount?,
        path: path?,
        field: field?,
    })
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

pub(super) fn budget(node: &Node, found: &mut Findings) -> Option<BudgetSpec> {
    let mut fields = Fields::of(node, "a budget", found)?;
    let name = fields.required("name", found);
    let name = name.and_then(|node| text(node, found));
    let words = [
        ("sandbox", BudgetPer::Sandbox),
        ("policy", BudgetPer::Policy),
    ];
    let per = fields.required("per", found);
    let per = per.and_then(|node| choice(node, found, &words));
    let window = fields.required("window", found);
    let window = window.and_then(|node| duration(node, found));
    let requests = fields.read("requests", found, count);
    let egress = fields.read("egress", found, size);
    let tokens = fields.read("tokens", found, count);
    let usd = fields.read("usd", found, usd);
    fields.finish(&["ingress", "warn", "labels"], found);
    Some(BudgetSpec {
        name: name?,
        per: per?,
        window: window?,
        requests,
        egress,
        tokens,
        usd,
    })
}
