"""A Prometheus that scrapes one server, unpacked from Debian's package and never installed."""

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "prometheus"

CONFIG = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: ortloom
    static_configs:
      - targets: ["{target}"]
"""


def _debian():
    """The helpers that fetch Debian packages, which belong to the tests of another architecture."""
    path = ROOT / "tests" / "kernels" / "arm64_tools.py"
    spec = importlib.util.spec_from_file_location("ortloom_test_debian", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tool(name):
    """`prometheus` or `promtool`: that of PATH, else out of the package, kept below build/."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    program = FOLDER / "usr" / "bin" / name
    if not program.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        debian = _debian()
        debian.download("prometheus", FOLDER)
        (archive,) = FOLDER.glob("*.deb")
        debian.run("dpkg", "-x", archive, FOLDER)
        archive.unlink()
    return program


class Prometheus:
    """Scrapes a target on the loopback each second; a context manager that waits until it is ready.

    Args:
        target: host and port.
        port: of its own HTTP API.
        folder: for its configuration, its data and its log.
    """

    def __init__(self, target: str, port: int, folder: Path) -> None:
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(target=target))
        self.log = folder / "log"
        self.command = [
            str(tool("prometheus")),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def __enter__(self) -> "Prometheus":
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 120
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if self.client.get("/-/ready").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.client.close()

    def api(self, path: str, **params: str) -> object:
        """The `data` of an answer of its HTTP API, which must have neither error nor warning."""
        reply = self.client.get(f"/api/v1/{path}", params=params)
        tree = reply.json()
        assert tree["status"] == "success", tree
        assert not tree.get("warnings"), tree
        return tree["data"]

    def values(self, expression: str) -> list[float]:
        """The values of an instant query, one for each series."""
        data = self.api("query", query=expression)
        assert data["resultType"] == "vector"
        return [float(series["value"][1]) for series in data["result"]]
