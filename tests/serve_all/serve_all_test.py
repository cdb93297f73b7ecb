#!/usr/bin/env python3
"""bench/serve_all.py without its servers: what is measured once, what is tried again, what its tables say."""

import json
import pathlib
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/compare"), str(ROOT / "scripts")]

import serve_all
import serve_report
import servers


def run(server, load, number=1, **values):
    row = {key: 10.0 for key in serve_report.NUMBERS} | {"failed": 0, "retried": 0, "start_s": 0.2, "first_answer_s": 0.3, "peak_mb": 300.0,
                                                         "seconds": 3.0, "requests": 8, "settings": "these"}
    return row | {"server": server, "load": load, "run": number} | values


class Session(serve_all.Session):
    """Notes what would be measured, and finds what `speeds` says."""

    def __init__(self, options, measured, speeds):
        super().__init__(options, None, None, measured)
        self.speeds, self.asked = speeds, []

    def measure(self, server, load, number):
        if self.measured.has(server, load, number):
            return
        self.asked.append((server, serve_all.text_of(load), number))
        self.measured.add(run(server, serve_all.text_of(load), number, request_throughput=self.speeds[server]))


def options(**more):
    return types.SimpleNamespace(**({"full": False, "minutes": 1, "engines": ["quire", "llama.cpp"], "clients": [1, 32],
                                     "rates": [1, 2, 4, 8], "burst": 0, "runs": 2, "kept_runs": 1, "parts": ["closed", "open"]} | more))


class Measured(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "runs.jsonl"

    def tearDown(self):
        self.folder.cleanup()

    def test_a_second_call_measures_only_what_is_missing(self):
        first = Session(options(), serve_all.Measured(self.path, "these"), {"quire": 3.0, "llama.cpp": 0.5})
        first.all()
        second = Session(options(runs=3), serve_all.Measured(self.path, "these"), first.speeds)
        second.all()
        self.assertEqual({number for _, load, number in second.asked if load.startswith("closed")}, {3})
        self.assertEqual(len(second.asked), 4)

    def test_rates_end_with_the_first_that_is_more_than_a_server_does(self):
        session = Session(options(), serve_all.Measured(self.path, "these"), {"quire": 3.0, "llama.cpp": 0.5})
        session.all()
        open_loops = [(server, load) for server, load, _ in session.asked if load.startswith("open")]
        self.assertEqual(open_loops, [("quire", "open:1"), ("quire", "open:2"), ("quire", "open:4"), ("llama.cpp", "open:1")])

    def test_what_failed_is_tried_again_and_other_settings_are_refused(self):
        measured = serve_all.Measured(self.path, "these")
        load = serve_all.Load("closed", 1)
        measured.add({"server": "quire", "load": "closed:1", "run": 1, "problem": "did not start"})
        self.assertFalse(serve_all.Measured(self.path, "these").has("quire", load, 1))
        measured.add(run("quire", "closed:1"))
        self.assertTrue(serve_all.Measured(self.path, "these").has("quire", load, 1))
        with self.assertRaises(SystemExit):
            serve_all.Measured(self.path, "others")


class Report(unittest.TestCase):
    def test_a_burst_is_a_line_of_tokens_that_ends_with_all_of_them(self):
        line = serve_report.timeline({"start_times": [5.0, 5.5], "ttfts": [1.0, 1.0], "itls": [[0.5, 0.5], [2.0]]})
        self.assertEqual(line[0], [0.0, 0, 0])
        self.assertEqual(line[-1], [3.5, 5, 2])
        self.assertEqual([row[1] for row in line], sorted(row[1] for row in line))

    def test_tables_have_medians_ranges_and_how_many_times_better_the_first_is(self):
        rows = [run("quire", "closed:32", number, output_throughput=speed, failed=1)
                for number, speed in ((1, 300.0), (2, 100.0), (3, 200.0))]
        rows.append(run("llama.cpp:F16", "closed:32", output_throughput=50.0, p95_ttft_ms=40.0))
        rows += [run("openvino", "closed:32", number, output_throughput=speed) for number, speed in ((2, 80.0), (3, 100.0))]
        table = serve_report.load_table(serve_report.Results(rows), "closed", "clients")
        self.assertIn("| 32 | quire | 3 | 200 [100 to 300] |", table)
        # Of the runs that both made: 300 / 50; the median of 100 / 80 and 200 / 100.
        self.assertIn("| 32 | llama-server, F16 | 1 | 50.0 (6.00 x) |", table)
        self.assertIn("| 32 | OpenVINO GenAI | 2 | 90.0 [80.0 to 100] (1.62 x) |", table)
        self.assertIn("| 40.0 (4.00 x) |", table)
        self.assertIn("| 3 | 0 |", table)  # failures are summed

    def test_others_are_compared_with_the_first_engine_whatever_was_measured_first(self):
        rows = [run("llama.cpp", "closed:32", output_throughput=50.0), run("quire", "closed:32", output_throughput=100.0)]
        table = serve_report.load_table(serve_report.Results(rows, ["quire", "llama.cpp"]), "closed", "clients")
        self.assertIn("| 32 | llama-server | 1 | 50.0 (2.00 x) |", table)

    def test_the_readme_gets_its_table_and_keeps_everything_else(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            readme = folder / "README.md"
            readme.write_text(f"before\n{serve_report.BEGIN}\nold\n{serve_report.END}\nbehind\n")
            (folder / "machine.json").write_text(json.dumps({"processor": "a processor", "versions": {}, "limits": {}}))
            rows = [run("quire", "closed:1"), run("quire", "burst:4", timeline=[[0.0, 0, 0], [1.0, 4, 4]]),
                    run("quire+--block-size_8", "closed:32"), run("quire+--activation-dtype_int8", "closed:32")]
            text = serve_report.write(types.SimpleNamespace(out=folder, plots=None, page=None, readme=readme, engines=["quire"]), rows)
            self.assertIn("`--block-size`", text)
            self.assertIn("| int8 |", text)
            self.assertTrue(readme.read_text().startswith("before\n"))
            self.assertTrue(readme.read_text().endswith("behind\n"))
            self.assertIn("a processor", readme.read_text())
            self.assertNotIn("old", readme.read_text())
            self.assertTrue((folder / "plots/serve-burst.svg").exists())


class Servers(unittest.TestCase):
    def test_a_servers_name_says_engine_format_and_flags(self):
        self.assertEqual(servers.parts("llama.cpp:F16"), ("llama.cpp", "F16", []))
        self.assertEqual(servers.parts("quire+--block-size_32"), ("quire", "", ["--block-size", "32"]))


if __name__ == "__main__":
    unittest.main()
