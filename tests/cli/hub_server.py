"""A stand-in for the model hub: one repository on loopback, with branches, files and a token."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HubServer:
    """Serves `files` (name -> bytes) as owner/model; `branches` maps a branch to a commit.

    `token` None = public. `requests` lists the (method, path) pairs that came.
    """

    def __init__(self, files, branches, token=None):
        self.files = files
        self.branches = branches
        self.token = token
        self.requests = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.answer(self, "GET")

            def do_HEAD(self):
                outer.answer(self, "HEAD")

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def answer(self, handler, method):
        path = handler.path.partition("?")[0]
        self.requests.append((method, path))
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return self._error(handler, 401, "RepoNotFound")
        words = path.strip("/").split("/")
        if words[:2] == ["api", "models"] and words[2:4] == ["owner", "model"]:
            revision = words[5] if len(words) > 5 else "main"
            return self._info(handler, revision, tree="tree" in words)
        if words[:2] == ["owner", "model"] and words[2:3] == ["resolve"]:
            return self._file(handler, method, words[3], "/".join(words[4:]))
        return self._error(handler, 404, "RepoNotFound")

    def _commit(self, revision):
        if revision in self.branches.values():
            return revision
        return self.branches.get(revision)

    def _info(self, handler, revision, tree):
        commit = self._commit(revision)
        if commit is None:
            return self._error(handler, 404, "RevisionNotFound")
        if tree:
            body = [
                {"type": "file", "path": n, "size": len(d), "oid": self._etag(d)}
                for n, d in self.files.items()
            ]
        else:
            siblings = [{"rfilename": name} for name in self.files]
            body = {"id": "owner/model", "sha": commit, "siblings": siblings, "private": False}
        return self._send(handler, 200, json.dumps(body).encode(), {}, "application/json")

    @staticmethod
    def _etag(data):
        return hashlib.sha1(data).hexdigest()

    def _file(self, handler, method, revision, name):
        commit = self._commit(revision)
        if commit is None:
            return self._error(handler, 404, "RevisionNotFound")
        data = self.files.get(name)
        if data is None:
            return self._error(handler, 404, "EntryNotFound")
        headers = {"ETag": f'"{self._etag(data)}"', "X-Repo-Commit": commit}
        return self._send(handler, 200, data, headers, head=method == "HEAD")

    def _error(self, handler, status, code):
        return self._send(handler, status, b"{}", {"X-Error-Code": code}, "application/json")

    def _send(self, handler, status, data, headers, kind="application/octet-stream", head=False):
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if not head and handler.command != "HEAD":
            handler.wfile.write(data)
