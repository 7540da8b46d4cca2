"""Model files through the whole product: folders and files of other families are served, and
hostile ones are refused with a sentence that names the file, the place and the fault."""
import json
import os
import re
import shutil
import struct
import sys

import pytest

from rack import wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))
tiny_models = pytest.importorskip("tiny_models")
pytest.importorskip("gguf")

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
SMALL = ("--kv-mib", "4")
ASK = {"prompt": "the inner heart", "max_tokens": 12, "temperature": 0, "ignore_eos": True,
       "logprobs": 2}
HELLO = [{"role": "user", "content": "hello"}]

pytestmark = pytest.mark.san


def make(path, **spec):
    tiny_models.write(tiny_models.Spec(**spec), str(path))
    return str(path)


def edit(path, change):
    """Rewrite a JSON file by change(object)."""
    with open(path) as f:
        obj = json.load(f)
    change(obj)
    with open(path, "w") as f:
        json.dump(obj, f)


# ---- served ----

@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_folder_and_file_say_the_same(start, tmp_path, family):
    """The same weights as a sharded Hugging Face folder and as GGUF: the same answer."""
    answers = []
    for name, shards in ("folder", 3), ("file.gguf", 1):
        r = start(*SMALL, model=make(tmp_path / name, family=family, shards=shards))
        m = r.local("/api/v1/models")["models"][0]
        assert (m["family"], m["type"]) == (family if shards > 1 or family != "mistral" else
                                            "llama", "F32")
        status, a, _ = r.post(TEXT, ASK)
        assert status == 200 and a["usage"]["completion_tokens"] == 12
        answers.append(a["choices"][0])
        status, a, _ = r.post(CHAT, {"messages": HELLO, "max_tokens": 4, "ignore_eos": True})
        assert status == 200 and a["usage"]["completion_tokens"] == 4
        r.stop()
    folder, file = (re.sub("<pad[0-9]+>", "", a["text"]) for a in answers)  # unused in GGUF
    assert folder == file and folder
    assert answers[0]["logprobs"]["token_logprobs"] == pytest.approx(
        answers[1]["logprobs"]["token_logprobs"], abs=1e-3)


def test_unknown_template(start, tmp_path):
    """Chat is refused with a sentence, completions work."""
    path = make(tmp_path / "folder")
    edit(tmp_path / "folder" / "tokenizer_config.json",
         lambda c: c.update(chat_template="{{ messages[0]['content'] }}"))
    r = start(*SMALL, model=path)
    status, a, _ = r.post(CHAT, {"messages": HELLO})
    assert status == 400 and "no chat template that this server knows" in a["error"]["message"]
    assert r.post(TEXT, ASK)[0] == 200


# ---- refused ----

def reason(start, path):
    """What the daemon, which lives, says of a model that it cannot serve."""
    r = start(*SMALL, model=str(path), ready=False)
    text = wait_for(lambda: r.instance().get("error"))
    status, _, body = r.get("/readyz")
    assert status == 503 and r.get("/healthz")[0] == 200
    assert text in json.loads(body)["error"]["message"] and text in r.logged()
    print(text)
    return text


def safetensors_header(path, change):
    """Rewrite the header of a safetensors file by change(object)."""
    with open(path, "rb") as f:
        data = f.read()
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    change(header)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data[8 + n:])


def test_cut_gguf(start, tmp_path):
    path = make(tmp_path / "cut.gguf")
    os.truncate(path, os.path.getsize(path) - 1000)
    text = reason(start, path)
    assert "cut.gguf" in text and "tensor '" in text and "cut short" in text


def test_gguf_with_a_huge_count(start, tmp_path):
    path = make(tmp_path / "huge.gguf")
    with open(path, "r+b") as f:
        f.seek(8)
        f.write(struct.pack("<Q", 1 << 60))
    text = reason(start, path)
    assert "huge.gguf" in text and str(1 << 60) in text


def test_no_model_at_all(start, tmp_path):
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"\x7fELF" + bytes(4096))
    assert "noise.gguf" in reason(start, path)
    (tmp_path / "empty").mkdir()
    text = reason(start, tmp_path / "empty")
    assert "empty" in text and "config.json" in text


def test_lying_safetensors(start, tmp_path):
    good = make(tmp_path / "good")
    name = "model.layers.1.mlp.up_proj.weight"

    def beyond(h):
        h[name]["data_offsets"] = [h[name]["data_offsets"][0], 1 << 50]

    def negative(h):
        h[name]["data_offsets"] = [-8, 8]

    def wide(h):
        h[name]["shape"] = [1 << 40, 1 << 40]

    def other_shape(h):
        h[name]["shape"] = h[name]["shape"][::-1]

    def other_type(h):
        h[name]["dtype"] = "F8_E4M3"

    for change in beyond, negative, wide, other_shape, other_type, lambda h: h.pop(name):
        path = tmp_path / "bad"
        shutil.copytree(good, path)
        safetensors_header(path / "model.safetensors", change)
        text = reason(start, path)
        assert "bad" in text and name in text, text
        shutil.rmtree(path)


def test_safetensors_with_a_huge_header(start, tmp_path):
    path = make(tmp_path / "folder")
    with open(tmp_path / "folder" / "model.safetensors", "r+b") as f:
        f.write(struct.pack("<Q", 1 << 62))
    text = reason(start, path)
    assert "model.safetensors" in text and "header" in text


def test_shard_outside_the_folder(start, tmp_path):
    path = make(tmp_path / "folder", shards=2)
    edit(tmp_path / "folder" / "model.safetensors.index.json",
         lambda i: i["weight_map"].update({"model.norm.weight": "../../etc/passwd"}))
    text = reason(start, path)
    assert "model.safetensors.index.json" in text and "../../etc/passwd" in text


def test_family_that_is_not_supported(start, tmp_path):
    path = make(tmp_path / "folder")
    edit(tmp_path / "folder" / "config.json",
         lambda c: c.update(model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"]))
    text = reason(start, path)
    assert "gpt_neox" in text
    for family in "llama", "mistral", "qwen2", "qwen3":
        assert family in text, text


def test_config_that_does_not_fit_the_weights(start, tmp_path):
    path = make(tmp_path / "folder")
    edit(tmp_path / "folder" / "config.json", lambda c: c.update(intermediate_size=97))
    text = reason(start, path)
    assert "mlp" in text and "97" in text
