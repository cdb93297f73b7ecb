"""The Hugging Face Hub as far as a client of it sees it, on loopback, with faults: folders as repositories, large files
at another host (127.0.0.2) behind a redirect."""

import hashlib
import json
import pathlib
import socket
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee0123456789c0ffee0123456789c0ffee01"


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    def __init__(self, files, commit=COMMIT, large_bytes=4096):
        self.files = {path: content if isinstance(content, bytes) else pathlib.Path(content).read_bytes()
                      for path, content in files.items()}
        self.commit = commit
        self.large_bytes = large_bytes
        self.token = None  # wanted of who asks
        self.gated = False

    def is_large(self, path):
        return len(self.files[path]) >= self.large_bytes

    def hash(self, path):
        content = self.files[path]
        return hashlib.sha256(content).hexdigest() if self.is_large(path) else git_hash(content)


class FakeHub:
    """repositories: name -> Repository. requests: (host, method, path, header fields) of each that came."""

    def __init__(self, repositories):
        self.repositories = repositories
        self.requests = []
        self.cut_after = None  # bytes of an answer of the other host, then the connection ends
        self.bytes_per_second = None  # of the other host
        self.tampered = False  # the other host changes a byte
        self.page_size = 1000
        self.sent_bytes = 0  # by the other host
        self.lock = threading.Lock()

    def __enter__(self):
        self.servers = [self.start("127.0.0.1", self.hub_answer), self.start("127.0.0.2", self.other_answer)]
        self.url, self.other_url = [f"http://{server.server_address[0]}:{server.server_address[1]}"
                                    for server in self.servers]
        return self

    def __exit__(self, *exception):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def start(self, host, answer):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                with hub.lock:
                    hub.requests.append((host, self.command, self.path, dict(self.headers)))
                try:
                    answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_HEAD = handle_any

            def log_message(self, *arguments):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # clients that are killed or give up are part of the tests

        server = Server((host, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def asked(self, part="", host=None):
        with self.lock:
            return [request for request in self.requests if part in request[2] and host in (None, request[0])]

    def forget(self):
        with self.lock:
            self.requests.clear()
            self.sent_bytes = 0

    @staticmethod
    def send(handler, status, body=b"", **fields):
        handler.send_response(status)
        for name, value in fields.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def refuse(self, handler, status, code, message=""):
        self.send(handler, status, json.dumps({"error": message}).encode(), X_Error_Code=code, X_Error_Message=message)

    def hub_answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        parts = urllib.parse.unquote(url.path).strip("/").split("/")
        name = "/".join(parts[2:4] if parts[:2] == ["api", "models"] else parts[:2])
        repository = self.repositories.get(name)
        if repository is None:
            return self.refuse(handler, 401, "RepoNotFound", "Invalid username or password.")
        if repository.token and handler.headers.get("Authorization") != f"Bearer {repository.token}":
            if repository.gated:
                return self.refuse(handler, 403, "GatedRepo", f"Access to model {name} is restricted.")
            return self.refuse(handler, 401, "RepoNotFound", "Repository not found")
        if parts[0] == "api":
            return self.api(handler, repository, name, parts[4:], urllib.parse.parse_qs(url.query))
        revision, path = parts[3], "/".join(parts[4:])
        if revision not in ("main", repository.commit):
            return self.refuse(handler, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if path not in repository.files:
            return self.refuse(handler, 404, "EntryNotFound", "Entry not found")
        etag = f'"{repository.hash(path)}"'
        if not repository.is_large(path):
            return self.send(handler, 200, repository.files[path], ETag=etag, X_Repo_Commit=repository.commit)
        self.send(handler, 302, X_Linked_Etag=etag, X_Linked_Size=str(len(repository.files[path])),
                  X_Repo_Commit=repository.commit, Location=f"{self.other_url}/{name}/{repository.hash(path)}")

    def api(self, handler, repository, name, parts, query):
        revision = parts[1] if len(parts) > 1 else "main"
        if revision not in ("main", repository.commit):
            return self.refuse(handler, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if parts[:1] != ["tree"]:
            siblings = [{"rfilename": path} for path in repository.files]
            return self.send(handler, 200, json.dumps({"id": name, "sha": repository.commit, "siblings": siblings}).encode(),
                             Content_Type="application/json")
        start = int(query.get("cursor", ["0"])[0])
        entries = []
        for path in sorted(repository.files)[start:start + self.page_size]:
            content = repository.files[path]
            entry = {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
            if repository.is_large(path):
                entry["lfs"] = {"oid": repository.hash(path), "size": len(content), "pointerSize": 134}
            entries.append(entry)
        fields = {"Content_Type": "application/json"}
        if start + self.page_size < len(repository.files):
            fields["Link"] = f'<{self.url}/api/models/{name}/tree/{revision}?recursive=true&cursor={start + self.page_size}>; rel="next"'
        self.send(handler, 200, json.dumps(entries).encode(), **fields)

    def other_answer(self, handler):
        organisation, name, digest = handler.path.strip("/").split("/")
        repository = self.repositories[f"{organisation}/{name}"]
        content = next(repository.files[path] for path in repository.files if repository.hash(path) == digest)
        first, last = 0, len(content) - 1
        if wanted := handler.headers.get("Range"):
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        body = content[first:last + 1]
        if self.tampered:
            body = bytes([body[0] ^ 1]) + body[1:]
        handler.send_response(206 if wanted else 200)
        if wanted:
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        part = 16 << 10
        for at in range(0, len(body), part):
            if self.cut_after is not None and at >= self.cut_after:
                handler.connection.shutdown(socket.SHUT_RDWR)
                handler.close_connection = True
                return
            handler.wfile.write(body[at:at + part])
            with self.lock:
                self.sent_bytes += len(body[at:at + part])
            if self.bytes_per_second:
                time.sleep(part / self.bytes_per_second)
