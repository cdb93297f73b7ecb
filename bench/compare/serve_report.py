"""What bench/serve_all.py measured, as CSV, tables and plots. Imported, never run."""

import contextlib
import csv
import json
import os
import pathlib
import subprocess

import common
import svg_plot
from common import figure, median, ratio

# key of a run, title, whether more is better (None: no ratio)
CLOSED = (("output_throughput", "output tok/s", True), ("request_throughput", "requests/s", True), ("p50_ttft_ms", "TTFT p50, ms", False),
          ("p95_ttft_ms", "p95", False), ("p99_ttft_ms", "p99", False), ("p50_tpot_ms", "TPOT p50, ms", False),
          ("p95_tpot_ms", "p95", False), ("p50_e2el_ms", "end to end p50, ms", False), ("p95_e2el_ms", "p95", False),
          ("failed", "failed", None), ("retried", "sent again", None))
IN_README = ("output_throughput", "p50_ttft_ms", "p95_ttft_ms", "p50_tpot_ms", "failed")
NUMBERS = ("duration", "completed", "failed", "retried", "total_input_tokens", "total_output_tokens", "request_throughput",
           "output_throughput", *(f"p{percent}_{what}_ms" for what in ("ttft", "tpot", "itl", "e2el") for percent in (50, 95, 99)))
BINS = 120  # of a burst's time line
BEGIN, END = "<!-- serve_all: begin -->", "<!-- serve_all: end -->"


def kept(found):
    """Of the load's JSON what a line of runs.jsonl keeps."""
    row = {key: found.get(key) for key in NUMBERS}
    row["failed_by_kind"] = {kind: count for kind, count in found.get("failed_by_kind", {}).items() if count}
    if found.get("itls"):
        row["timeline"] = timeline(found)
    return row


def timeline(found):
    """[seconds, answer tokens so far, requests that have begun to answer] of a burst."""
    begin = min(found["start_times"])
    firsts, tokens = [], []
    for start, first, gaps in zip(found["start_times"], found["ttfts"], found["itls"]):
        moment = start - begin + first
        firsts.append(moment)
        tokens.append(moment)
        for gap in gaps:
            moment += gap
            tokens.append(moment)
    end = max(tokens)
    return [[round(end * step / BINS, 3), sum(moment <= end * step / BINS for moment in tokens),
             sum(moment <= end * step / BINS for moment in firsts)] for step in range(BINS + 1)]


