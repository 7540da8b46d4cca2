"""Access as the configuration says it: TLS with a certificate that changes, web pages, names,
keyless clients, text in the log; each changed while the daemon serves. Certificates are made
with openssl, the client is Python's own."""
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess

import pytest

import rack as rack_module
from rack import SLOW, wait_for

TEXT = "/v1/completions"
SHORT = {"prompt": "Hello", "max_tokens": 2}
PAGE = "https://chat.example:8443"

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")


def make_cert(folder, name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem"),
                    "-out", str(folder / "cert.pem")], check=True, capture_output=True)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    make_cert(folder, "first")
    (folder / "llmrackd.yaml").write_text(f"""\
listen: {{tls_cert: {folder}/cert.pem, tls_key: {folder}/key.pem}}
access: {{cors_origins: ["{PAGE}"], hosts: [rack.example]}}
model_roots: [{os.path.dirname(os.path.abspath(rack_module.MODEL))}]
models: {{demo: {{path: {os.path.abspath(rack_module.MODEL)}}}}}
instances:
  one: {{model: demo, served_as: demo, kv: {{mib: 64}}}}
""")
    r = rack_module.Rack("--config", str(folder / "llmrackd.yaml"), model=None, ready=False)
    r.folder = folder
    wait_for(lambda: r.local("/api/v1/status")["ready"], 60)
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def connect(r, ca=None):
    """Over TLS, believing the certificate that lies there now."""
    context = ssl.create_default_context(cafile=str(ca or r.folder / "cert.pem"))
    return http.client.HTTPSConnection("127.0.0.1", r.port, timeout=60 * SLOW, context=context)


def ask(r, method, path, body=None, **headers):
    c = connect(r)
    try:
        c.request(method, path, None if body is None else json.dumps(body),
                  {k.replace("_", "-"): v for k, v in headers.items()})
        answer = c.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        c.close()


# ---- TLS ----

def test_a_client_that_checks_the_certificate(secure):
    status, _, body = ask(secure, "POST", TEXT, SHORT)
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 2
    with pytest.raises((ConnectionError, http.client.HTTPException, OSError)):
        secure.get("/healthz")  # no TLS, no answer


def test_a_new_certificate_without_a_restart(secure):
    old = connect(secure)
    old.request("POST", TEXT, json.dumps({"prompt": "Once", "max_tokens": 100, "stream": True,
                                          "ignore_eos": True}))
    stream = old.getresponse()
    assert stream.status == 200 and stream.read(10)
    make_cert(secure.folder, "second")
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(secure, "GET", "/healthz")  # it still has the first
    secure.p.send_signal(signal.SIGHUP)

    def renewed():
        try:
            return ask(secure, "GET", "/healthz")[0] == 200
        except ssl.SSLCertVerificationError:
            return False

    wait_for(renewed)
    assert stream.read().endswith(b"data: [DONE]\n\n")
    old.close()
    good = (secure.folder / "key.pem").read_text()
    (secure.folder / "key.pem").write_text("nonsense")
    secure.p.send_signal(signal.SIGHUP)
    wait_for(lambda: "certificate that was in use stays" in secure.logged())
    (secure.folder / "key.pem").write_text(good)
    assert renewed()


# ---- web pages and names ----

def test_a_page_that_is_listed(secure):
    status, h, body = ask(secure, "OPTIONS", TEXT, Origin=PAGE,
                          Access_Control_Request_Method="POST",
                          Access_Control_Request_Headers="authorization, content-type")
    assert status == 204 and body == b""
    assert h["Access-Control-Allow-Origin"] == PAGE and h["Vary"] == "Origin"
    assert "POST" in h["Access-Control-Allow-Methods"]
    allowed = h["Access-Control-Allow-Headers"].lower()
    assert "authorization" in allowed and "content-type" in allowed
    status, h, _ = ask(secure, "POST", TEXT, SHORT, Origin=PAGE, Content_Type="application/json")
    assert status == 200 and h["Access-Control-Allow-Origin"] == PAGE
    assert "Retry-After" in h["Access-Control-Expose-Headers"]
    status, h, _ = ask(secure, "GET", "/api/v1/status", Origin=PAGE)
    assert status == 401 and h["Access-Control-Allow-Origin"] == PAGE  # it may read why
    status, _, body = ask(secure, "POST", TEXT, SHORT, Origin=PAGE, Content_Type="text/plain")
    assert status == 400 and json.loads(body)["error"]["param"] == "Content-Type"
    for origin in "https://chat.example", "http://chat.example:8443", "null":
        status, h, _ = ask(secure, "POST", TEXT, SHORT, Origin=origin)
        assert status == 403 and "Access-Control-Allow-Origin" not in h
    assert ask(secure, "OPTIONS", "/nowhere", Origin=PAGE,
               Access_Control_Request_Method="GET")[0] == 404


