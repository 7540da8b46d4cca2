"""The scrape: names, labels and buckets that dashboards of this field read (vLLM's), and that
the numbers are those of the requests that were made."""
import math
import os
import re
import threading

import pytest

from rack import wait_for

SHARED = os.environ.get("SHARED", "../shared")

GAUGES = """num_requests_running num_requests_waiting kv_cache_usage_perc""".split()
COUNTERS = """prompt_tokens_total prompt_tokens_cached_total prompt_tokens_recomputed_total
generation_tokens_total num_preemptions_total prefix_cache_queries_total
prefix_cache_hits_total""".split()
HISTOGRAMS = """time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_prompt_tokens request_generation_tokens request_max_num_generation_tokens
request_params_n request_params_max_tokens request_prefill_kv_computed_tokens
request_num_preemptions iteration_tokens_total""".split()
TTFT_BUCKETS = [.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40,
                80, 160, 640, 2560, math.inf]


def scrape(rack):
    status, h, body = rack.local_request("GET", "/metrics")
    assert status == 200 and h["Content-Type"].startswith("text/plain; version=0.0.4")
    return body.decode()


def types_of(text):
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def test_names_and_types(rack):
    types = types_of(scrape(rack))
    for names, kind in (GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram"):
        for n in names:
            assert types.get("vllm:" + n) == kind, n
    assert types["vllm:num_requests_waiting_by_reason"] == "gauge"
    assert types["vllm:request_success_total"] == "counter"
    for name, kind in types.items():
        assert name.startswith(("vllm:", "llmrack_"))
        assert "millisecond" not in name
        if kind == "counter":
            assert name.endswith("_total"), name


# Quantities that this product does not have (yet).
ABSENT = re.compile(r"vllm:(lora_|nixl_|mm_cache_|external_prefix_cache_|spec_decode_|estimated_|"
                    r"kv_block_|engine_sleep_state|corrupted_requests)")


def listed():
    """{name: kind} of section 4.1 of the survey of peers."""
    path = os.path.join(SHARED, "design", "peers.md")
    if not os.path.exists(path):
        pytest.skip(f"not there: {path}")
    section = open(path, encoding="utf-8").read().split("### 4.1")[1].split("### 4.2")[0]
    out = {}
    for line in section.splitlines():
        kind = re.match(r"- (Gauge|Counter|Histogram)s", line)
        for name in re.findall(r"`(vllm:[a-z0-9_{},]+)", line) if kind else []:
            out[re.sub(r"\{.*", "", name)] = kind[1].lower()
    return out


def test_the_list_of_the_field(rack):
    """Every name there that is not known to be absent is here, of the same kind."""
    types, names = types_of(scrape(rack)), listed()
    assert len(names) > 40
    for name, kind in names.items():
        if not ABSENT.match(name):
            counter = name if name.endswith("_total") else name + "_total"
            assert types.get(counter if kind == "counter" else name) == kind, name
    for name in types:
        assert not ABSENT.match(name), f"{name} is no longer absent"
        if name.startswith("vllm:"):
            assert name in names or name[:-len("_total")] in names, f"{name} is not in the list"


def test_labels(rack):
    """Of an instance what its engine counts, of a model what the daemon counts for it."""
    model = rack.local("/api/v1/models")["models"][0]["name"]
    kinds = {}
    for line in scrape(rack).splitlines():
        if line.startswith("# HELP"):
            name, kind = re.match(r"# HELP (\S+) .*\((\w)\)$", line).groups()
            kinds[name] = kind
        elif not line.startswith("#") and not line.startswith("llmrack_slo_"):
            name = re.sub(r"_(bucket|sum|count)$", "", re.match(r"[\w:]+", line)[0])
            kind = kinds.get(name) or kinds[re.match(r"[\w:]+", line)[0]]
            of_model = f'model_name="{model}",engine="0"' in line
            assert of_model == (kind in "EM" or ":cache_config" in line or "rank=" in line), line
            assert ('instance="main"' in line) == (of_model and kind != "M"), line
    m = rack.metrics()
    for reason in "capacity", "deferred":
        assert f'vllm:num_requests_waiting_by_reason{{reason="{reason}"}}' in m
    for reason in "stop", "length", "abort", "error":
        assert f'vllm:request_success_total{{finished_reason="{reason}"}}' in m


def test_the_size_of_the_cache(rack):
    config, = re.findall(r"^vllm:cache_config_info\{(.*)\} 1$", scrape(rack), re.M)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', config))
    i = rack.local("/api/v1/status")["instances"][0]
    assert labels["block_size"] == "16" and labels["num_gpu_blocks"] == str(i["kv_total"])
    assert labels["cache_dtype"] == i["kv_type"]


def buckets(rack, name):
    m = rack.metrics()
    out = [(float(re.search(r'le="([^"]+)"', k)[1].replace("+Inf", "inf")), v)
           for k, v in m.items() if k.startswith(f"vllm:{name}_bucket")]
    return sorted(out), m[f"vllm:{name}_count"], m[f"vllm:{name}_sum"]


def test_buckets_are_cumulative(rack):
    for name in HISTOGRAMS:
        b, count, _ = buckets(rack, name)
        assert b[-1] == (math.inf, count)
        assert all(x[1] <= y[1] for x, y in zip(b, b[1:]))
    assert [le for le, _ in buckets(rack, "time_to_first_token_seconds")[0]] == TTFT_BUCKETS


def delta(rack, body, path="/v1/completions"):
    wait_for(lambda: rack.metric("vllm:num_requests_running") == 0)
    before = rack.metrics()
    if body.get("stream"):
        answer = rack.stream(path, body)
    else:
        answer = rack.post(path, body)[1]
    wait_for(lambda: rack.metric("vllm:num_requests_running") == 0)
    after = rack.metrics()
    return answer, lambda name: after[name] - before[name]


def test_counters_equal_usage(rack):
    body = {"prompt": "Count with me: one, two, three, four, five, six, seven, eight, nine, ten, "
                      "eleven, twelve,", "max_tokens": 20, "ignore_eos": True}
    for again in False, True:
        a, d = delta(rack, body)
        u = a["usage"]
        assert d("vllm:generation_tokens_total") == u["completion_tokens"] == 20
        assert d("vllm:prompt_tokens_total") == u["prompt_tokens"]
        cached = u["prompt_tokens_details"]["cached_tokens"]
        by_source = 'vllm:prompt_tokens_by_source_total{source="local_%s"}'
        assert d(by_source % "cache_hit") == cached
        assert d(by_source % "compute") == u["prompt_tokens"] - cached
        assert d("vllm:prompt_tokens_cached_total") == cached
        assert d("vllm:prefix_cache_hits_total") == cached
        assert (cached > 0) == again
        assert d('vllm:request_success_total{finished_reason="length"}') == 1
        assert d("vllm:request_params_max_tokens_sum") == 20
        assert d('llmrack_http_requests_total{code="2xx"}') >= 1


def test_no_cache_on_request(rack):
    body = {"prompt": "A sentence that is long enough to fill more than one block of sixteen "
                      "tokens, twice over, to be sure.", "max_tokens": 1, "cache_prompt": False}
    for _ in range(2):
        a, d = delta(rack, body)
        assert a["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert d("vllm:prompt_tokens_cached_total") == 0


def test_times_of_a_stream(rack):
    n = 12
    _, d = delta(rack, {"prompt": "Hello there", "max_tokens": n, "ignore_eos": True,
                        "stream": True})
    assert d("vllm:time_to_first_token_seconds_count") == 1
    assert d("vllm:inter_token_latency_seconds_count") == n - 1
    assert d("vllm:request_time_per_output_token_seconds_count") == 1
    assert d("vllm:e2e_request_latency_seconds_count") == 1
    ttft = d("vllm:time_to_first_token_seconds_sum")
    e2e = d("vllm:e2e_request_latency_seconds_sum")
    itl = d("vllm:inter_token_latency_seconds_sum")
    assert 0 < ttft < e2e and itl < e2e
    assert abs(d("vllm:request_time_per_output_token_seconds_sum") * (n - 1) - itl) < 1e-3 + itl * .01
    # a step is no microsecond: not all samples may sit in the smallest bucket
    assert d('vllm:time_to_first_token_seconds_bucket{le="0.001"}') == 0


def test_errors_are_counted(rack):
    _, d = delta(rack, {"prompt": 7})
    assert d('llmrack_http_requests_total{code="4xx"}') == 1
    assert d("vllm:e2e_request_latency_seconds_count") == 0


def test_scrape_while_busy(rack):
    t = threading.Thread(target=rack.post, args=(
        "/v1/completions", {"prompt": "x", "max_tokens": 200, "ignore_eos": True}))
    t.start()
    wait_for(lambda: rack.metric("vllm:num_requests_running") == 1)
    assert 0 < rack.metric("vllm:kv_cache_usage_perc") < 1
    t.join()
