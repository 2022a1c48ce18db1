//! A gateway that clients reach by a proxy listener, and clients that are told to use it. The clients
//! run beside the gateway, in the lab's own network: what isolates them is other people's business.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::audit::AuditTrail;
use super::gateway::{Gateway, GatewayHome};
use super::world::{SECRET, SECRET_VARIABLE, lab, policy};
use crate::guest::{Finished, PATH, Reply, TlsStream, handshake};
use crate::lab::Lab;

/// The sandbox that most tests are.
pub const SANDBOX: &str = "s1";
/// Its token.
pub const TOKEN: &str = "5a1d8e2f9c4b7063d2e1f0a9b8c7d6e5";
/// The listener that asks for a credential.
pub const PROXY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 3128);

/// How long a socket waits before a test is told that nothing came.
const PATIENCE: Duration = Duration::from_secs(10);

/// A lab and a gateway with listeners.
#[derive(Debug)]
pub struct ProxyWorld {
    gateway: Gateway,
    pub home: GatewayHome,
    pub lab: Lab,
}

impl ProxyWorld {
    /// One listener at [`PROXY`], one sandbox under `rules`.
    #[track_caller]
    pub fn new(rules: &str) -> Self {
        let listeners = format!("proxies:\n  - name: shared\n    listen: {PROXY}\n");
        Self::with(rules, &listeners)
    }

    /// The same sandbox behind `listeners`, as they are written in the file.
    #[track_caller]
    pub fn with(rules: &str, listeners: &str) -> Self {
        Self::in_lab(lab(), rules, &configuration(listeners))
    }

    /// The same as [`new`](Self::new), where the gateway's environment has these variables too.
    #[track_caller]
    pub fn with_environment(rules: &str, variables: &[(&str, String)]) -> Self {
        let listeners = format!("proxies:\n  - name: shared\n    listen: {PROXY}\n");
        Self::start(lab(), rules, &configuration(&listeners), variables)
    }

    /// A gateway of this configuration; `rules` are in `policy.yaml` beside it.
    #[track_caller]
    pub fn in_lab(lab: Lab, rules: &str, configuration: &str) -> Self {
        Self::start(lab, rules, configuration, &[])
    }

    #[track_caller]
    fn start(lab: Lab, rules: &str, configuration: &str, variables: &[(&str, String)]) -> Self {
        let mut home = GatewayHome::new(&lab).expect("a folder for the gateway");
        home.env(SECRET_VARIABLE, SECRET);
        home.env("PROXY_TOKEN", TOKEN);
        for (name, value) in variables {
            home.env(name, value);
        }
        std::fs::write(home.folder().join("policy.yaml"), policy(rules)).expect("written");
        home.configure(configuration).expect("written");
        let gateway = home.start().expect("the gateway starts");
        Self { gateway, home, lab }
    }

    pub fn audit(&self) -> AuditTrail {
        self.home.audit()
    }

    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// SIGTERM; gives back the exit code, and what is left of the world.
    #[track_caller]
    pub fn terminate(self) -> (Option<i32>, GatewayHome, Lab) {
        let code = self
            .gateway
            .terminate()
            .expect("the gateway can be signalled");
        (code, self.home, self.lab)
    }

    /// `curl -x PROXY URL OPTIONS…` as the sandbox; denials come as JSON.
    pub fn curl<S: AsRef<str>>(&self, url: &str, options: impl IntoIterator<Item = S>) -> Reply {
        let proxy = format!("http://{SANDBOX}:{TOKEN}@{PROXY}");
        let options = options.into_iter().map(|option| option.as_ref().to_owned());
        self.curl_by(&["--proxy", &proxy], url, options)
    }

    /// `curl URL OPTIONS…` by any `way`.
    pub fn curl_by<S: AsRef<str>>(
        &self,
        way: &[&str],
        url: &str,
        options: impl IntoIterator<Item = S>,
    ) -> Reply {
        let accept = "Accept: application/json";
        let mut arguments: Vec<String> = [
            "--silent",
            "--show-error",
            "--max-time",
            "30",
            "--dump-header",
        ]
        .into_iter()
        .chain([
            "/dev/stderr",
            "--header",
            accept,
            "--proxy-header",
            accept,
            "--cacert",
        ])
        .map(str::to_owned)
        .collect();
        arguments.push(self.ca_file());
        arguments.extend(way.iter().map(|&word| word.to_owned()));
        arguments.extend(options.into_iter().map(|option| option.as_ref().to_owned()));
        arguments.push(url.to_owned());
        Reply::from(self.run("curl", &arguments))
    }

    /// A program beside the gateway, with an empty environment.
    #[track_caller]
    pub fn run<S: AsRef<str>>(&self, program: &str, arguments: &[S]) -> Finished {
        let output = Command::new(program)
            .args(arguments.iter().map(AsRef::as_ref))
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", self.home.folder())
            .stdin(Stdio::null())
            .output();
        output
            .unwrap_or_else(|error| panic!("{program}: {error}"))
            .into()
    }

    /// A connection to the listener at [`PROXY`].
    pub fn connect(&self) -> io::Result<TcpStream> {
        self.connect_to(PROXY)
    }

    /// A connection to any address of the lab's network.
    pub fn connect_to(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The same from an address of the caller's choice.
    pub fn connect_from(&self, from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
        let family = AddressFamily::INET;
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &from)?;
        rustix::net::connect(&socket, &to)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// TLS over `stream`: `sni` goes into the ClientHello, `expect` must be in the certificate.
    pub fn handshake(
        &self,
        stream: TcpStream,
        sni: Option<&str>,
        expect: &str,
        alpn: &[&str],
    ) -> anyhow::Result<TlsStream> {
        let mut trust = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(self.ca_file())? {
            trust.add(certificate.context("the gateway's CA is not PEM")?)?;
        }
        handshake(&Arc::new(trust), stream, sni, expect, alpn)
    }

    /// The certificate that clients have to trust.
    pub fn ca_file(&self) -> String {
        let path = self.home.folder().join("ca").join("ca.pem");
        path.to_string_lossy().into_owned()
    }
}

/// A file with `listeners` and the one sandbox.
fn configuration(listeners: &str) -> String {
    format!(
        "version: 1\n{listeners}sandboxes:\n  - id: {SANDBOX}\n    labels: {{ suite: proxy }}\n    \
         policies: [policy.yaml]\n    token: {{ env: PROXY_TOKEN }}\n"
    )
}

/// `Basic …` of a user and a password.
pub fn basic(user: &str, password: &str) -> String {
    use base64::Engine as _;
    let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    format!("Basic {pair}")
}

/// The credential of [`SANDBOX`] as a header line.
pub fn authorization() -> String {
    format!("Proxy-Authorization: {}\r\n", basic(SANDBOX, TOKEN))
}