def machine(options, peers):
    versions = {}
    for server in options.engines:
        engine = server.split(":")[0].split("+")[0]
        with contextlib.suppress(RuntimeError, OSError):
            versions[engine] = common.run([options.quire, "--version"]).split()[1] if engine == "quire" else peers.version(engine)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        versions["commit"] = subprocess.run(["git", "-C", common.ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                                            check=True).stdout.strip()
    options.bench_ops = common.ROOT / "build/release/bench/bench_ops"
    return {"processor": common.processor(), "limits": common.machine_limits(options), "versions": versions}


class Results:
    def __init__(self, rows, engines=()):
        """engines: in this order, whatever was measured first; others behind them."""
        places = {server: place for place, server in enumerate(engines)}
        rows = sorted(rows, key=lambda row: places.get(row["server"], len(places)))
        self.rows = [row for row in rows if "problem" not in row]
        self.problems = [row for row in rows if "problem" in row]

    def servers(self, kind):
        return list(dict.fromkeys(row["server"] for row in self.rows if row["load"].startswith(kind) and "+" not in row["server"]))

    def values(self, kind):
        return sorted({float(row["load"].split(":")[1]) for row in self.rows if row["load"].startswith(kind) and "+" not in row["server"]})

    def all(self, server, load, key):
        return [row[key] for row in self.rows if (row["server"], row["load"]) == (server, load) and row.get(key) is not None]

    def value(self, server, load, key):
        found = self.all(server, load, key)
        return (sum(found) if key in ("failed", "retried") else median(found)) if found else None

    def times_better(self, server, load, key, mine, more_is_better):
        """How many times better mine is: the median over the runs that both have, since each run has chats of its own."""
        ours, theirs = ({row["run"]: row[key] for row in self.rows if (row["server"], row["load"]) == (name, load)
                         and row.get(key) is not None} for name in (mine, server))
        pairs = [(ours[run], theirs[run]) for run in ours.keys() & theirs.keys()]
        found = [ratio(*pair) if more_is_better else ratio(*reversed(pair)) for pair in pairs]
        return median([one for one in found if one]) if any(found) else None

    def cell(self, server, load, key, mine, more_is_better, with_range=True):
        found = self.all(server, load, key)
        if not found:
            return ""
        value = self.value(server, load, key)
        if more_is_better is None:
            return f"{value:.0f}"
        text = figure(value)
        if with_range and len(found) > 1:
            text += f" [{figure(min(found))} to {figure(max(found))}]"
        of = self.times_better(server, load, key, mine, more_is_better) if server != mine else None
        return text + (f" ({of:.2f} x)" if of else "")


def load_table(results, kind, first_column, columns=CLOSED, only=None, with_range=True):
    names = results.servers(kind)
    rows = []
    for value in results.values(kind):
        if only and value not in only:
            continue
        load = f"{kind}:{value:g}"
        for server in names:
            if results.all(server, load, "output_throughput"):
                runs = [str(len(results.all(server, load, "output_throughput")))] if with_range else []
                rows.append([f"{value:g}", called(server), *runs,
                             *(results.cell(server, load, key, names[0], better, with_range) for key, _, better in columns)])
    header = [first_column, "server", *(["runs"] if with_range else []), *(title for _, title, _ in columns)]
    return common.markdown_table(header, rows) if rows else ""


def called(server):
    names = {"llama.cpp": "llama-server", "openvino": "OpenVINO GenAI", "vllm": "vLLM"}
    engine, _, name = server.partition(":")
    return names.get(engine, engine) + (f", {name}" if name else "")


def process_table(results):
    rows = []
    names = results.servers("closed")
    loads = [f"closed:{value:g}" for value in results.values("closed")]
    for server in names:
        starts = [value for load in loads for value in results.all(server, load, "start_s")]
        firsts = [value for load in loads for value in results.all(server, load, "first_answer_s")]
        rows.append([called(server), f"{median(starts):.2f}", f"{median(firsts):.2f}",
                     *(figure(max(results.all(server, load, "peak_mb"), default=None)) for load in loads)])
    header = ["server", "start, s", "to the first token, s", *(f"MB at {load.split(':')[1]}" for load in loads)]
    return common.markdown_table(header, rows) if rows else ""


def gain(results):
    """What many clients at once bring, beside one."""
    rows = []
    for server in results.servers("closed"):
        one = results.value(server, "closed:1", "output_throughput")
        if one:
            rows.append([called(server), *(f"{ratio(results.value(server, f'closed:{value:g}', 'output_throughput'), one) or 0:.2f} x"
                                           for value in results.values("closed"))])
    header = ["output tok/s, of one client's", *(f"{value:g}" for value in results.values("closed"))]
    return common.markdown_table(header, rows) if rows else ""


def sweep_tables(results):
    found = {}
    for row in results.rows:
        if "+" in row["server"]:
            flag, value = row["server"].split("+")[1].split("_", 1)
            found.setdefault(flag, {})[int(value) if value.isdigit() else value] = row
    return {flag: dict(sorted(rows.items(), key=lambda item: (isinstance(item[0], str), item[0]))) for flag, rows in found.items()}


def sweeps(results):
    parts = []
    for flag, rows in sweep_tables(results).items():
        keys = ("output_throughput", "p50_ttft_ms", "p95_ttft_ms", "p50_tpot_ms", "p95_itl_ms", "peak_mb")
        table = common.markdown_table([f"`{flag}`", "output tok/s", "TTFT p50, ms", "p95", "TPOT p50, ms", "ITL p95, ms", "peak MB"],
                                      [[str(value), *(figure(row.get(key)) for key in keys)] for value, row in rows.items()])
        parts.append(table)
    return "\n\n".join(parts)


def head(options, facts):
    limits = facts.get("limits") or {}
    bounds = (f" The machine read {limits['bytes'] / 1e9:.1f} GB/s and did {limits['flop'] / 1e9:.0f} GFLOP/s in float32"
              + (f", {limits['int8'] / 1e9:.0f} Gop/s in 8 bits" if "int8" in limits else "") + ".") if limits else ""
    versions = ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    return f"{facts.get('processor', '')}. {versions}.{bounds}"


def sections(options, results, facts, settings):
    yield (f"{head(options, facts)}\n\nSettings: {settings}. Medians of the runs, with smallest and largest; in brackets how many times "
           "better the first is, the median over the runs that both made, for each run has its own chats.")
    yield "## Closed loop\n\n" + load_table(results, "closed", "clients")
    if gain(results):
        yield gain(results)
    yield "## Start and memory\n\nMegabytes of all processes of a server; the highest of its runs.\n\n" + process_table(results)
    for kind, title, first in (("open", "Open loop", "requests/s"), ("burst", "All at once", "requests")):
        table = load_table(results, kind, first)
        if table:
            yield f"## {title}\n\n{table}"
    if sweep_tables(results):
        yield "## Settings of quire\n\nOne run each: what runs of one setting differ by is above.\n\n" + sweeps(results)
    if results.problems:
        yield "## Not measured\n\n" + "\n".join(f"- {row['server']}, {row['load']}, run {row['run']}: {row['problem'][:200]}"
                                               for row in results.problems)


def series(results, kind, key):
    return {called(server): [(value, results.value(server, f"{kind}:{value:g}", key)) for value in results.values(kind)
                             if results.value(server, f"{kind}:{value:g}", key) is not None] for server in results.servers(kind)}


def plots(results, folder):
    folder.mkdir(parents=True, exist_ok=True)
    drawn = (("closed", "output_throughput", "Answer tokens a second, by clients", "clients", "tok/s"),
             ("closed", "p95_ttft_ms", "Time to the first token, p95", "clients", "ms"),
             ("closed", "p50_tpot_ms", "Time per token after it, p50", "clients", "ms"),
             ("closed", "peak_mb", "Resident memory at its peak", "clients", "MB"),
             ("open", "p95_ttft_ms", "Time to the first token, p95, by arriving requests", "requests a second", "ms"),
             ("open", "output_throughput", "Answer tokens a second, by arriving requests", "requests a second", "tok/s"))
    for kind, key, title, x_name, unit in drawn:
        found = series(results, kind, key)
        if any(found.values()):
            (folder / f"serve-{kind}-{key.replace('_', '-')}.svg").write_text(
                svg_plot.lines(title, x_name, unit, found, logarithmic_x=True))
    bursts = {}
    for row in results.rows:
        if row.get("timeline") and "+" not in row["server"]:
            bursts.setdefault(called(row["server"]), [(seconds, tokens) for seconds, tokens, _ in row["timeline"]][::4])
    if bursts:
        text = svg_plot.lines("Answer tokens after a burst", "seconds since all were sent", "tokens", bursts)
        (folder / "serve-burst.svg").write_text(text)
    for flag, rows in sweep_tables(results).items():
        if any(isinstance(value, str) for value in rows):
            continue
        found = {"output tok/s": [(value, row["output_throughput"]) for value, row in rows.items()]}
        (folder / f"sweep-{flag.strip('-')}.svg").write_text(
            svg_plot.lines(f"quire by {flag}", flag, "tok/s", found, logarithmic_x=True))


def write_csv(rows, path):
    keys = ("server", "load", "run", "requests", *NUMBERS, "start_s", "first_answer_s", "peak_mb", "seconds", "problem")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(keys)
        for row in rows:
            writer.writerow([f"{row[key]:.6g}" if isinstance(row.get(key), float) else row.get(key, "") for key in keys])


def readme_table(options, results, facts):
    columns = [column for column in CLOSED if column[0] in IN_README]
    table = load_table(results, "closed", "clients", columns, only=(1, 32, 64), with_range=False)
    runs = max((row["run"] for row in results.rows), default=0)
    more = f" [All of it]({relative(options.page, options.readme.parent)})." if options.page else ""
    return f"{BEGIN}\n{table}\n\n`bench/serve_all.py`, medians of up to {runs} runs. {head(options, facts)}{more}\n{END}"


def relative(path, folder):
    return pathlib.Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def write_page(options, text, plots_folder):
    """The whole report as a page of docs/, with its pictures."""
    pictures = "\n".join(f"![{picture.stem}]({relative(picture, options.page.parent)})" for picture in sorted(plots_folder.glob("*.svg"))
                         if picture.name.startswith(("serve-", "sweep-")))
    options.page.write_text(f"# Servers beside each other\n\nMade by `bench/serve_all.py --report --page`; what is measured: "
                            f"[benchmarking.md](benchmarking.md#servers-beside-each-other).\n\n{text}\n## Pictures\n\n{pictures}\n")


def write(options, rows):
    """Everything into options.out; the text of the report."""
    results = Results(rows, options.engines)
    path = options.out / "machine.json"
    facts = json.loads(path.read_text()) if path.exists() else {}
    text = "\n\n".join(sections(options, results, facts, rows[0]["settings"])) + "\n"
    (options.out / "serve.md").write_text(text)
    write_csv(rows, options.out / "serve.csv")
    plots_folder = options.plots or options.out / "plots"
    plots(results, plots_folder)
    if options.page:
        write_page(options, text, plots_folder)
    if options.readme:
        before, rest = options.readme.read_text().split(BEGIN)
        options.readme.write_text(before + readme_table(options, results, facts) + rest.split(END)[1])
    return text
