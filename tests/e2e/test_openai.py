"""The real `openai` client against the daemon: what users of it do."""
import concurrent.futures
import time

import openai
import pytest

from rack import wait_for

ASK = [{"role": "user", "content": "What is the capital of France?"}]
YES = [{"role": "user", "content": "Say only the word yes."}]


@pytest.fixture(scope="module")
def client(rack):
    with openai.OpenAI(base_url=rack.url + "/v1", api_key="none", max_retries=0,
                       timeout=120) as c:
        yield c


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_models(client, model):
    m = client.models.retrieve(model)
    assert m.id == model and m.object == "model" and m.created > 1_500_000_000
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("gpt-none")
    assert e.value.code == "model_not_found" and e.value.param == "model"


def test_chat_whole(client, model):
    r = client.chat.completions.create(model=model, messages=ASK, max_tokens=16, temperature=0)
    c = r.choices[0]
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-") and r.model == model
    assert c.message.role == "assistant" and c.message.content.strip()
    assert c.finish_reason in ("stop", "length") and c.logprobs is None
    assert r.system_fingerprint
    assert r.usage.completion_tokens <= 16
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    again = client.chat.completions.create(model=model, messages=ASK, max_tokens=16, temperature=0)
    assert again.choices[0].message.content == c.message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_chat_stream_is_the_same_text(client, model):
    kw = dict(model=model, messages=ASK, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**kw)
    text, reasons, roles, usage = "", [], [], None
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True},
                                                **kw):
        assert chunk.object == "chat.completion.chunk"
        if not chunk.choices:
            usage = chunk.usage
            continue
        assert usage is None and chunk.usage is None
        d = chunk.choices[0]
        roles += [d.delta.role] if d.delta.role else []
        text += d.delta.content or ""
        reasons += [d.finish_reason] if d.finish_reason else []
    assert text == whole.choices[0].message.content
    assert roles == ["assistant"] and reasons == [whole.choices[0].finish_reason]
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_stream_helper(client, model):
    with client.chat.completions.stream(model=model, messages=YES, temperature=0) as s:
        kinds = {e.type for e in s}
        final = s.get_final_completion()
    assert "content.delta" in kinds and final.choices[0].message.content


def test_two_choices(client, model):
    kw = dict(model=model, messages=ASK, n=2, seed=7, max_tokens=12, temperature=1)
    r = client.chat.completions.create(**kw)
    assert [c.index for c in r.choices] == [0, 1]
    texts = {0: "", 1: ""}
    first = {}
    for chunk in client.chat.completions.create(stream=True, **kw):
        for c in chunk.choices:
            first.setdefault(c.index, c.delta.role)
            texts[c.index] += c.delta.content or ""
    assert first == {0: "assistant", 1: "assistant"}
    assert texts == {c.index: c.message.content for c in r.choices}
    assert texts[0] != texts[1]


def test_seed_is_the_text_whatever_else_runs(client, model):
    def ask(seed):
        return client.completions.create(model=model, prompt="Once upon a time", seed=seed,
                                         max_tokens=24, temperature=1).choices[0].text

    alone = ask(42)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, [1, 42, 2, 42, 3, 42, 4, 42]))
    assert texts[1] == texts[3] == texts[5] == texts[7] == alone
    assert len(set(texts)) > 2


def test_stop_strings(client, model):
    kw = dict(model=model, prompt="One, two, three, four,", max_tokens=40, temperature=0)
    full = client.completions.create(**kw).choices[0].text
    at = len(full) // 2
    stop = full[at:at + 5]  # wherever it falls between tokens
    want = full[:full.index(stop)]
    whole = client.completions.create(stop=[stop, "\0never"], **kw).choices[0]
    assert (whole.text, whole.finish_reason) == (want, "stop")
    text, reason = "", None
    for chunk in client.completions.create(stop=stop, stream=True, **kw):
        text += chunk.choices[0].text
        reason = chunk.choices[0].finish_reason or reason
    assert (text, reason) == (want, "stop")


def test_eos_is_stop(client, model):
    r = client.chat.completions.create(model=model, messages=YES, max_tokens=400, temperature=0)
    assert r.choices[0].finish_reason == "stop"
    assert "<|im_end|>" not in r.choices[0].message.content


def test_chat_logprobs(client, model):
    r = client.chat.completions.create(model=model, messages=ASK, max_tokens=6, temperature=0,
                                       logprobs=True, top_logprobs=3)
    items = r.choices[0].logprobs.content
    assert len(items) == r.usage.completion_tokens
    for i in items:
        assert -100 < i.logprob <= 0 and bytes(i.bytes).decode("utf-8", "replace") == i.token
        assert len(i.top_logprobs) == 3
        assert max(t.logprob for t in i.top_logprobs) == pytest.approx(i.logprob)  # greedy
    assert b"".join(bytes(i.bytes) for i in items).decode() == r.choices[0].message.content
    plain = client.chat.completions.create(model=model, messages=ASK, max_tokens=2, logprobs=True)
    assert plain.choices[0].logprobs.content[0].top_logprobs == []


