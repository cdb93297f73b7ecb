#!/usr/bin/env python3
"""Plots what quire_simulate wrote (docs/scheduling.md has the commands):

    scripts/plot_simulation.py RATES_CSV [--out docs/plots]
    scripts/plot_simulation.py --layouts CSV... [--out docs/plots]

Needs matplotlib. Writes throughput.svg, latency.svg and stalls.svg; of several layouts of one model
(docs/distributed.md), layouts.svg.
"""

import argparse
import csv
import pathlib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent.parent
POLICIES = {"quire": "#1b6ca8", "prefill-first": "#d1495b", "static": "#8d99ae"}


def series(rows, policy, column):
    chosen = sorted((row for row in rows if row["policy"] == policy), key=lambda row: float(row["rate"]))
    return [float(row["rate"]) for row in chosen], [float(row[column]) for row in chosen]


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def plot(rows, path, title, unit, columns, logarithmic):
    figure, axes = plt.subplots(figsize=(7, 4))
    for policy, colour in POLICIES.items():
        for column, style, label in columns:
            rates, values = series(rows, policy, column)
            if rates:
                axes.plot(rates, values, style, color=colour, label=f"{policy} {label}".strip(), marker=".")
    if logarithmic:
        axes.set_yscale("log")
    axes.set_title(title)
    axes.set_xlabel("requests arriving a second")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)


def plot_layouts(files, path):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
    for file in files:
        with file.open() as lines:
            rows = [row for row in csv.DictReader(lines) if float(row["rate"]) > 0]
        name = rows[0]["policy"]
        rates, tokens = series(rows, name, "answer_tokens_per_second")
        (line,) = left.plot(rates, tokens, marker=".", label=name)
        for column, style in (("itl_p50", "-"), ("itl_p99", "--")):
            rates, gaps = series(rows, name, column)
            right.plot(rates, [1e3 * gap for gap in gaps], style, color=line.get_color(), marker=".")
    left.set_title("Answer tokens a second")
    right.set_title("Between two tokens of an answer: p50, p99 (dashed)")
    right.set_ylabel("ms")
    right.set_yscale("log")
    for axes in (left, right):
        axes.set_xlabel("requests arriving a second")
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    save(figure, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rates", type=pathlib.Path, nargs="?")
    parser.add_argument("--layouts", type=pathlib.Path, nargs="+")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "plots")
    options = parser.parse_args()
    matplotlib.rcParams["svg.hashsalt"] = "quire"
    options.out.mkdir(parents=True, exist_ok=True)
    if options.layouts:
        plot_layouts(options.layouts, options.out / "layouts.svg")
        return
    if options.rates is None:
        parser.error("RATES_CSV or --layouts is wanted")
    with options.rates.open() as file:
        rows = list(csv.DictReader(file))
    plot(rows, options.out / "throughput.svg", "Answer tokens a second", "tokens/s",
         [("answer_tokens_per_second", "-", "")], False)
    plot(rows, options.out / "latency.svg", "Time to the first token", "seconds",
         [("ttft_p50", "-", "p50"), ("ttft_p99", "--", "p99")], True)
    plot(rows, options.out / "stalls.svg", "Time between two tokens of an answer", "seconds",
         [("itl_p50", "-", "p50"), ("itl_p99", "--", "p99")], True)


if __name__ == "__main__":
    main()
