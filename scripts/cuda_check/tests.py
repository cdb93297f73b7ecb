"""tests.py RESULT.json COMMAND...: a program of GoogleTest's, perhaps under a tool, with RESULT.json as its report.

The exit code is the program's; 3 where no test was selected and where all were skipped, which GoogleTest calls success.
"""

import json
import pathlib
import subprocess
import sys

NOTHING_RAN = 3


def run(command):
    """Passes the output on. Returns the exit code and why tests were skipped, which no report tells."""
    reasons = set()
    is_reason = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as program:
        for line in program.stdout:
            print(line, end="", flush=True)
            if is_reason:
                reasons.add(line.strip())
            is_reason = line.rstrip().endswith(": Skipped")
    return program.returncode, reasons


def why_nothing_ran(report, reasons):
    """None where a test ran."""
    cases = [case for suite in report["testsuites"] for case in suite["testsuite"]]
    if not cases:
        return "the filter selects no test"
    if any(case.get("result") != "SKIPPED" for case in cases):
        return None
    return f"all {len(cases)} tests were skipped: {'; '.join(sorted(reasons)[:3])}"


def main():
    output, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
    output.unlink(missing_ok=True)
    code, reasons = run([*command, f"--gtest_output=json:{output}"])
    if code == 0:
        reason = why_nothing_ran(json.loads(output.read_text()), reasons) if output.exists() else f"no report at {output}"
        if reason is not None:
            print(f"FAILED: {reason}")
            code = NOTHING_RAN
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
