//! A place that a client's configuration names: an address read strictly, with where it was read.

use std::fmt;
use std::path::Path;

use outgate_policy::{
    AddressClass, Authority, CanonicalRequest, Destination, Protocol, RequestParts, RequestUrl,
};

use super::PresetError;
use super::error::shown;

/// Where something was read, for people: in one line, without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin(String);

impl Origin {
    /// An environment variable.
    pub(super) fn variable(name: &str) -> Self {
        Self(format!("`{}`", name.escape_debug()))
    }

    /// A file as a whole.
    pub(super) fn file(file: &Path) -> Self {
        Self(format!("`{}`", shown(file)))
    }

    /// A line of a file, from 1.
    pub(super) fn line(file: &Path, line: usize) -> Self {
        Self(format!("`{}`, line {line}", shown(file)))
    }

    /// The client's own answer.
    pub(super) fn answer(client: &str) -> Self {
        Self(format!("the default of {client}"))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bytes of a path. A pattern may have 1024, and escapes make a path longer.
pub(super) const MAX_PATH: usize = 256;

/// Protocol, host, port and path of an address; what else an address can hold is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) protocol: Protocol,
    pub(super) authority: Authority,
    /// Canonical, without a slash at its end: empty for the root.
    pub(super) path: String,
    pub(super) has_encoded_slash: bool,
}

/// What came of reading an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// A place that can be opened.
    Site(Site),
    /// The machine itself, which is another one in the sandbox.
    ThisMachine,
}

impl Site {
    /// Reads an address; what a person should know of it is added to `notes`.
    ///
    /// # Errors
    /// [`PresetError::Malformed`] for what is no http or https address, or can't be opened.
    pub(super) fn read(
        text: &str,
        origin: &Origin,
        notes: &mut Vec<String>,
    ) -> Result<Reading, PresetError> {
        let text = text.trim();
        let malformed = |what: String| PresetError::malformed(origin, what);
        let (address, has_login) = without_login(text);
        // A secret may be anywhere in a text that doesn't read as an address.
        let explain = |detail: String| match text.contains('@') {
            true => malformed("this is no http or https address".to_owned()),
            false => malformed(format!("this is no http or https address: {detail}")),
        };
        let url = RequestUrl::parse(&address).map_err(|reject| explain(reject.detail))?;
        if !url.protocol.is_http() {
            return Err(explain("it is a tcp address".to_owned()));
        }
        let (path, query) = match url.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (url.target.as_str(), None),
        };
        let request = CanonicalRequest::new(RequestParts {
            protocol: url.protocol,
            authority: &url.authority,
            method: "GET",
            target: path,
            body_len: None,
        })
        .map_err(|reject| explain(reject.detail))?;
        // In a pattern `[{]` in front of `**` is read as a group that is still open.
        if request.path().contains(['{', '}']) {
            return Err(malformed(
                "the path has a brace; write it as `%7B` or `%7D`".to_owned(),
            ));
        }
        if request.path().len() > MAX_PATH {
            return Err(malformed(format!(
                "the path is longer than {MAX_PATH} bytes"
            )));
        }
        if is_this_machine(&url.authority.destination) {
            return Ok(Reading::ThisMachine);
        }
        check_destination(&url.authority.destination, origin)?;
        if has_login {
            notes.push(format!(
                "{origin} holds a user name or password for {}; it is left out here: declare a credential for that host, and the gateway attaches it",
                url.authority
            ));
        }
        if query.is_some_and(|query| !query.is_empty()) {
            notes.push(format!(
                "{origin} holds a query, which may be a secret; it is left out here, and every query is allowed"
            ));
        }
        Ok(Reading::Site(Self {
            protocol: url.protocol,
            has_encoded_slash: request.has_encoded_slash(),
            path: request.path().trim_end_matches('/').to_owned(),
            authority: url.authority,
        }))
    }

    /// An address below this place's host; `path` is canonical.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.protocol, self.host_and_port())
    }

    /// The authority as people write it: without the default port.
    pub(super) fn host_and_port(&self) -> String {
        let Authority { destination, port } = &self.authority;
        if self.protocol.default_port() == Some(*port) {
            destination.to_string()
        } else {
            self.authority.to_string()
        }
    }

    /// Whether the place is inside of a network by what its name or address is. Names are not
    /// resolved here: a policy must not depend on what a resolver says today.
    pub(super) fn is_private(&self) -> bool {
        match &self.authority.destination {
            Destination::Ip(address) => AddressClass::of(*address) == AddressClass::Private,
            Destination::Name(host) => {
                let name = host.as_str();
                let last = name.rsplit('.').next().unwrap_or(name);
                !name.contains('.') || name.ends_with(".home.arpa") || LOCAL.contains(&last)
            }
        }
    }
}

/// Top level names that networks use inside and nobody can register (RFC 6762, appendix G).
const LOCAL: [&str; 7] = [
    "corp", "home", "internal", "intranet", "lan", "local", "private",
];

/// Removes `user:password@`, and says whether there was one.
fn without_login(text: &str) -> (String, bool) {
    let Some((scheme, rest)) = text.split_once("://") else {
        return (text.to_owned(), false);
    };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => (format!("{scheme}://{host}{target}"), true),
        None => (text.to_owned(), false),
    }
}

