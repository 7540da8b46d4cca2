#!/usr/bin/env python3
"""Draw a terminal's text as an SVG picture for the README. Backgrounds of 256 colours are drawn;
other escapes are left out.

usage: shot.py TITLE < text > picture.svg"""
import re
import sys
from xml.sax.saxutils import escape

SIZE, LINE, PAD, BAR = 13, 18, 16, 30


def colour(n):
    """Of the xterm palette, from 16 on."""
    if n >= 232:
        return f"#{8 + 10 * (n - 232):02x}" + f"{8 + 10 * (n - 232):02x}" * 2
    n -= 16
    return "#" + "".join(f"{55 + 40 * v if v else 0:02x}" for v in (n // 36, n // 6 % 6, n % 6))


def parts(line):
    """(column, columns, background or None) of its pieces, and the text without escapes."""
    text, back, out = "", None, []
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        if piece.startswith("\x1b"):
            m = re.search(r"48;5;(\d+)", piece)
            back = colour(int(m[1])) if m else None
            continue
        if back:
            out.append((len(text), len(piece), back))
        text += piece
    return text, out


def main():
    lines, backs = zip(*map(parts, sys.stdin.read().rstrip("\n").split("\n")))
    width = int(max(map(len, lines)) * SIZE * 0.602) + 2 * PAD
    height = len(lines) * LINE + BAR + 2 * PAD - 6
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
          f'viewBox="0 0 {width} {height}">')
    print(f'<rect width="{width}" height="{height}" rx="8" fill="#16181d"/>')
    for i, colour in enumerate(("#e0675c", "#e3b341", "#57ab5a")):
        print(f'<circle cx="{PAD + 6 + 18 * i}" cy="18" r="5.5" fill="{colour}"/>')
    print(f'<text x="{width / 2}" y="22" fill="#8b949e" font-family="sans-serif" font-size="12" '
          f'text-anchor="middle">{escape(sys.argv[1])}</text>')
    print(f'<g font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="{SIZE}" '
          f'fill="#d5dae0" xml:space="preserve">')
    for n, line in enumerate(lines):
        y = BAR + PAD + n * LINE
        for at, wide, back in backs[n]:
            print(f'<rect x="{PAD + at * SIZE * 0.602:.1f}" y="{y - 13}" '
                  f'width="{wide * SIZE * 0.602 + 0.3:.1f}" height="{LINE}" fill="{back}"/>')
        prompt = line.startswith(("$ ", "llmctl> ", "llmctl (", "you> "))
        fill = ' fill="#7fc8f8"' if prompt else ' fill="#8b949e"' if line.startswith("[") else ""
        print(f'<text x="{PAD}" y="{y}"{fill}>{escape(line)}</text>')
    print("</g></svg>")


if __name__ == "__main__":
    main()