def test_text_logprobs_and_echo(client, model):
    kw = dict(model=model, prompt="The quick brown fox", max_tokens=4, temperature=0, echo=True,
              logprobs=2)
    r = client.completions.create(**kw)
    c = r.choices[0]
    lp = c.logprobs
    assert c.text.startswith("The quick brown fox")
    assert "".join(lp.tokens) == c.text
    assert len(lp.tokens) == r.usage.prompt_tokens + r.usage.completion_tokens
    assert lp.token_logprobs[0] is None and all(x <= 0 for x in lp.token_logprobs[1:])
    assert [c.text[o:o + len(t)] for o, t in zip(lp.text_offset, lp.tokens)] == lp.tokens
    text, tokens, probs = "", [], []
    for chunk in client.completions.create(stream=True, **kw):
        s = chunk.choices[0]
        text += s.text
        if s.logprobs:
            tokens += s.logprobs.tokens
            probs += s.logprobs.token_logprobs
    assert text == c.text and tokens == lp.tokens
    assert probs[1:] == pytest.approx(lp.token_logprobs[1:])
    scored = client.completions.create(model=model, prompt="The quick brown fox", max_tokens=0,
                                       echo=True, logprobs=0)
    assert scored.choices[0].text == "The quick brown fox"
    assert scored.usage.completion_tokens == 0
    n = scored.usage.prompt_tokens
    assert scored.choices[0].logprobs.token_logprobs[1:] == pytest.approx(lp.token_logprobs[1:n])


def test_prompt_shapes(client, model, rack):
    text = "The sky is"
    _, tok, _ = rack.post("/tokenize", {"prompt": text})
    assert tok["count"] == len(tok["tokens"]) and tok["max_model_len"] > 1000
    assert rack.post("/detokenize", {"tokens": tok["tokens"]})[1]["prompt"] == text
    kw = dict(model=model, max_tokens=5, temperature=0)
    one = client.completions.create(prompt=text, **kw).choices[0].text
    for prompt in ([text], tok["tokens"], [tok["tokens"]]):
        assert client.completions.create(prompt=prompt, **kw).choices[0].text == one
    many = client.completions.create(prompt=[text, "Two plus two is", text], n=2, **kw)
    assert [c.index for c in many.choices] == list(range(6))
    assert {many.choices[i].text for i in (0, 1, 4, 5)} == {one}
    assert many.usage.completion_tokens == 30


def test_stop_token_ids_bias_and_ignore_eos(client, model, rack):
    kw = dict(model=model, prompt="One two three", temperature=0)
    first = client.completions.create(max_tokens=1, logprobs=0, **kw).choices[0]
    ids = rack.post("/tokenize", {"prompt": first.text, "add_special_tokens": False})[1]["tokens"]
    assert len(ids) == 1
    stopped = client.completions.create(max_tokens=5, extra_body={"stop_token_ids": ids}, **kw)
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].text == ""
    banned = client.completions.create(max_tokens=1, logit_bias={str(ids[0]): -100}, **kw)
    assert banned.choices[0].text != first.text
    chat = client.chat.completions.create(model=model, messages=YES, max_tokens=60, temperature=0,
        extra_body={"ignore_eos": True})
    assert chat.choices[0].finish_reason == "length" and chat.usage.completion_tokens == 60


def test_errors(client, model):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-none", messages=ASK)
    assert e.value.code == "model_not_found" and e.value.param == "model"
    for field, kw in {"temperature": dict(temperature=3), "n": dict(n=0),
                      "top_p": dict(top_p=0), "messages": dict(messages=[]),
                      "top_logprobs": dict(logprobs=True, top_logprobs=21),
                      "stop": dict(stop=["a"] * 5),
                      "tools": dict(tools=[{"type": "function", "function": {"name": "f"}}]),
                      "response_format.type": dict(response_format={"type": "json_object"}),
                      "logit_bias": dict(logit_bias={"99999999": 1})}.items():
        for stream in False, True:
            with pytest.raises(openai.BadRequestError) as e:
                client.chat.completions.create(**{**dict(model=model, messages=ASK, stream=stream),
                                                  **kw})
            assert e.value.param == field, field
            assert e.value.type == "invalid_request_error"
            assert e.value.code is None or isinstance(e.value.code, str)
    assert e.value.request_id


def test_cancel_midway_gives_the_kv_back(client, model, rack):
    wait_for(lambda: rack.metric("llmrack_kv_blocks_used") == 0)
    canceled = rack.metric("llmrack_requests_canceled_total")
    stream = client.completions.create(model=model, prompt="Once upon a time " * 30,
                                       max_tokens=4000, stream=True,
                                       extra_body={"ignore_eos": True})
    for i, _ in enumerate(stream):
        if i == 3:
            break
    assert rack.metric("llmrack_kv_blocks_used") > 0
    stream.close()
    start = time.monotonic()
    wait_for(lambda: rack.metric("llmrack_kv_blocks_used") == 0, 10)
    assert rack.metric("llmrack_requests_canceled_total") == canceled + 1
    assert time.monotonic() - start < 5
