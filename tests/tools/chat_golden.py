#!/usr/bin/env python3
"""Write tests/golden/chat.json: conversations and how Jinja renders them, by family.

usage: chat_golden.py DEMO.gguf > tests/golden/chat.json   (needs jinja2 and gguf)

smollm2 is rendered with the template shipped in the demo model, which is not copied; the
others with short templates written here from the published descriptions. An unfinished
assistant turn at the end is rendered as the generation prompt with the text after it.
`control` is the number of special tokens that the template itself writes."""
import json
import random
import sys

from gguf import GGUFReader
from jinja2 import Environment

CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
          "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
DEFAULT = ("{%% if messages[0].role != 'system' %%}<|im_start|>system\n%s<|im_end|>\n"
           "{%% endif %%}")
LLAMA3 = ("{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}"
          "<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
          "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n"
          "{% endif %}")
LLAMA31 = ("{{ bos_token }}{% set sys = '' %}{% if messages[0].role == 'system' %}"
           "{% set sys = messages[0].content | trim %}{% set messages = messages[1:] %}"
           "{% endif %}<|start_header_id|>system<|end_header_id|>\n\n"
           "Cutting Knowledge Date: December 2023\nToday Date: {{ today }}\n\n{{ sys }}"
           "<|eot_id|>" + LLAMA3[len("{{ bos_token }}"):])
LLAMA2 = ("{% if messages[0].role == 'system' %}{% set sys = '<<SYS>>\n' + "
          "messages[0].content + '\n<</SYS>>\n\n' %}{% set messages = messages[1:] %}"
          "{% else %}{% set sys = '' %}{% endif %}{% for m in messages %}"
          "{% if m.role == 'user' %}{{ bos_token }}[INST] "
          "{{ ((sys if loop.first else '') + m.content).strip() }} [/INST]"
          "{% else %} {{ m.content.strip() }} {{ eos_token }}{% endif %}{% endfor %}")
MISTRAL = ("{{ bos_token }}{% set sys = '' %}{% if messages[0].role == 'system' %}"
           "{% set sys = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}"
           "{% endif %}{% for m in messages %}{% if m.role == 'user' %}[INST] "
           "{{ (sys if loop.first else '') + m.content }} [/INST]"
           "{% else %} {{ m.content.strip() }}{{ eos_token }}{% endif %}{% endfor %}")
QWEN3 = ("{% set ns = namespace(last_query_index=messages|length - 1, seek=true) %}"
         "{% for m in messages[::-1] %}{% if ns.seek and m.role == 'user' %}"
         "{% set ns.seek = false %}"
         "{% set ns.last_query_index = messages|length - 1 - loop.index0 %}{% endif %}"
         "{% endfor %}{% for m in messages %}{% set c = m.content %}{% set r = '' %}"
         "{% if m.role == 'assistant' and '</think>' in c %}"
         "{% set r = c.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
         "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
         "<|im_start|>{{ m.role }}\n{% if r and loop.index0 > ns.last_query_index %}"
         "<think>\n{{ r }}\n</think>\n\n{% endif %}{{ c }}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")

OLMOE = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
         "{{ '<|system|>\n' + message['content'] }}{% elif message['role'] == 'user' %}"
         "{{ '<|user|>\n' + message['content'] }}{% else %}"
         "{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{{ '\n' }}"
         "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}")
DS_U, DS_A = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
DEEPSEEK = ("{%% set ns = namespace(sys='', first=true) %%}{%% for m in messages %%}"
            "{%% if m.role == 'system' %%}{%% set ns.sys = ns.sys + ('' if ns.first else '\n\n')"
            " + m.content %%}{%% set ns.first = false %%}{%% endif %%}{%% endfor %%}"
            "{{ bos_token }}{{ ns.sys }}{%% for m in messages %%}{%% if m.role == 'user' %%}"
            "{{ '" + DS_U + "' + m.content }}{%% elif m.role == 'assistant' %%}"
            "{{ '" + DS_A + "%s' + %s + eos_token }}{%% endif %%}{%% endfor %%}"
            "{%% if add_generation_prompt %%}{{ '" + DS_A + "%s' }}{%% endif %%}")
LAST = "m.content.split('</think>')[-1]"
KIMI = ("{% if messages[0].role != 'system' %}<|im_system|>system<|im_middle|>"
        "You are a helpful assistant<|im_end|>{% endif %}{% for m in messages %}"
        "<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}")

IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
L3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
      "<|eot_id|>"]
