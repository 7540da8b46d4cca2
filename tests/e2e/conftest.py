"""Daemons for the end-to-end tests. LLMRACK_BIN names the folder of the programs,
DEMO_MODEL the model file; where either is absent the tests are skipped (and counted)."""
import os

import pytest

import rack as rack_module


def pytest_configure(config):
    config.addinivalue_line("markers", "san: also worth running on a sanitizer build")


def pytest_collection_modifyitems(items):
    missing = [p for p in (os.path.join(rack_module.BIN, "llmrackd"), rack_module.MODEL)
               if not os.path.exists(p)]
    for item in items if missing else []:
        item.add_marker(pytest.mark.skip(reason=f"not there: {missing[0]}"))


@pytest.fixture(scope="session")
def rack():
    """The daemon that most tests share."""
    r = rack_module.Rack()
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


@pytest.fixture(scope="module")
def strict():
    """One with tight limits, for the tests of limits."""
    r = rack_module.Rack("--max-body-mib", "1", "--header-s", "1", "--body-s", "2")
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


@pytest.fixture
def start():
    """A function that starts a daemon of this test's own."""
    started = []

    def go(*options, **kw):
        started.append(rack_module.Rack(*options, **kw))
        return started[-1]

    yield go
    for r in started:
        r.stop()
