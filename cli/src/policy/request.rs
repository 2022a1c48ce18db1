//! A request on the command line, made canonical as the gateway would. The one place that knows
//! which parts of a request can be named there.

use std::path::Path;

use clap::Args;
use outgate_policy::{Authority, CanonicalRequest, Reason, Reject, RequestUrl};

use super::read::Reader;
use crate::exit::{Code, Failure};

#[derive(Debug, Args)]
pub(super) struct RequestArgs {
    /// The request, as in `"GET https://api.github.com/user"`; the method may be left out
    #[arg(value_name = "REQUEST")]
    pub(super) line: String,
    /// A header of the request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Its body; `@FILE` reads a file, and `@-` standard input
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// The TLS server name, where it is not the host of the URL
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Where the client connected to, where it is not the place of the URL
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
}

/// A header as it was given.
type Header<'a> = (&'a str, &'a str);

impl RequestArgs {
    /// The request in canonical form, or why it has none.
    ///
    /// # Errors
    /// An option that doesn't read, or a body that can't be read.
    pub(super) fn canonical(
        &self,
        reader: &mut Reader,
    ) -> Result<Result<CanonicalRequest, Reject>, Failure> {
        let headers = self.headers.iter().map(|text| header(text));
        let headers: Vec<Header<'_>> = headers.collect::<Result<_, _>>()?;
        let body = self.body.as_deref().map(|text| body(reader, text));
        let body = body.transpose()?;
        Ok(self.made_of(&headers, body.as_deref()))
    }

    fn made_of(
        &self,
        headers: &[Header<'_>],
        body: Option<&[u8]>,
    ) -> Result<CanonicalRequest, Reject> {
        let (method, url) = match self.line.split_once(' ') {
            Some((method, url)) => (method, url),
            None => ("GET", self.line.as_str()),
        };
        let url = RequestUrl::parse(url)?;
        url.check_names(self.sni.as_deref(), self.connect.as_deref())?;
        for (_, host) in headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            check_host(host, &url)?;
        }
        if !url.protocol.is_http() {
            return CanonicalRequest::from_line(&self.line);
        }
        let fields = headers.iter();
        let fields: Vec<(&str, &[u8])> = fields
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        let body = body.unwrap_or_default().to_vec();
        CanonicalRequest::whole(Some(method), &url, &fields, body)
    }
}

fn check_host(host: &str, url: &RequestUrl) -> Result<(), Reject> {
    if Authority::parse(host, url.protocol.default_port())? == url.authority {
        return Ok(());
    }
    let detail = format!(
        "`{}` on a connection to {}://{}",
        host.escape_debug(),
        url.protocol,
        url.authority
    );
    Err(Reject::new(Reason::AuthorityMismatch, detail))
}

/// `Name: value` of RFC 9110, sections 5.1 and 5.5.
fn header(text: &str) -> Result<Header<'_>, Failure> {
    let is_token = |name: &str| {
        let tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        !name.is_empty() && name.bytes().all(tchar)
    };
    match text.split_once(':') {
        Some((name, value)) if is_token(name) && !value.contains(char::is_control) => {
            Ok((name, value.trim_matches(' ')))
        }
        _ => {
            let message = format!(
                "`{}` is no header; write it as `Name: value`",
                text.escape_debug()
            );
            Err(Failure::new(Code::Usage, message))
        }
    }
}

fn body(reader: &mut Reader, text: &str) -> Result<Vec<u8>, Failure> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(text.as_bytes().to_vec());
    };
    reader
        .bytes(Path::new(path))
        .map_err(|error| Failure::new(Code::Usage, error))
}