INST = ["<s>", "</s>"]
DS = ["<b>", "<e>", DS_U, DS_A]
KM = ["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"]
# family, name of the case, template, tokens, bos, eos; None: the demo model's own
FAMILIES = [
    ("smollm2", "demo", None, IM, None, "<|im_end|>"),
    ("chatml", "plain", CHATML, IM, None, "<|im_end|>"),
    ("chatml", "bos", "{{ bos_token }}" + CHATML, IM + ["<s>"], "<s>", "<|im_end|>"),
    ("qwen2", "2.5", DEFAULT % QWEN + CHATML, IM, None, "<|im_end|>"),
    ("qwen2", "2", DEFAULT % "You are a helpful assistant." + CHATML, IM, None, "<|im_end|>"),
    ("qwen2", "tools only", CHATML + "{# <tool_call> #}", IM, None, "<|im_end|>"),
    ("qwen3", "", QWEN3, IM + ["+<think>", "+</think>"], None, "<|im_end|>"),
    ("llama3", "3", LLAMA3, L3, "<|begin_of_text|>", "<|eot_id|>"),
    ("llama3", "3.1", LLAMA31, L3, "<|begin_of_text|>", "<|eot_id|>"),
    ("llama2", "", LLAMA2, INST, "<s>", "</s>"),
    ("mistral", "", MISTRAL, INST, "<s>", "</s>"),
    ("olmoe", "", OLMOE, ["<e>"], "<e>", "<e>"),
    ("deepseek", "v3", DEEPSEEK % ("", "m.content", ""), DS, "<b>", "<e>"),
    ("deepseek", "r1", DEEPSEEK % ("", LAST, "<think>\\n"), DS, "<b>", "<e>"),
    ("deepseek", "v3.1", DEEPSEEK % ("</think>", LAST, "</think>") + "{# thinking #}", DS, "<b>",
     "<e>"),
    ("kimi", "", KIMI, KM, None, "<|im_end|>"),
]
WORDS = ["Hello", "what is 2+2?", "  padded \n", "\n\nlines\n", "", "café €", "don't",
         "<|im_end|>", "<|eot_id|>", "</s>", "<|im_start|>system", "[INST] x [/INST]",
         "<think>\nhm\n</think>\n\nyes", "<think>a</think>b</think>c", "日本語", "\t", "7 77 777"]
TODAY = "01 Feb 2025"


def conversation(rng, inst):
    text = lambda: " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 3)))
    msgs = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    if inst:
        for i in range(rng.randint(1, 6)):
            msgs.append({"role": ["user", "assistant"][i % 2], "content": text()})
    else:
        for _ in range(rng.randint(1, 6)):
            msgs.append({"role": rng.choice(["user", "user", "assistant", "system"]),
                         "content": text()})
    return msgs


def render(template, family, msgs, bos, eos):
    args = dict(bos_token=bos or "", eos_token=eos, today=TODAY)
    if msgs[-1]["role"] != "assistant":
        return template.render(messages=msgs, add_generation_prompt=True, **args)
    last = msgs[-1]["content"]
    if msgs[:-1]:
        head = template.render(messages=msgs[:-1], add_generation_prompt=True, **args)
        head = head.removesuffix("<think>\n")
    elif family == "deepseek":  # nothing stands before it but bos
        whole = template.render(messages=[], add_generation_prompt=True, **args)
        head = whole.removesuffix("<think>\n")
    elif family == "olmoe":
        head = template.render(messages=[], add_generation_prompt=True, **args)
    elif family == "kimi":
        head = template.render(messages=msgs, add_generation_prompt=False, **args)
        head = head[:head.rindex("assistant<|im_middle|>") + len("assistant<|im_middle|>")]
    else:  # a default system turn would look at the first message
        whole = template.render(messages=msgs, add_generation_prompt=False, **args)
        mark = "assistant<|end_header_id|>\n\n" if family == "llama3" else "assistant\n"
        head = whole[:whole.index(mark) + len(mark)]
    if family in ("llama2", "mistral"):
        return head + (" " + last.strip() if last.strip() else "")
    return head + (last.strip() if family == "llama3" else last)


def main():
    fields = GGUFReader(sys.argv[1]).fields
    demo = fields["tokenizer.chat_template"].contents()
    env = Environment(trim_blocks=True, lstrip_blocks=True)
    rng, out = random.Random(11), []
    for family, name, source, tokens, bos, eos in FAMILIES:
        template = env.from_string(demo if source is None else source)
        cases = []
        for _ in range(20):
            msgs = conversation(rng, family in ("llama2", "mistral"))
            plain = [dict(m, content=m["content"].replace("<", "(")) for m in msgs]
            marked = render(template, family, plain, bos, eos)
            cases.append({
                "messages": msgs, "text": render(template, family, msgs, bos, eos),
                "control": sum(marked.count(t) for t in tokens if t[0] != "+")})
        config = dict(bos_token=bos, eos_token=eos, chat_template=source)
        out.append(dict(family=family, name=name, demo=source is None, added=tokens,
                        config={k: v for k, v in config.items() if v}, cases=cases))
    # one case a line
    print('{"today": %s, "families": [' % json.dumps(TODAY))
    for i, f in enumerate(out):
        cases = f.pop("cases")
        print((", " if i else "") + json.dumps(f)[:-1] + ', "cases": [')
        print(",\n".join(json.dumps(c) for c in cases) + "]}")
    print("]}")


main()
