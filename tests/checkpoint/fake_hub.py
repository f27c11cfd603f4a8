"""A hub of one model on this machine: as much of its HTTP interface as its client library needs.

Counts the bytes that leave it. Run a program against it with HF_ENDPOINT set to `url`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves the files of `folder` as the model `name`; `sent` maps a file to the bytes sent."""

    def __init__(self, folder: Path, name: str = "some/model", ranges: bool = True) -> None:
        self.folder, self.name, self.ranges = folder, name, ranges
        self.sent: dict[str, int] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        path = request.path.split("?")[0]
        if path.startswith(f"/api/models/{self.name}"):
            listing = self._tree() if "/tree/" in path else self._info()
            self._reply(request, 200, json.dumps(listing).encode(), {}, body)
            return
        match = re.fullmatch(rf"/{self.name}/resolve/\w+/([\w.-]+)", path)
        file = self.folder / match[1] if match else None
        if file is None or not file.is_file():
            self._reply(request, 404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range") or "")
        if body and span and self.ranges:
            content = content[int(span[1]) : int(span[2]) + 1]
        self._reply(request, 206 if span else 200, content, headers, body)
        if body:
            self.sent[file.name] = self.sent.get(file.name, 0) + len(content)

    def _info(self) -> dict[str, Any]:
        files = [
            {"rfilename": path.name, "size": path.stat().st_size, "blobId": "0"}
            for path in sorted(self.folder.iterdir())
        ]
        return {"id": self.name, "modelId": self.name, "sha": COMMIT, "siblings": files}

    def _tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": "0"}
            for path in sorted(self.folder.iterdir())
        ]

    @staticmethod
    def _reply(
        request: BaseHTTPRequestHandler, code: int, content: bytes, headers: dict[str, str],
        body: bool,
    ) -> None:  # fmt: skip
        request.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(key, value)
        request.end_headers()
        if body:
            request.wfile.write(content)