fn is_this_machine(destination: &Destination) -> bool {
    match destination {
        Destination::Ip(address) => address.is_loopback() || address.is_unspecified(),
        Destination::Name(host) => {
            host.as_str() == "localhost" || host.as_str().ends_with(".localhost")
        }
    }
}

fn check_destination(destination: &Destination, origin: &Origin) -> Result<(), PresetError> {
    let what = match destination {
        // The word means every host there is in a policy.
        Destination::Name(host) if host.as_str() == "any" => {
            "a rule can't name the host `any`; use the host's full name"
        }
        Destination::Ip(address) if AddressClass::of(*address) == AddressClass::Metadata => {
            "this is a cloud metadata service, which no rule can open"
        }
        Destination::Name(_) | Destination::Ip(_) => return Ok(()),
    };
    Err(PresetError::malformed(origin, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin::variable("INDEX")
    }

    fn read(text: &str) -> (String, String, Vec<String>) {
        let mut notes = Vec::new();
        match Site::read(text, &origin(), &mut notes).unwrap() {
            Reading::Site(site) => (site.url(""), site.path, notes),
            Reading::ThisMachine => ("this machine".to_owned(), String::new(), notes),
        }
    }

    fn refused(text: &str) -> String {
        let mut notes = Vec::new();
        let error = Site::read(text, &origin(), &mut notes).unwrap_err();
        assert!(notes.is_empty());
        error.to_string()
    }

    #[test]
    fn an_address_is_protocol_host_port_and_path() {
        for (text, origin, path) in [
            ("https://A.test/simple/", "https://a.test", "/simple"),
            (" http://a.test:8080 ", "http://a.test:8080", ""),
            ("https://a.test:443/x//", "https://a.test", "/x"),
            ("https://a.test/%7Eme/x", "https://a.test", "/~me/x"),
            ("https://a.test/g%2fp", "https://a.test", "/g%2Fp"),
            ("http://[2001:DB8::1]/", "http://[2001:db8::1]", ""),
        ] {
            let (found, canonical, notes) = read(text);
            assert_eq!(
                (found.as_str(), canonical.as_str()),
                (origin, path),
                "{text}"
            );
            assert!(notes.is_empty(), "{notes:?}");
        }
    }

    #[test]
    fn secrets_are_left_out_and_said() {
        for text in [
            "https://user:hunter2@a.test/x?token=hunter2",
            "https://hunter2@a.test/x?hunter2",
            "https://user:pa@hunter2@a.test/x?hunter2",
        ] {
            let (found, path, notes) = read(text);
            assert_eq!((found.as_str(), path.as_str()), ("https://a.test", "/x"));
            assert_eq!(notes.len(), 2, "{notes:?}");
            assert!(notes[0].starts_with("`INDEX` holds a user name or password for a.test:443"));
            assert!(!notes.concat().contains("hunter2"), "{notes:?}");
        }
    }

    #[test]
    fn an_error_never_shows_a_secret() {
        for text in [
            "https://user:hun/ter2@a.test/x",
            "https://user:hunter2@a.test:x/",
            "https://user:hunter2@a b/",
            "user:hunter2@a.test/x",
            "ssh://hunter2@a.test/x",
            "https://user:hunter2@a.test/\\x",
        ] {
            assert_eq!(refused(text), "`INDEX`: this is no http or https address");
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        assert_eq!(
            refused("a.test/simple"),
            "`INDEX`: this is no http or https address: `a.test/simple` is no absolute URL"
        );
        for text in [
            "ftp://a.test/",
            "tcp://a.test:1",
            "https://",
            "https://a.test:0/",
            "https://a.test:99999/",
            "https://a_b.123/",
            "https://a.test/\u{7f}",
            "https://a.test/a b",
            "https://a.test/../..",
            "https://a.test/{x}",
            "https://a.test\"]\nrules: []",
            "https://a.test/x\nrules: []",
            "https://\u{fffd}.test/",
            "https://any/simple",
            "https://ANY./simple",
            "http://169.254.169.254/latest/",
            "http://[fd00:ec2::254]/",
        ] {
            let error = refused(text);
            assert!(error.starts_with("`INDEX`: "), "{error}");
            assert!(!error.contains(['\n', '\u{7f}']), "{error}");
        }
    }

    #[test]
    fn this_machine_is_another_one_in_the_sandbox() {
        for text in [
            "http://localhost:3141/root/pypi",
            "http://mirror.localhost/",
            "http://127.0.0.1/x",
            "http://[::1]:80/x",
            "http://[::ffff:127.0.0.1]/x",
            "http://0.0.0.0/x",
        ] {
            assert_eq!(read(text).0, "this machine", "{text}");
        }
    }

    #[test]
    fn only_what_nobody_can_register_is_private_by_its_name() {
        for (text, private) in [
            ("https://nexus/x", true),
            ("https://nexus.corp/x", true),
            ("https://a.b.internal/x", true),
            ("https://a.home.arpa/x", true),
            ("https://10.1.2.3/x", true),
            ("https://[fd12::1]/x", true),
            ("https://nexus.corp.example.com/x", false),
            ("https://internal.example.com/x", false),
            ("https://203.0.114.1/x", false),
        ] {
            let Ok(Reading::Site(site)) = Site::read(text, &origin(), &mut Vec::new()) else {
                panic!("{text}");
            };
            assert_eq!(site.is_private(), private, "{text}");
        }
    }
}
