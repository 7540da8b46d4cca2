#!/usr/bin/env python3
"""Write tests/golden/pretok.txt: how the published pre-tokeniser patterns split text.

usage: pretok_golden.py INP > tests/golden/pretok.txt   (needs the `regex` module)

INP is ggml-vocab-gpt-2.gguf.inp of the recorded vectors; its strings are not copied, only
their splits. The random strings are drawn from characters on which the Unicode versions
of this Python and of `regex` agree, and are kept in hex.

Lines: `text HEX` a random string; `set NAME` a pattern; then for each string of INP and
each random one, in order, `split N N ..` lengths of the words in bytes."""
import random
import sys
import unicodedata

import regex

SPACE = r"\x09-\x0d\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PRE = r"[^\r\n\p{L}\p{N}]?"
PUNCT = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
SETS = {
    "gpt2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama3": [SHORT + "|" + PRE + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "qwen2": [SHORT + "|" + PRE + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "deepseek-v3": [
        r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        PUNCT + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + TAIL],
    "o200k": [
        PRE + UP + "*" + LOW + "+" + SHORT + "?|" + PRE + UP + "+" + LOW + "*" + SHORT +
        r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL],
}


def spell_out(pattern):
    """White_Space written out, inside and outside of classes."""
    out, in_class, i = "", False, 0
    while i < len(pattern):
        two = pattern[i:i + 2]
        if two == r"\s":
            out += SPACE if in_class else "[" + SPACE + "]"
        elif two == r"\S":
            out += "[^" + SPACE + "]"
        elif two[0] == "\\":
            out += two
        else:
            in_class = two[0] == "[" or (in_class and two[0] != "]")
            out += two[0]
            i -= 1
        i += 2
    return out


def split(stages, text):
    pieces = [text]
    for stage in stages:
        cut = []
        for piece in pieces:
            at = 0
            for m in stage.finditer(piece):
                cut += [piece[at:m.start()], m.group()]
                at = m.end()
            cut.append(piece[at:])
        pieces = [p for p in cut if p]
    return pieces


def alphabet():
    by_class = {}
    for cp in range(0x110000):
        c, cat = chr(cp), unicodedata.category(chr(cp))
        if cat not in ("Cn", "Cs", "Co") and regex.match(r"\p{%s}" % cat, c):
            by_class.setdefault(cat, []).append(c)
    return by_class


def draw(rng, by_class):
    common = "abcXYZ 019'\"-.,!?\n\r\t  'sS'll'RE/_中文かナ\u017f\u00a0\u3000\u0301"
    out = ""
    for _ in range(rng.randint(5, 40)):
        kind = rng.random()
        if kind < 0.6:
            out += rng.choice(common)
        elif kind < 0.7:
            out += rng.choice(" \n\r\t") * rng.randint(1, 5)
        elif kind < 0.8:
            out += rng.choice(["'s", "'Re", "'LL", "'\u017f", "123456", "HTMLParser", "don't"])
        else:
            out += rng.choice(by_class[rng.choice(sorted(by_class))])
    return out


def main():
    with open(sys.argv[1], "rb") as f:
        strings = f.read().decode().split("\n__ggml_vocab_test__\n")[:-1]
    rng, by_class = random.Random(7), alphabet()
    drawn = [draw(rng, by_class) for _ in range(80)]
    print(f"# tests/tools/pretok_golden.py, regex {regex.__version__}, "
          f"Unicode {unicodedata.unidata_version}")
    for s in drawn:
        print("text", s.encode().hex())
    for name, patterns in SETS.items():
        print("set", name)
        stages = [regex.compile(spell_out(p)) for p in patterns]
        for s in strings + drawn:
            print("split", *(len(w.encode()) for w in split(stages, s)))


main()
