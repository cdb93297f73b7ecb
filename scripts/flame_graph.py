#!/usr/bin/env python3
"""A flame graph as SVG out of `perf script`, without any package:

    perf record -F 799 --call-graph dwarf,8192 -o perf.data -- build/release/src/cli/quire bench latency --batch-size 32 ...
    perf script --no-inline -F comm,tid,ip,sym -i perf.data | scripts/flame_graph.py --title "32 sequences" > flame.svg

A box is a function, as wide as its share of the samples; below it is who called it. Names are shortened: what stands in brackets
goes, and the namespaces of quire. --least leaves out what has less than that share (0.002); --without leaves out stacks that have such a function (start and loading, say);
--threads puts a row of thread names under all.
"""

import argparse
import collections
import re
import sys
from xml.sax.saxutils import escape

WIDTH, ROW = 1000, 17
PASSED_THROUGH = re.compile(r"^(clone3?|start_thread|__libc_start\w*|_start|std::__invoke.*|.*FunctionRef.*|std::_Function_handler.*|.*_M_invoke)$")
CALLED = {"std::thread::_State_impl::_M_run": "worker: runs, or waits for the next region", "ThreadPool::run": "runs, or waits for the worker"}


def shorter(name):
    if "FunctionRef<" in name:
        return "?"
    name = re.sub(r"\(anonymous namespace\)::|quire::|\[clone .*\]|std::__1::", "", name)
    while True:
        bare = re.sub(r"<[^<>]*>|\([^()]*\)", "", name)
        if bare == name:
            break
        name = bare
    name = name.replace("const", "").strip().split(" ")[-1].removeprefix("ops::cpu::").removeprefix("avx512::") or "?"
    return "?" if PASSED_THROUGH.match(name) else CALLED.get(name, name)


def stacks(lines, with_threads):
    """{stack from its root: samples}."""
    found = collections.Counter()
    stack, thread = [], ""
    for line in [*lines, "\n"]:
        if not line.strip():
            if stack:
                found[tuple(([thread] if with_threads else []) + stack[::-1])] += 1
            stack = []
        elif line[0] not in " \t":
            thread = line.split()[0]
        else:
            words = line.strip().split(" ", 1)
            name = words[1].rsplit(" (", 1)[0].split("+0x")[0] if len(words) > 1 else "?"
            stack.append("?" if name == "[unknown]" else shorter(name))
    return found


class Node:
    def __init__(self):
        self.samples, self.children = 0, {}


def tree(found):
    root = Node()
    for stack, samples in found.items():
        node = root
        node.samples += samples
        for name in stack:
            if name == "?":
                continue
            node = node.children.setdefault(name, Node())
            node.samples += samples
    return root


def colour(name):
    if re.search(r"linear|product|panel|lattice|gemm|matmul", name, re.I):
        return "#1b6ca8"
    if re.search(r"attention|attend", name, re.I):
        return "#d1495b"
    if re.search(r"quanti|round|norm|rope|swiglu|silu|activation|rotate", name, re.I):
        return "#edae49"
    if re.search(r"wait|spin|park|futex|barrier|pool", name, re.I):
        return "#8d99ae"
    if re.search(r"sampl|token|draw|json|http|beast|asio|server", name, re.I):
        return "#66a182"
    return "#c9b79c"


def depth(node):
    return 1 + max(map(depth, node.children.values()), default=0)


def draw(root, title, least):
    def kept(node):
        node.children = {name: child for name, child in node.children.items() if child.samples >= least * root.samples}
        for child in node.children.values():
            kept(child)

    kept(root)
    rows = depth(root) - 1
    height = 40 + ROW * rows + 8
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="10.5" '
             'fill="#111">',
             f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
             f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="15">{escape(title)}</text>']

    def boxes(node, left, level):
        for name, child in sorted(node.children.items(), key=lambda one: -one[1].samples):
            wide = WIDTH * child.samples / root.samples
            y = height - 8 - ROW * (level + 1)
            share = 100 * child.samples / root.samples
            parts.append(f'<g><title>{escape(name)}: {share:.1f} %</title><rect x="{left:.1f}" y="{y}" width="{max(wide - 0.5, 0.3):.1f}" '
                         f'height="{ROW - 1}" fill="{colour(name)}" fill-opacity="0.8"/>')
            room = int((wide - 4) / 6.4)
            if room > 4:
                text = f"{name} {share:.0f} %" if len(name) + 6 <= room else name[:room]
                parts.append(f'<text x="{left + 3:.1f}" y="{y + 12}">{escape(text)}</text>')
            parts.append("</g>")
            boxes(child, left, level + 1)
            left += wide

    boxes(root, 0.0, 0)
    return "\n".join([*parts, "</svg>"]) + "\n"


def own_shares(found, total):
    own = collections.Counter()
    for stack, samples in found.items():
        own[next((name for name in reversed(stack) if name != "?"), "?")] += samples
    return "".join(f"{100 * samples / total:6.2f} %  {name}\n" for name, samples in own.most_common(40))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--title", default="samples")
    parser.add_argument("--least", type=float, default=0.002)
    parser.add_argument("--threads", action="store_true", help="the lowest row is the threads' names")
    parser.add_argument("--shares", action="store_true", help="a list of functions and their own shares, instead of a picture")
    parser.add_argument("--without", help="a regular expression")
    options = parser.parse_args()
    found = stacks(sys.stdin, options.threads)
    if options.without:
        found = {stack: samples for stack, samples in found.items() if not any(re.search(options.without, name) for name in stack)}
    total = sum(found.values())
    if not total:
        sys.exit("error: no samples")
    if options.shares:
        sys.stdout.write(own_shares(found, total))
        return
    sys.stdout.write(draw(tree(found), options.title, options.least))


if __name__ == "__main__":
    main()
