//! Matchers on what protocols over HTTP ask for: facts of [`crate::body`], weighed for a rule.

use std::fmt;

use super::{Fit, texts};
use crate::CanonicalRequest;
use crate::body::{
    BodyPrefix, Carrier, Content as Body, GitKind, GitRequest, Mcp, OperationPattern, Unclear,
    git_request, graphql_request, grpc_call, mcp_message, updated_refs,
};
use crate::document::GitOperation;
use crate::glob::{PathGlob, TextGlob};
use crate::yaml_text::quoted;

impl From<Unclear> for Fit {
    fn from(unclear: Unclear) -> Self {
        Self::Unclear(unclear.to_string())
    }
}

/// What was read of the request: header fields always, the body as far as it was.
pub(super) fn body_of(request: &CanonicalRequest) -> Result<Body<'_>, Fit> {
    let headers = request.headers();
    let headers =
        headers.ok_or_else(|| Fit::Unclear("the header fields were not read".to_owned()))?;
    let unread = BodyPrefix {
        bytes: &[],
        complete: false,
    };
    Ok(Body::new(
        headers.values("content-type"),
        headers.values("content-encoding"),
        request.body().unwrap_or(unread),
    ))
}

/// Calls of a gRPC service.
#[derive(Clone, Debug)]
pub(crate) struct Grpc {
    pub(crate) service: String,
    /// `None` is all.
    pub(crate) methods: Option<Box<[TextGlob]>>,
}

impl Grpc {
    /// Whether the text can be the full name of a service.
    pub(crate) fn is_service(text: &str) -> bool {
        let name = |part: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            part.bytes().all(plain)
                && part
                    .bytes()
                    .next()
                    .is_some_and(|first| !first.is_ascii_digit())
        };
        text.split('.').all(name)
    }

    pub(super) fn fit(&self, request: &CanonicalRequest, is_deny: bool) -> Fit {
        let body = match body_of(request) {
            Ok(body) => body,
            Err(unclear) => return unclear,
        };
        let call = match grpc_call(request, &body) {
            Ok(Some(call)) => call,
            Ok(None) => return Fit::No,
            Err(unclear) => return unclear.into(),
        };
        let method = || {
            let methods = self.methods.as_deref();
            methods.is_none_or(|methods| {
                methods
                    .iter()
                    .any(|glob| glob.matches(call.method.as_bytes()))
            })
        };
        // Some servers take a call for one whatever its content type says.
        let carried = is_deny || call.carrier != Carrier::Unknown;
        Fit::when(carried && call.service == self.service && method())
    }
}

/// As a policy writes it.
impl fmt::Display for Grpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ service: {}", quoted(&self.service))?;
        if let Some(methods) = &self.methods {
            write!(f, ", methods: {}", texts(methods))?;
        }
        f.write_str(" }")
    }
}

/// Fetches from and pushes to repositories. `None` is all.
#[derive(Clone, Debug)]
pub(crate) struct Git {
    pub(crate) repos: Option<Box<[PathGlob]>>,
    pub(crate) operations: Option<Box<[GitOperation]>>,
    pub(crate) refs: Option<Box<[PathGlob]>>,
}

impl Git {
    pub(super) const fn looks_at_refs(&self) -> bool {
        self.refs.is_some()
    }

    pub(super) fn fit(&self, request: &CanonicalRequest, is_deny: bool) -> Fit {
        let body = match body_of(request) {
            Ok(body) => body,
            Err(unclear) => return unclear,
        };
        let asked = match git_request(request, &body) {
            Ok(Some(asked)) => asked,
            Ok(None) => return Fit::No,
            Err(unclear) => return unclear.into(),
        };
        if !self.is_for(&asked, is_deny) {
            return Fit::No;
        }
        let Some(wanted) = self.refs.as_deref().filter(|_| is_push(&asked)) else {
            // What a deny rule says of refs denies no fetch and no listing.
            return Fit::when(self.refs.is_none() || !is_deny);
        };
        let matches = |name: &str| wanted.iter().any(|glob| glob.matches(name.as_bytes()));
        match updated_refs(&body) {
            Ok(updates) if is_deny => Fit::when(updates.iter().any(|ref_| matches(&ref_.name))),
            Ok(updates) => Fit::when(updates.iter().all(|ref_| matches(&ref_.name))),
            Err(unclear) => unclear.into(),
        }
    }

    fn is_for(&self, asked: &GitRequest, is_deny: bool) -> bool {
        // Most servers ignore the case of a repository's name.
        let repo = if is_deny {
            asked.repo.to_ascii_lowercase()
        } else {
            asked.repo.clone()
        };
        let named = |glob: &PathGlob| {
            glob.matches(asked.repo.as_bytes()) || (is_deny && glob.matches(repo.as_bytes()))
        };
        let operation = match asked.operation {
            crate::body::GitOperation::Fetch => GitOperation::Fetch,
            crate::body::GitOperation::Push => GitOperation::Push,
        };
        self.repos
            .as_deref()
            .is_none_or(|repos| repos.iter().any(named))
            && self
                .operations
                .as_deref()
                .is_none_or(|operations| operations.contains(&operation))
    }
}

fn is_push(asked: &GitRequest) -> bool {
    asked.operation == crate::body::GitOperation::Push && asked.kind == GitKind::Rpc
}

/// As a policy writes it.
impl fmt::Display for Git {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(repos) = &self.repos {
            parts.push(format!("repos: {}", texts(repos)));
        }
        if let Some(operations) = &self.operations {
            let words: Vec<&str> = operations.iter().map(|one| one.as_str()).collect();
            parts.push(format!("operations: [{}]", words.join(", ")));
        }
        if let Some(refs) = &self.refs {
            parts.push(format!("refs: {}", texts(refs)));
        }
        write!(f, "{{ {} }}", parts.join(", "))
    }
}

/// For an allow every root field has to be wanted, for a deny one is enough.
pub(super) fn graphql(
    wanted: &[OperationPattern],
    request: &CanonicalRequest,
    is_deny: bool,
) -> Fit {
    let body = match body_of(request) {
        Ok(body) => body,
        Err(unclear) => return unclear,
    };
    let asked = match graphql_request(request, &body) {
        Ok(Some(asked)) => asked,
        Ok(None) => return Fit::No,
        Err(unclear) => return unclear.into(),
    };
    let mut fields = asked.fields.iter().map(|field| {
        wanted
            .iter()
            .any(|pattern| pattern.matches(asked.operation, field))
    });
    Fit::when(if is_deny {
        fields.any(|matches| matches)
    } else {
        fields.all(|matches| matches)
    })
}

/// An allow lets messages through that call no tool, a deny is for calls only.
pub(super) fn mcp(tools: &[TextGlob], request: &CanonicalRequest, is_deny: bool) -> Fit {
    let body = match body_of(request) {
        Ok(body) => body,
        Err(unclear) => return unclear,
    };
    match mcp_message(request, &body) {
        Ok(Some(Mcp::ToolCall(name))) => {
            Fit::when(tools.iter().any(|tool| is_tool(tool, &name, is_deny)))
        }
        Ok(Some(Mcp::Other(_) | Mcp::Response | Mcp::Session)) => Fit::when(!is_deny),
        Ok(None) => Fit::No,
        Err(unclear) => unclear.into(),
    }
}

/// Some servers fold the case of a tool's name.
fn is_tool(tool: &TextGlob, name: &str, is_deny: bool) -> bool {
    let folded = || tool.folded().matches(name.to_ascii_lowercase().as_bytes());
    tool.matches(name.as_bytes()) || (is_deny && folded())
}
