"""A JupyterLab on loopback with a token, and a headless Chromium beside it that is told what to do through DevTools.

Nothing is needed beyond what the workbook has: websocket-client comes with jupyter_server. The browser can reach no name and
no address but 127.0.0.1; ``Page.asked`` keeps every address it wanted. What it asks of a notebook stands in page.js.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.ground import child
from helpers.tell.pdf import browser as chromium

ROOT = Path(__file__).resolve().parents[2]
KEYS = dict(Enter=13, Tab=9, ArrowRight=39, ArrowLeft=37, ArrowDown=40, Space=32, a=65, Delete=46)
CTRL = 2
SHIFT = 8
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
LAB = (
    "-m jupyterlab --no-browser --allow-root --ServerApp.ip=127.0.0.1 --ServerApp.port_retries=0 "
    "--LabApp.extension_manager=readonly --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"
).split()
CHROMIUM = (
    "--headless=new --disable-gpu --no-first-run --disable-extensions --mute-audio --disable-background-networking "
    "--disable-component-update --disable-dev-shm-usage --remote-debugging-port=0 --remote-allow-origins=*"
).split()


def _until(ask: Callable[[], Any], seconds: float, what: Callable[[], str]) -> Any:
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what()}"
        time.sleep(0.05)
    return found


def _end(process: subprocess.Popen) -> None:
    child.signal_group(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        child.signal_group(process.pid, signal.SIGKILL)
        process.wait(5)


class Lab:
    """JupyterLab over ``folder``, with settings and state of its own in ``own``."""

    def __init__(self, folder: Path, own: Path):
        with socket.socket() as trial:
            trial.bind(("127.0.0.1", 0))
            self.port = trial.getsockname()[1]
        self.token = secrets.token_hex(16)
        for name, words in SETTINGS.items():
            path = own / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(words))
        places = {f"JUPYTER_{name}_DIR": str(own / name) for name in ("CONFIG", "DATA", "RUNTIME")}
        places["JUPYTERLAB_SETTINGS_DIR"] = str(own / "settings")
        places["JUPYTERLAB_WORKSPACES_DIR"] = str(own / "workspaces")
        env = child.environment(
            ["CASEBOOK_RUN"], {"PYTHONPATH": str(ROOT), "JUPYTER_PREFER_ENV_PATH": "1", **places}
        )
        argv = [sys.executable, *LAB, f"--ServerApp.port={self.port}"]
        argv += [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={self.token}"]
        with (own / "lab.log").open("wb") as log:
            self._process = child.start(argv, env, stdout=log, stderr=log)
        _until(self._answers, 240, lambda: f"JupyterLab on port {self.port}")

    def ask(self, path: str, method: str = "GET", timeout_s: float = 120) -> Any:
        """An answer of the server's own interface."""
        header = {"Authorization": f"token {self.token}"}
        where = f"http://127.0.0.1:{self.port}/api{path}"
        data = b"" if method == "POST" else None
        request = urllib.request.Request(where, data, header, method=method)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        try:
            return bool(self.ask("", timeout_s=2))
        except OSError:
            return False

    def address(self, notebook: str) -> str:
        return f"http://127.0.0.1:{self.port}/lab/tree/{notebook}?token={self.token}"

    def restart_kernels(self) -> None:
        """Restart every kernel, as the menu of JupyterLab asks its server to."""
        for kernel in self.ask("/kernels"):
            self.ask(f"/kernels/{kernel['id']}/restart", "POST")

    def close(self) -> None:
        _end(self._process)


