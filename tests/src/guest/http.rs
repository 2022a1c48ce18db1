//! curl inside a guest, with its answer taken apart.

use super::{Finished, Guest};

/// What curl got.
#[derive(Debug, Clone)]
pub struct Reply {
    /// 0 where curl was satisfied; 35, 52, 56 and 60 tell how a connection failed.
    pub curl: i32,
    /// The status of the last response; `None` where there was none.
    pub status: Option<u16>,
    /// `HTTP/1.1` or `HTTP/2`.
    pub version: String,
    /// Of the last response, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Fields that came behind the body, names in lower case.
    pub trailers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// curl's own message.
    pub error: String,
}

impl From<Finished> for Reply {
    fn from(finished: Finished) -> Self {
        // `-D /dev/stderr` puts response heads before curl's own messages, which start `curl: (`.
        let (heads, error) = match finished.stderr.split_once("curl: (") {
            Some((heads, error)) => (heads, format!("curl: ({error}")),
            None => (finished.stderr.as_str(), String::new()),
        };
        let last_head = heads.rfind("HTTP/").map_or("", |start| &heads[start..]);
        let mut lines = last_head.lines();
        let mut status_line = lines.next().unwrap_or_default().split_whitespace();
        let version = status_line.next().unwrap_or_default().to_owned();
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        Self {
            curl: finished.code.unwrap_or(-1),
            status: status_line.next().and_then(|code| code.parse().ok()),
            version,
            headers: lines.by_ref().map_while(header).collect(),
            trailers: lines.filter_map(header).collect(),
            body: finished.stdout,
            error,
        }
    }
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as lossy text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    /// Fails unless this is a response with `status`.
    #[track_caller]
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, Some(status), "{self:?}\nbody: {}", self.text());
        self
    }

    /// Fails unless this is the gateway's own refusal, for `reason`, with `status`; gives back the
    /// id of the audit record that the response names.
    #[track_caller]
    pub fn expect_denied(&self, status: u16, reason: &str) -> String {
        assert_eq!(self.status, Some(status), "{self:?}\nbody: {}", self.text());
        let body = self.json();
        assert_eq!(body["reason"], reason, "{body}");
        let id = self
            .header("x-outgate-decision")
            .expect("a denial names its audit record");
        assert_eq!(body["id"], id, "header and body name the same record");
        id.to_owned()
    }
}

impl Guest {
    /// `curl URL OPTIONS…`. Redirects are not followed unless asked, and denials come as JSON
    /// unless an `Accept:` of the test says otherwise.
    pub fn curl<S: AsRef<str>>(&self, url: &str, options: impl IntoIterator<Item = S>) -> Reply {
        self.curl_with_input(url, options, Vec::new())
    }

    /// The same with standard input, for `--data-binary @-` and `--upload-file -`.
    pub fn curl_with_input<S: AsRef<str>>(
        &self,
        url: &str,
        options: impl IntoIterator<Item = S>,
        input: impl Into<Vec<u8>>,
    ) -> Reply {
        let options: Vec<_> = options.into_iter().map(|o| o.as_ref().to_owned()).collect();
        let mut program =
            self.program("curl")
                .args(["--silent", "--show-error", "--dump-header", "/dev/stderr"]);
        if !options.iter().any(|option| option.starts_with("Accept:")) {
            program = program.args(["--header", "Accept: application/json"]);
        }
        let program = program.args(options).args([url]);
        Reply::from(program.input(input).run())
    }
}
