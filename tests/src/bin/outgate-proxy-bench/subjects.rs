//! The proxies that are compared, each started as its own manual has it for this job: terminate TLS,
//! forward over verified TLS on kept connections, in one process or as many as it starts for two cores.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use outgate_tests::harness::outgate;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::client::{Connect, Way};

/// Rules of the policy that our subject decides by; the last but one is the one that matches.
const RULES: usize = 1000;
const SANDBOX: &str = "bench";
const TOKEN: &str = "a-token-for-the-bench-0123456789";
const SECRET: &str = "a-secret-that-is-attached-to-each-request";

/// How long a program may take until it listens.
const START: Duration = Duration::from_secs(30);

/// A proxy that runs.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    pub(crate) process: Option<Process>,
    /// Certificates are minted for names as they come.
    pub(crate) mints: bool,
    pub(crate) speaks_h2: bool,
}

impl Subject {
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.process.iter().map(|process| process.0.id()).collect()
    }
}

/// A process that ends with its handle.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM first: nginx and squid have children to end.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            if let Ok(Some(_)) = self.0.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What all subjects are given.
pub(crate) struct Bench<'a> {
    pub(crate) folder: &'a Path,
    /// Root of the origin's certificate, PEM file.
    pub(crate) root: &'a Path,
    pub(crate) origin: SocketAddr,
    pub(crate) dns: SocketAddr,
    pub(crate) name: &'a str,
    /// A certificate for `name` and its key, for those who need one given.
    pub(crate) certificate: &'a Path,
    pub(crate) key: &'a Path,
}

