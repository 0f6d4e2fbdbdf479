"""HTTP for the dashboard: GET and HEAD, a closed list of paths, a strict content policy, and no state.

/                        the list of runs            /sections             its live parts
/runs/RUN                one run                     /runs/RUN/sections    its live parts
/compare?run=A&run=B     several runs
/api/runs                names                       /api/runs/RUN         as ncp status --json
/api/runs/RUN/series     thinned curves
"""

from __future__ import annotations

import gzip
import json
import socket
import sys
import traceback
from collections.abc import Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from curriculum.errors import InputError
from jobs.show.dashboard.hosts import host_allowed
from jobs.show.dashboard.live import LIVE_SCRIPT
from jobs.show.dashboard.site import Site
from jobs.show.report.page import source_hash
from jobs.show.report.style import CSS
from pipeline.records import DamagedRecord
from pipeline.storage import StorageUnavailable

POLICY = (
    f"default-src 'none'; style-src '{source_hash(CSS)}'; script-src '{source_hash(LIVE_SCRIPT)}'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class DashboardServer(ThreadingHTTPServer):
    """Serves `site` at (host, port) until `shutdown`; port 0 takes a free one. Raises OSError when it is taken."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, site: Site, host: str, port: int, *, names: Collection[str] = ()):
        """`names`: host names that are answered beside `localhost` and addresses."""
        self.site = site
        self.names = {*names, host} if host else set(names)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host.strip("[]"), port), _Handler)

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who went away is no error; anything else is a bug and shown as one."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version = "ncp"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        if not host_allowed(self.headers.get("Host"), self.server.names):
            self._answer(
                HTTPStatus.MISDIRECTED_REQUEST,
                TEXT,
                "this name is not answered; use the address, or start with --allow-host NAME\n",
            )
            return
        try:
            found = self._find()
        except DamagedRecord as error:
            self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, TEXT, f"{error}\n")
            return
        except InputError as error:
            self._answer(HTTPStatus.NOT_FOUND, TEXT, f"{error}\n")
            return
        except StorageUnavailable as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"{error}\n")
            return
        except FileNotFoundError:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, "storage is being changed; look again\n")
            return
        except Exception:
            traceback.print_exc()
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, "a bug; see the terminal of ncp dashboard\n")
            return
        if found is None:
            self._answer(HTTPStatus.NOT_FOUND, TEXT, "no such page\n")
        elif isinstance(found, str):
            self._answer(HTTPStatus.OK, HTML, found)
        else:
            self._answer(HTTPStatus.OK, JSON, json.dumps(found, allow_nan=False))

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self.close_connection = True  # whatever body there is stays unread
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, TEXT, "read only\n", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _find(self) -> str | dict[str, Any] | list[Any] | None:
        """A page, a record, or None."""
        site, parts = self.server.site, urlsplit(self.path)
        query = parse_qs(parts.query, max_num_fields=50)
        match [unquote(part) for part in parts.path.split("/")[1:]]:
            case [""]:
                return site.index_page()
            case ["sections"]:
                sections = site.index_sections()
                return {"live": sections.live, "sections": sections.changed(_have(query))}
            case ["runs", run]:
                return site.run_page(run)
            case ["runs", run, "sections"]:
                sections = site.run_sections(run)
                return {"live": sections.live, "sections": sections.changed(_have(query))}
            case ["compare"]:
                return site.compare_page(query.get("run", []))
            case ["api", "runs"]:
                return site.run_list()
            case ["api", "runs", run]:
                return site.run_record(run)
            case ["api", "runs", run, "series"]:
                return site.series_record(run)
            case _:
                return None

    def _answer(
        self, status: HTTPStatus, kind: str, text: str, headers: dict[str, str] | None = None
    ) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        for name, value in {**HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        if len(body) > 1024 and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=5, mtime=0)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Vary", "Accept-Encoding")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: a live page asks every few seconds."""


def _have(query: dict[str, list[str]]) -> list[str]:
    return query.get("have", [""])[0].split(".")
