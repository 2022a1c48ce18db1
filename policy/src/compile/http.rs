//! Methods and path patterns.

use crate::document::{At, Findings, HttpSpec};
use crate::glob::{GlobError, PathGlob, PathPatterns};

/// Methods that are denied before any rule is asked.
const NEVER: [&str; 3] = ["TRACE", "TRACK", "CONNECT"];

/// Most methods of a rule; some forty are registered.
const MAX_METHODS: usize = 100;

pub(super) fn methods(http: &HttpSpec, found: &mut Findings) -> Option<Vec<String>> {
    let methods = http.methods.as_ref()?;
    if methods.len() > MAX_METHODS {
        let message = format!("a rule with more than {MAX_METHODS} methods");
        let help = "leave `methods` out to match every method";
        found.error_help("bad_method", &http.span, message, help);
    }
    for method in methods {
        let upper = method.value.to_ascii_uppercase();
        let shown = method.value.escape_default();
        if method.value == "*" {
            let help = "leave `methods` out to match every method";
            found.error_help("bad_method", &method.span, "`*` is no method", help);
        } else if !crate::canonical::is_token(&method.value) {
            found.error(
                "bad_method",
                &method.span,
                format!("`{shown}` is no method"),
            );
        } else if NEVER.contains(&upper.as_str()) {
            found.error(
                "bad_method",
                &method.span,
                format!("`{shown}` is always denied, so no rule can name it"),
            );
        } else if upper != method.value {
            let message = format!("`{shown}` would never match: methods are upper case");
            found.error_help(
                "bad_method",
                &method.span,
                message,
                format!("write `{upper}`"),
            );
        }
    }
    Some(methods.iter().map(|method| method.value.clone()).collect())
}

pub(super) fn paths(
    http: &HttpSpec,
    is_deny: bool,
    slash_is_data: bool,
    found: &mut Findings,
) -> Option<PathPatterns> {
    let patterns = http.paths.as_ref()?;
    let mut globs = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        match PathGlob::parse(&pattern.value) {
            Ok(_) if pattern.value.contains("%2F") && !is_deny && !slash_is_data => {
                let message = format!(
                    "`{}` never matches: this rule refuses encoded slashes",
                    pattern.value
                );
                let help = "add `encoded_slash: data` to `http`";
                found.error_help("bad_path", &pattern.span, message, help);
            }
            Ok(glob) => globs.push(glob),
            Err(error) => report_glob("bad_path", pattern, error, found),
        }
    }
    Some(if is_deny {
        PathPatterns::for_deny(globs)
    } else {
        PathPatterns::new(globs)
    })
}

pub(super) fn report_glob(
    code: &'static str,
    pattern: &At<String>,
    error: GlobError,
    found: &mut Findings,
) {
    match error.help {
        Some(help) => found.error_help(code, &pattern.span, error.message, help),
        None => found.error(code, &pattern.span, error.message),
    }
}
