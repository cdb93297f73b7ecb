"""deploy/: what managers are given, tried as far as it goes without them."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

import harness
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TINY = harness.DATA / "e2e/tiny/llama"


def flags_of(arguments):
    return [argument.split("=")[0] for argument in arguments if argument.startswith("--")]


class Flags(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.known = set(re.findall(r"^\s+(?:-\w,)?(--[\w-]+)", harness.run("serve", "--help").stdout, re.M))
        cls.objects = {thing["kind"]: thing for thing in yaml.safe_load_all((DEPLOY / "kubernetes/quire.yaml").read_text())}
        cls.pod = cls.objects["Deployment"]["spec"]["template"]["spec"]
        (cls.container,) = cls.pod["containers"]
        cls.compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["quire"]

    def test_all_are_the_servers(self):
        batch = (DEPLOY / "slurm/quire.sbatch").read_text()
        command = batch[batch.index("quire serve \"$model\""):batch.index('"$@" &')]
        for arguments in (self.container["args"], self.compose["command"], command.split()):
            flags = flags_of(arguments)
            self.assertGreater(len(flags), 1)
            self.assertEqual(set(flags) - self.known, set())

    def test_a_leader_and_its_workers_have_the_same_flags(self):
        objects = {thing["kind"]: thing for thing in yaml.safe_load_all((DEPLOY / "kubernetes/leader_worker_set.yaml").read_text())}
        group = objects["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        pods = {role: group[f"{role}Template"] for role in ("leader", "worker")}
        of_group = ("--tensor-parallel-size", "--pipeline-parallel-size", "--nnodes", "--master-addr", "--master-port")
        shared = []
        for role, pod in pods.items():
            (container,) = pod["spec"]["containers"]
            self.assertEqual(set(flags_of(container["args"])) - self.known, set())
            shared.append([container["args"][0], *(argument for argument in container["args"] if argument.startswith(of_group))])
            self.assertIn("QUIRE_NODES_SECRET", [entry["name"] for entry in container["env"]])
            for entry in container["env"]:
                if "secretKeyRef" in entry["valueFrom"]:
                    self.assertIn(entry["valueFrom"]["secretKeyRef"]["key"], objects["Secret"]["stringData"])
            self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {volume["name"] for volume in pod["spec"]["volumes"]})
        self.assertEqual(*shared)
        self.assertIn(f"--nnodes={group['size']}", shared[0])
        self.assertLessEqual(objects["Service"]["spec"]["selector"].items(), pods["leader"]["metadata"]["labels"].items())

    def test_what_ends_a_server_waits_for_its_answers(self):
        for arguments, seconds in ((self.container["args"], self.pod["terminationGracePeriodSeconds"]),
                                   (self.compose["command"], int(self.compose["stop_grace_period"].removesuffix("s")))):
            (timeout,) = [argument for argument in arguments if argument.startswith("--shutdown-timeout=")]
            self.assertGreater(seconds, int(timeout.partition("=")[2]))

    def test_names_agree(self):
        labels = self.objects["Deployment"]["spec"]["selector"]["matchLabels"]
        self.assertEqual(labels, self.objects["Deployment"]["spec"]["template"]["metadata"]["labels"])
        self.assertEqual(labels, self.objects["Service"]["spec"]["selector"])
        claims = [volume["persistentVolumeClaim"]["claimName"] for volume in self.pod["volumes"] if "persistentVolumeClaim" in volume]
        self.assertEqual(claims, [self.objects["PersistentVolumeClaim"]["metadata"]["name"]])
        self.assertEqual({mount["name"] for mount in self.container["volumeMounts"]}, {volume["name"] for volume in self.pod["volumes"]})
        (key,) = [entry["valueFrom"]["secretKeyRef"] for entry in self.container["env"] if "valueFrom" in entry]
        self.assertEqual(key["name"], self.objects["Secret"]["metadata"]["name"])
        self.assertIn(key["key"], self.objects["Secret"]["stringData"])
        ports = {port["name"] for port in self.container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertIn(self.container[probe]["httpGet"]["port"], ports)

    def test_probes_are_answered_without_a_key_and_not_while_the_server_drains(self):
        paths = {self.container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
        own = [flag for flag in self.container["args"] if flag.startswith(("--shutdown-timeout", "--health-timeout", "--log-format"))]
        with harness.Server("--skip-tokenizer-init", "--max-model-len", 512, "--api-key", "a-key", *own, model=TINY) as server:
            for path in paths:
                self.assertEqual(server.get(path).status, 200, path)
            self.assertEqual(server.get("/v1/models").status, 401)
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": [5, 6, 7], "max_tokens": 500, "ignore_eos": True, "stream": True}),
                {"Content-Type": "application/json", "Authorization": "Bearer a-key"})
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            server.terminate()
            # 503 of a connection that was open, and none is opened any more: neither is ready.
            until = time.monotonic() + 30
            while self.is_ready(server) and time.monotonic() < until:
                time.sleep(0.01)
            self.assertFalse(self.is_ready(server))
            chunks = list(harness.events(response))  # and what runs goes on to its end
            connection.close()
            self.assertEqual(server.process.wait(60), 0, server.log_text())
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")

    @staticmethod
    def is_ready(server):
        try:
            return server.get("/ready").status == 200
        except OSError:
            return False


@unittest.skipUnless(shutil.which("curl"), "no curl here, which a node of a cluster has")
class Slurm(unittest.TestCase):
    def test_the_batch_file_serves_says_where_and_ends_when_it_is_told_to(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for program, text in (("srun", 'while [[ $1 == --* ]]; do shift; done\nexec "$@"'), ("quire", f'exec "{harness.QUIRE}" "$@"')):
                path = folder / program
                path.write_text(f"#!/bin/bash\n{text}\n")
                path.chmod(0o755)
            job = self.job_of_a_free_port()
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": str(job),
                           "SLURM_SUBMIT_DIR": str(folder), "SLURMD_NODENAME": harness.HOST, "SLURM_CPUS_PER_TASK": "1"}
            environment.pop("VLLM_API_KEY", None)
            batch = subprocess.Popen(["bash", DEPLOY / "slurm/quire.sbatch", TINY, "--skip-tokenizer-init"], env=environment,
                                     cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                url, key = folder / f"quire-{job}.url", folder / f"quire-{job}.key"
                until = time.monotonic() + 60
                while not (url.exists() and url.read_text().endswith("\n")) and batch.poll() is None and time.monotonic() < until:
                    time.sleep(0.05)
                self.assertTrue(url.exists(), batch.poll())
                self.assertEqual(key.stat().st_mode & 0o777, 0o600)
                request = urllib.request.Request(url.read_text().strip() + "/models",
                                                 headers={"Authorization": f"Bearer {key.read_text().strip()}"})
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
                    self.assertEqual(json.load(answer)["data"][0]["object"], "model")
                batch.send_signal(signal.SIGTERM)
                output, _ = batch.communicate(timeout=60)
                self.assertEqual(batch.returncode, 0, output)
                self.assertFalse(url.exists())
                self.assertFalse(key.exists())
            finally:
                batch.kill()
                batch.wait()

    def test_several_tasks_compute_one_model_by_mpi(self):
        with tempfile.TemporaryDirectory() as name:
            srun = pathlib.Path(name) / "srun"
            srun.write_text('#!/bin/bash\nprintf "%s\\n" "$@" >told\n')
            srun.chmod(0o755)
            environment = {**os.environ, "PATH": f"{name}:{os.environ['PATH']}", "SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": name,
                           "SLURMD_NODENAME": harness.HOST, "SLURM_NTASKS": "2"}
            subprocess.run(["bash", DEPLOY / "slurm/quire.sbatch", TINY, "--tensor-parallel-size", "2"], env=environment, cwd=name,
                           check=True, timeout=30)
            told = (pathlib.Path(name) / "told").read_text().split("\n")
        self.assertLess(told.index("--mpi=pmix"), told.index("quire"))
        self.assertEqual(told[told.index("--distributed-executor-backend") + 1], "mpi")
        self.assertEqual(told[told.index("--tensor-parallel-size") + 1], "2")

    @staticmethod
    def job_of_a_free_port():
        while True:
            job = random.randrange(20_000)
            with socket.socket() as tried:
                try:
                    tried.bind((harness.HOST, 20_000 + job))
                    return job
                except OSError:
                    pass

    def test_without_a_model_it_says_how_it_is_called(self):
        found = subprocess.run(["bash", DEPLOY / "slurm/quire.sbatch"], capture_output=True, text=True, env={**os.environ, "SLURM_JOB_ID": "1"})
        self.assertNotEqual(found.returncode, 0)
        self.assertIn("usage: sbatch quire.sbatch MODEL", found.stderr)


if __name__ == "__main__":
    harness.main()
