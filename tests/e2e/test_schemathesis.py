"""The server against its own document: some requests that schemathesis makes of each endpoint of /openapi.json. Runs where
scripts/schemathesis.sh has been run once, which sets schemathesis up and makes as many requests as it is told."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import harness

ROOT = harness.DATA.parent.parent if harness.DATA else None
CASES = 15  # an endpoint; about half a minute


class Schemathesis(unittest.TestCase):
    def test_what_the_document_says_holds_for_made_up_requests(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "tiny"
            shutil.copytree(harness.DATA / "e2e/tiny/llama", model)
            shutil.copy(harness.DATA / "tokenizers/small_bpe.json", model / "tokenizer.json")
            template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
            (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
            done = subprocess.run([ROOT / "scripts/schemathesis.sh", harness.QUIRE, model, str(CASES)], capture_output=True,
                                  text=True, env={**os.environ, "PORT": str(harness.free_port())})
        self.assertEqual(done.returncode, 0, done.stdout[-8000:] + done.stderr[-2000:])
        made = [(int(all), int(passed)) for all, passed in re.findall(r"(\d+) generated, (\d+) passed", done.stdout)]
        self.assertEqual(len(made), 2, "what models here can do, and what they cannot")
        for all, passed in made:
            self.assertGreater(all, 8 * CASES // 2)
            self.assertEqual(all, passed)


if __name__ == "__main__":
    harness.main()