class Page:
    """One tab of a headless Chromium."""

    def __init__(self, own: Path, width: int = 1300, height: int = 1500):
        import websocket

        argv = [chromium(), *CHROMIUM, f"--user-data-dir={own / 'chromium'}"]
        argv += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
        argv += ["--no-sandbox"] * (os.getuid() == 0) + [f"--window-size={width},{height}"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = child.start([*argv, "about:blank"], **silent)
        file = own / "chromium" / "DevToolsActivePort"
        said = lambda: file.read_text().split() if file.exists() else None  # noqa: E731
        port = _until(said, 120, lambda: "Chromium's DevTools")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
            target = next(one for one in json.load(answer) if one["type"] == "page")
        self._socket = websocket.create_connection(target["webSocketDebuggerUrl"], timeout=60)
        self._number = 0
        self.asked = set[str]()
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        source = Path(__file__).with_name("page.js").read_text()
        self.call("Page.addScriptToEvaluateOnNewDocument", source=source)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its answer."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._socket.recv())
            if said.get("method") == "Network.requestWillBeSent":
                self.asked.add(said["params"]["request"]["url"])
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                return dict(said["result"])

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        wrong = done.get("exceptionDetails", {})
        assert not wrong, wrong.get("exception", {}).get("description", done)
        return done["result"].get("value")

    def lab(self, name: str, *given: Any) -> Any:
        """What a function of page.js says."""
        return self.js(f"lab.{name}({', '.join(map(json.dumps, given))})")

    def key(self, name: str, modifiers: int = 0) -> None:
        """Press and let go one key."""
        text = {"Enter": "\r", "Space": " "}.get(name, "") if not modifiers else ""
        about = {"key": " " if name == "Space" else name, "code": "KeyA" if name == "a" else name}
        about |= {"modifiers": modifiers, "windowsVirtualKeyCode": KEYS[name]}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        for event in (down, {"type": "keyUp"}):
            self.call("Input.dispatchKeyEvent", **about, **event)

    def open(self, server: Lab, notebook: str) -> None:
        """Open a notebook and wait for its kernel."""
        self.server = server
        self.call("Page.navigate", url=server.address(notebook))
        _until(lambda: self.js("window.lab && lab.idle()"), 240, lambda: f"a kernel of {notebook}")

    def focus(self, cell: int, label: str) -> None:
        """Put the keyboard into the control of that label, or onto the button with those words."""
        assert self.lab("focus", cell, label), f"no control {label!r} in cell {cell}"

    def type(self, cell: int, label: str, words: str) -> None:
        """Write words in place of what a field holds, and leave it by Tab."""
        self.focus(cell, label)
        self.key("a", CTRL)
        self.key("Delete")
        self.call("Input.insertText", text=words)
        self.key("Tab")

    def press(self, cell: int, button: str) -> None:
        """Press a button by the keyboard."""
        self.focus(cell, button)
        self.key("Space")

    def run_cell(self, cell: int, seconds: float = 60) -> None:
        """Run one cell by Shift and Enter, and wait until it is done. A page that is just opened may still drop the keys."""
        before = said = self.lab("prompt", cell)
        for _ in range(10):
            self.lab("edit", cell)
            self.key("Enter", SHIFT)
            time.sleep(0.3)
            if self.lab("prompt", cell) != before:
                break

        def done() -> bool:
            nonlocal said
            said = self.lab("prompt", cell)
            return said != before and any(letter.isdigit() for letter in said)

        _until(done, seconds, lambda: f"cell {cell}, whose prompt is {said}")

    def text(self, cell: int) -> str:
        """All words of a cell's output, alternative words of pictures included."""
        return str(self.lab("text", cell))

    def sees(self, cell: int, words: str, seconds: float = 120) -> None:
        """Wait until the cell's output holds the words."""
        what = lambda: f"{words!r} in cell {cell}, which says: {self.text(cell)[-600:]}"  # noqa: E731
        _until(lambda: words in self.text(cell), seconds, what)

    def picture(self, path: Path, cell: int) -> None:
        """Keep what is seen of a cell's output as a PNG."""
        clip = dict(zip(("x", "y", "width", "height"), self.lab("box", cell), strict=True), scale=1)
        more = {"clip": clip, "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **more)["data"]))

    def close(self) -> None:
        self._socket.close()
        _end(self._process)