impl Bench<'_> {
    fn trusting(&self, root: &Path) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(root)?)?;
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Each handshake is a full one.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// The origin itself.
    pub(crate) fn direct(&self) -> Result<Subject> {
        Ok(Subject {
            name: "direct",
            way: Way {
                address: self.origin,
                connect: None,
                tls: self.trusting(self.root)?,
            },
            process: None,
            mints: true,
            speaks_h2: true,
        })
    }

    /// Ours: explicit proxy, 1,000 rules, a credential on each request, the audit log on.
    pub(crate) fn outgate(&self) -> Result<Subject> {
        let port = free_port()?;
        let folder = self.folder.join("outgate");
        fs::create_dir_all(&folder)?;
        let policy = folder.join("policy.yaml");
        fs::write(&policy, self.policy())?;
        let config = folder.join("gateway.yaml");
        fs::write(&config, self.outgate_config(&folder, &policy, port))?;
        let mut command = Command::new(outgate()?);
        command
            .args(["gateway".as_ref(), "--config".as_ref(), config.as_os_str()])
            .env("BENCH_SECRET", SECRET)
            .env("BENCH_TOKEN", TOKEN);
        let process = self.start("outgate", &mut command, port)?;
        // Its socket is bound before its authority is made.
        let root = folder.join("ca/ca.pem");
        let until = Instant::now() + START;
        while !root.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let credentials =
            base64::engine::general_purpose::STANDARD.encode(format!("{SANDBOX}:{TOKEN}"));
        Ok(Subject {
            name: "outgate",
            way: Way {
                address: (Ipv4Addr::LOCALHOST, port).into(),
                connect: Some(Connect {
                    host: None,
                    port: self.origin.port(),
                    header: format!("Proxy-Authorization: Basic {credentials}\r\n"),
                }),
                tls: self.trusting(&root)?,
            },
            process: Some(process),
            mints: true,
            speaks_h2: true,
        })
    }

    fn policy(&self) -> String {
        use std::fmt::Write as _;
        let (name, port) = (self.name, self.origin.port());
        let mut text = String::from(
            "version: 1\ncredentials:\n  - name: bench\n    source: { env: BENCH_SECRET }\n    attach: [{ header: authorization, format: \"Bearer {}\" }]\nrules:\n",
        );
        for number in 0..RULES - 2 {
            let _ = writeln!(
                text,
                "  - {{ id: r{number}, action: allow, to: {{ hosts: [h{number}.example] }}, http: {{ methods: [GET], paths: [/v1/**] }} }}"
            );
        }
        let _ = writeln!(
            text,
            "  - {{ id: bench, action: allow, credential: bench, to: {{ hosts: [{name}], ports: [{port}], private: true }} }}\n  - {{ id: cold, action: allow, to: {{ hosts: [\"*.{name}\"], ports: [{port}], private: true }} }}"
        );
        text
    }

    fn outgate_config(&self, folder: &Path, policy: &Path, port: u16) -> String {
        format!(
            "version: 1\naudit: {{ dir: {dir}/audit }}\nca: {{ dir: {dir}/ca }}\n\
             upstream: {{ dns: [\"{dns}\"], roots: [{root}] }}\n\
             proxies: [{{ name: bench, listen: \"127.0.0.1:{port}\" }}]\n\
             sandboxes: [{{ id: {SANDBOX}, policies: [{policy}], token: {{ env: BENCH_TOKEN }} }}]\n",
            dir = folder.display(),
            policy = policy.display(),
            root = self.root.display(),
            dns = self.dns,
        )
    }

    /// nginx in front of the origin, as a reverse proxy: it knows its one name beforehand.
    pub(crate) fn nginx(&self) -> Result<Subject> {
        let port = free_port()?;
        let folder = self.folder.join("nginx");
        fs::create_dir_all(&folder)?;
        let text = format!(
            "worker_processes 2;\ndaemon off;\npid {dir}/pid;\nerror_log {dir}/error.log;\nworker_rlimit_nofile 8192;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n access_log {dir}/access.log;\n client_body_temp_path {dir}/body;\n proxy_temp_path {dir}/proxy;\n\
             fastcgi_temp_path {dir}/f;\n uwsgi_temp_path {dir}/u;\n scgi_temp_path {dir}/s;\n\
             keepalive_requests 100000000;\n client_max_body_size 0;\n\
             upstream origin {{ server {origin}; keepalive 64; keepalive_requests 100000000; }}\n\
             server {{\n listen 127.0.0.1:{port} ssl http2;\n ssl_certificate {certificate};\n ssl_certificate_key {key};\n\
             ssl_protocols TLSv1.2 TLSv1.3;\n ssl_session_cache off;\n ssl_session_tickets off;\n\
             location / {{\n proxy_pass https://origin;\n proxy_http_version 1.1;\n proxy_set_header Connection \"\";\n\
             proxy_set_header Host $http_host;\n proxy_set_header Authorization \"Bearer {SECRET}\";\n\
             proxy_ssl_protocols TLSv1.3;\n\
             proxy_ssl_name {name};\n proxy_ssl_server_name on;\n proxy_ssl_verify on;\n proxy_ssl_trusted_certificate {root};\n\
             proxy_buffering off;\n proxy_request_buffering off;\n proxy_read_timeout 1h;\n }}\n }}\n}}\n",
            dir = folder.display(),
            origin = self.origin,
            certificate = self.certificate.display(),
            key = self.key.display(),
            name = self.name,
            root = self.root.display(),
        );
        let config = self.file("nginx/nginx.conf", &text)?;
        let mut command = Command::new("nginx");
        command
            .args(["-c".as_ref(), config.as_os_str()])
            .args(["-p".as_ref(), folder.as_os_str()]);
        Ok(Subject {
            name: "nginx",
            process: Some(self.start("nginx", &mut command, port)?),
            way: Way {
                address: (Ipv4Addr::LOCALHOST, port).into(),
                connect: None,
                tls: self.trusting(self.root)?,
            },
            mints: false,
            speaks_h2: true,
        })
    }

    /// squid with ssl-bump.
    pub(crate) fn squid(&self) -> Result<Subject> {
        let port = free_port()?;
        let folder = self.folder.join("squid");
        fs::create_dir_all(&folder)?;
        let ca = self.own_ca(&folder)?;
        // Drops its privileges, so its folder must be for everybody.
        let open = std::os::unix::fs::PermissionsExt::from_mode;
        fs::set_permissions(self.folder, open(0o755))?;
        fs::set_permissions(&folder, open(0o777))?;
        let helper = "/usr/lib/squid/security_file_certgen";
        let database = folder.join("db");
        let made = Command::new(helper)
            .args(["-c", "-s"])
            .arg(&database)
            .args(["-M", "4MB"])
            .stdout(Stdio::null())
            .status()
            .context("squid's certificate helper")?;
        anyhow::ensure!(made.success(), "squid's certificate helper: {made}");
        for entry in [database.clone(), database.join("certs")] {
            fs::set_permissions(entry, open(0o777))?;
        }
        for file in ["index.txt", "size"] {
            fs::set_permissions(database.join(file), open(0o666))?;
        }
        fs::set_permissions(&ca, open(0o644))?;
        let text = format!(
            "http_port 127.0.0.1:{port} ssl-bump cert={ca} generate-host-certificates=on dynamic_cert_mem_cache_size=16MB\n\
             sslcrtd_program {helper} -s {db} -M 4MB\nsslcrtd_children 2 startup=2\n\
             tls_outgoing_options cafile={root} options=NO_SSLv3\n\
             ssl_bump bump all\nhttp_access allow all\nacl all_ports port 1-65535\n\
             dns_nameservers {dns}\nworkers 1\ncache deny all\ncache_mem 8 MB\n\
             cache_effective_user proxy\n\
             pid_filename {dir}/pid\naccess_log stdio:{dir}/access.log\ncache_log {dir}/cache.log\ncoredump_dir {dir}\n\
             server_persistent_connections on\nclient_persistent_connections on\nshutdown_lifetime 0 seconds\n\
             request_header_access Authorization deny all\nrequest_header_add Authorization \"Bearer {SECRET}\" all\n",
            ca = ca.display(),
            db = database.display(),
            root = self.root.display(),
            dns = self.dns.ip(),
            dir = folder.display(),
        );
        let config = self.file("squid/squid.conf", &text)?;
        let mut command = Command::new("squid");
        command.args(["-N", "-f"]).arg(&config);
        Ok(Subject {
            name: "squid",
            process: Some(self.start("squid", &mut command, port)?),
            way: self.through(port, &folder.join("ca.pem"))?,
            mints: true,
            speaks_h2: false,
        })
    }

    /// mitmproxy without its screen.
    pub(crate) fn mitmproxy(&self, program: &Path) -> Result<Subject> {
        let port = free_port()?;
        let folder = self.folder.join("mitmproxy");
        fs::create_dir_all(&folder)?;
        let mut command = Command::new(program);
        command
            .args(["--quiet", "--set"])
            .arg(format!("confdir={}", folder.display()))
            .args([
                "--listen-host",
                "127.0.0.1",
                "--listen-port",
                &port.to_string(),
            ])
            .arg("--set")
            .arg(format!(
                "ssl_verify_upstream_trusted_ca={}",
                self.root.display()
            ))
            .args(["--set", "stream_large_bodies=1m"])
            .args([
                "--modify-headers",
                &format!("/~q/Authorization/Bearer {SECRET}"),
            ]);
        let process = self.start("mitmproxy", &mut command, port)?;
        let mut way = self.through(port, &folder.join("mitmproxy-ca-cert.pem"))?;
        // It asks the system's resolver, which does not know the name; TLS does.
        if let Some(connect) = &mut way.connect {
            connect.host = Some(self.origin.ip().to_string());
        }
        Ok(Subject {
            name: "mitmproxy",
            process: Some(process),
            way,
            mints: true,
            speaks_h2: true,
        })
    }

    /// A proxy of some lines on the library `hudsucker`, built from `bench/hudsucker`.
    pub(crate) fn hudsucker(&self, program: &Path) -> Result<Subject> {
        let port = free_port()?;
        let folder = self.folder.join("hudsucker");
        fs::create_dir_all(&folder)?;
        let ca = self.own_ca(&folder)?;
        let mut command = Command::new(program);
        command
            .arg(port.to_string())
            .arg(&ca)
            .arg(self.root)
            .arg(self.origin.to_string())
            .arg(SECRET);
        Ok(Subject {
            name: "hudsucker",
            process: Some(self.start("hudsucker", &mut command, port)?),
            way: self.through(port, &folder.join("ca.pem"))?,
            mints: true,
            speaks_h2: true,
        })
    }

    fn through(&self, port: u16, root: &Path) -> Result<Way> {
        Ok(Way {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            connect: Some(Connect {
                host: None,
                port: self.origin.port(),
                header: String::new(),
            }),
            tls: self.trusting(root)?,
        })
    }

    /// A certificate authority for those who want one given: certificate and key in one file, and
    /// the certificate alone as `ca.pem`.
    fn own_ca(&self, folder: &Path) -> Result<PathBuf> {
        let (certificate, key) = outgate_tests::lab::LabCa::generate("A proxy's root")?.into_pem();
        fs::write(folder.join("ca.pem"), &certificate)?;
        let both = folder.join("ca-and-key.pem");
        fs::write(&both, certificate + &key)?;
        Ok(both)
    }

    /// Starts a program and waits until it takes connections.
    fn start(&self, name: &str, command: &mut Command, port: u16) -> Result<Process> {
        let output = self.folder.join(format!("{name}.out"));
        let file = fs::File::create(&output)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let mut process = Process(child);
        let until = Instant::now() + START;
        while Instant::now() < until {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(process);
            }
            if process.0.try_wait()?.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut said = String::new();
        fs::File::open(&output)?.read_to_string(&mut said)?;
        bail!("{name} does not listen: {said}")
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}
