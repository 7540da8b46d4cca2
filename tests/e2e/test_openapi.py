"""The OpenAPI document, and the live daemon held against it by schemathesis: no 500, 503 only
where it is listed, every answer as its schema says, bad input refused."""
import os
import re
import subprocess
import sys

import pytest
from openapi_spec_validator import validate

from rack import MODEL, Rack, SLOW

CHECKS = ("status_code_conformance,content_type_conformance,response_headers_conformance,"
          "response_schema_conformance,unsupported_method,allow_header_conformance,"
          "negative_data_rejection,missing_required_header")
STREAMS = r"/(events|stream)$"
# What would end the service that the rest is about: on a daemon of its own.
HARSH = r"/(maintenance|stop|restart|drain|undrain|start|rollback|abort|confirm)$"
# A wrong If-Match is refused before the body is looked at.
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 412, 413]

[[operations]]
include-path-regex = "^/api/v1/(instances|models)/"
parameters = { "path.name" = "main" }

[[operations]]
include-path-regex = "^/api/v1/devices/"
parameters = { "path.id" = "cpu0" }

[[operations]]
include-path-regex = "^/api/v1/config/revisions/"
parameters = { "path.revision" = "1" }
"""


def start(*more):
    # every wrong key that is tried comes from one address
    return Rack("--executor", "null", "--set", "access.failures_per_min=100000", "--set",
                f"model_roots=[{os.path.dirname(os.path.abspath(MODEL))}]", *more)


@pytest.fixture(scope="module")
def live():
    r = start()
    yield r
    r.stop()


def schemathesis(rack, tmp_path, examples, *which):
    """Run it against the daemon; the output when it finds something."""
    doc = tmp_path / "openapi.json"
    status, _, body = rack.local_request("GET", "/api/v1/openapi.json")
    assert status == 200
    doc.write_bytes(body)
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    key = rack.key("infer,read,admin")["Authorization"]
    p = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "--config-file", config,
         "run", doc, "-u", rack.url, "-H", f"Authorization: {key}", "--seed", "1",
         "-n", str(examples), "--phases", "coverage,fuzzing", "--checks", CHECKS,
         "--generation-database", "none", "--warnings", "off", "--no-color",
         "--request-timeout", "60", *which],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500 * SLOW, cwd=tmp_path)
    said = p.stdout.decode("utf-8", "replace")
    assert p.returncode == 0, said[-12000:] + rack.logged()[-3000:]
    n = re.search(r"(\d+) generated", said)
    assert n and int(n[1]) > 100, said[-3000:]
    assert rack.p.poll() is None, rack.logged()[-5000:]
    assert "error llmrackd" not in rack.logged(), rack.logged()[-5000:]
    assert rack.get("/healthz")[0] == 200


def test_the_document_is_valid(live):
    doc = live.local("/api/v1/openapi.json")
    validate(doc)
    assert doc["openapi"].startswith("3.1")
    listed = [(m, p) for p, ops in doc["paths"].items() for m in ops]
    assert ("post", "/v1/chat/completions") in listed and ("get", "/healthz") in listed
    assert ("post", "/api/v1/config/commit") in listed
    for path, ops in doc["paths"].items():
        for method, op in ops.items():
            assert "500" not in op["responses"], (method, path)
            assert (op["security"] == []) == (path in ("/healthz", "/readyz")), (method, path)


def test_it_needs_its_scope(live):
    """Each route with a key that has every scope but the one that it needs."""
    doc = live.local("/api/v1/openapi.json")
    infer, read = live.key("infer"), live.key("read")
    for path, ops in doc["paths"].items():
        for method, op in ops.items():
            scopes = [s for way in op["security"] for s in way.get("key", [])]
            if not scopes:
                continue
            headers = read if scopes == ["admin"] else infer if scopes == ["read"] else None
            if headers is None:
                continue
            path = re.sub(r"{[a-z]+}", "x", path)
            body = b"" if method in ("post", "put", "patch") else None
            assert live.request(method.upper(), path, body, headers)[0] == 403, (method, path)
            assert live.request(method.upper(), path, body)[0] == 401, (method, path)


def test_live(live, tmp_path):
    schemathesis(live, tmp_path, 8, "--exclude-path-regex", f"{STREAMS}|{HARSH}")


def test_harsh(tmp_path):
    r = start()
    try:
        schemathesis(r, tmp_path, 4, "--include-path-regex", HARSH)
    finally:
        r.stop()