def test_names_and_pages_change_while_it_serves(secure):
    assert ask(secure, "GET", "/healthz", Host="rack.example")[0] == 200
    assert ask(secure, "GET", "/healthz", Host="other.example")[0] == 403
    kept = connect(secure)
    kept.request("GET", "/healthz")
    assert kept.getresponse().read()
    secure.commit("access.", hosts="[other.example]")
    kept.request("GET", "/healthz", headers={"Host": "other.example"})  # the same connection
    assert kept.getresponse().status == 200
    kept.close()
    assert ask(secure, "GET", "/healthz", Host="rack.example")[0] == 403


# ---- keyless clients and limits ----

def test_keyless_clients_are_shut_out_and_let_in(secure):
    secure.commit("access.", anonymous="none")
    status, h, _ = ask(secure, "POST", TEXT, SHORT)
    assert status == 401 and h["WWW-Authenticate"]
    assert ask(secure, "GET", "/v1/models")[0] == 401
    assert ask(secure, "GET", "/readyz")[0] == 200
    assert ask(secure, "POST", TEXT, SHORT, **secure.key())[0] == 200
    secure.commit("access.", anonymous="infer")
    assert ask(secure, "POST", TEXT, SHORT)[0] == 200


def test_a_lower_limit_of_bodies(secure):
    big = {"prompt": "a" * (2 << 20), "max_tokens": 1}
    assert ask(secure, "POST", TEXT, big)[0] == 400  # longer than the context
    secure.commit("limits.", max_body_mib="1")
    assert ask(secure, "POST", TEXT, big)[0] == 413


def test_prefixes_are_shared_when_that_is_said(secure):
    def cached(header, prompt):
        body = json.loads(ask(secure, "POST", TEXT, {"prompt": prompt, "max_tokens": 1}, **header)[2])
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]

    a, b = secure.key(), secure.key()
    one = "A prefix of the first key, long enough to fill a block of it. " * 6
    assert cached(a, one) == 0 and cached(a, one) > 0 and cached(b, one) == 0
    secure.commit("instances.one.kv.", isolate="none")
    two = "Another prefix, that is for everyone who comes here with it. " * 6
    assert cached(a, two) == 0 and cached(b, two) > 0 and cached({}, two) > 0


def test_text_is_logged_when_that_is_said(secure):
    ask(secure, "POST", TEXT, dict(SHORT, prompt="zanzibar-one"))
    assert not secure.local("/api/v1/status")["log_content"]
    secure.commit("access.", log_content="true")
    assert secure.local("/api/v1/status")["log_content"]
    status, h, body = ask(secure, "POST", TEXT, dict(SHORT, prompt="zanzibar-two", max_tokens=8,
                                                     temperature=0, ignore_eos=True))
    said = json.dumps(json.loads(body)["choices"][0]["text"])
    wait_for(lambda: said[1:-1] in secure.logged())
    assert "zanzibar-two" in secure.logged() and h["X-Request-Id"] in secure.logged()
    secure.commit("access.", log_content="false")
    ask(secure, "POST", TEXT, dict(SHORT, prompt="zanzibar-three"))
    assert "zanzibar-one" not in secure.logged() and "zanzibar-three" not in secure.logged()


# ---- what the world can reach ----

def start_refused(tmp_path, text):
    config = tmp_path / "c.yaml"
    config.write_text(text)
    return subprocess.run([os.path.join(rack_module.BIN, "llmrackd"), "--state-dir",
                           str(tmp_path / "state"), "--config", str(config)], capture_output=True,
                          text=True, timeout=60 * SLOW)


def test_an_open_address_is_refused(secure, tmp_path):
    """At the start; the check of a commit looks at the certificate files too."""
    (tmp_path / "state").mkdir()
    p = start_refused(tmp_path, "listen: {address: '0.0.0.0:0'}\n")
    assert p.returncode == 4 and "access.insecure" in p.stderr, p.stderr
    text = f"listen: {{tls_cert: {tmp_path}/no.pem, tls_key: {tmp_path}/no.pem}}\n"
    status, _, body = secure.local_request("POST", "/api/v1/config/check", {"text": text})
    assert status == 200 and "no.pem" in body.decode() and not json.loads(body)["ok"], body
