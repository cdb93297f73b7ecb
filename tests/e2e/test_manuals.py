"""Manual pages and completions, as scripts/make_manuals.py makes them out of the program."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Manuals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        subprocess.run([sys.executable, ROOT / "scripts" / "make_manuals.py", harness.QUIRE, cls.folder], check=True)
        cls.completions = {path.name: path for path in (cls.folder / "completions").iterdir()}

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @staticmethod
    def flags(*command):
        found = re.findall(r"^  ((?:-{1,2}[\w-]+(?:\{false\})?,?)+)", harness.run(*command, "--help").stdout, re.M)
        return [re.sub(r"\{.*", "", flag) for names in found for flag in names.split(",") if flag]

    def test_every_flag_of_every_command_is_in_all_of_them(self):
        zsh, fish = (self.completions[name].read_text() for name in ("_quire", "quire.fish"))
        for command in (("serve",), ("chat",), ("bench", "serve"), ("bench", "throughput"), ("plan",)):
            flags = self.flags(*command)
            self.assertGreater(len(flags), 10)
            page = (self.folder / "man1" / f"quire-{'-'.join(command)}.1").read_text()
            function = zsh[zsh.index(f"_quire_{'_'.join(command)}() {{"):]
            function = function[:function.index("\n}\n")]
            for flag in flags:
                self.assertIn(f"\\fB{flag}\\fR".replace("-", "\\-"), page)
                self.assertIn(f"{flag}[", function)
                seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command)
                spelled = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                self.assertRegex(fish, rf"(?m)^complete -c quire -n '{seen}(; and not [^']*)?' {spelled} ")

    def test_there_is_a_page_for_each_command(self):
        commands = re.findall(r"^  ([a-z][a-z-]*) {4,}", harness.run("--help").stdout, re.M)
        self.assertIn("serve", commands)
        for command in commands:
            self.assertTrue((self.folder / "man1" / f"quire-{command}.1").is_file(), command)

    def test_words_and_defaults_are_told(self):
        page = (self.folder / "man1" / "quire-serve.1").read_text()
        self.assertIn("one of: text, json (default: text)", page)
        self.assertIn("(default: 0600)", page)

    def test_bash_completes(self):
        def completed(*words):
            script = (f"source {self.completions['quire.bash']}; COMP_WORDS=({' '.join(words)}); "
                      f"COMP_CWORD={len(words) - 1}; _quire; echo ${{COMPREPLY[@]}}")
            return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()

        self.assertEqual(completed("quire", "se"), ["serve"])
        self.assertEqual(completed("quire", "bench", "serve", "--request-r"), ["--request-rate"])
        self.assertIn("--max-num-seqs", completed("quire", "serve", "--max-"))
        self.assertEqual(completed("quire", "serve", "--log-format", ""), ["text", "json"])
        self.assertEqual(completed("quire", "serve", "--log-format", "j"), ["json"])

    @unittest.skipUnless(shutil.which("fish"), "no fish here")
    def test_fish_completes(self):
        def completed(line):
            script = f"source {self.completions['quire.fish']}; complete -C {shlex.quote(line)}"
            found = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, check=True).stdout
            return [one.split("\t")[0] for one in found.splitlines()]

        self.assertIn("serve", completed("quire se"))
        self.assertEqual(completed("quire bench serve --request-r"), ["--request-rate"])
        self.assertIn("--max-num-seqs", completed("quire serve --max-"))
        self.assertEqual(completed("quire serve --log-format j"), ["json"])

    def test_the_shells_understand_them(self):
        for shell, name in (("bash", "quire.bash"), ("zsh", "_quire"), ("fish", "quire.fish")):
            if shutil.which(shell):
                found = subprocess.run([shell, "-n", self.completions[name]], capture_output=True, text=True)
                self.assertEqual((found.returncode, found.stderr), (0, ""), shell)
        if shutil.which("man"):
            for page in (self.folder / "man1").iterdir():
                found = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True)
                self.assertEqual((found.returncode, found.stderr), (0, ""), page.name)


if __name__ == "__main__":
    harness.main()
