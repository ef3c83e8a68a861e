"""A JupyterLab on loopback with a token, and a headless Chromium beside it that is told what to do through DevTools.

Nothing is needed beyond what the workbook has: websocket-client comes with jupyter_server. The browser can reach no name and
no address but 127.0.0.1; ``Page.asked`` keeps every address it wanted.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
KEYS = {
    "Enter": 13,
    "Tab": 9,
    "ArrowRight": 39,
    "ArrowLeft": 37,
    "ArrowDown": 40,
    "ArrowUp": 38,
    "End": 35,
    "Home": 36,
    "Escape": 27,
    "Space": 32,
    "a": 65,
    "Delete": 46,
}
CTRL, SHIFT = 2, 8
FIND = """
const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[%d];
const label = [...cell.querySelectorAll('.jp-OutputArea label, .jp-OutputArea button')].find(e => e.textContent.trim() === %s);
const found = label && (label.tagName === 'BUTTON' ? label : label.closest('.widget-checkbox, .jupyter-widgets')
    .querySelector('textarea, select, .noUi-handle, input'));
"""


def chromium() -> str:
    """The path of the system's Chromium, or nothing."""
    return next(filter(None, map(shutil.which, NAMES)), "")


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def _until(ask: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while True:
        found = ask()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


def _end(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)
    except ProcessLookupError:
        process.wait(5)


class Lab:
    """JupyterLab over ``folder``, with settings and state of its own in ``own``."""

    def __init__(self, folder: Path, own: Path):
        self.port, self.token = _free_port(), secrets.token_hex(16)
        settings = own / "settings" / "@jupyterlab"
        for name, words in (
            ("notebook-extension/tracker", {"windowingMode": "none"}),
            ("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False}),
        ):
            path = settings / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(words))
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
            **{f"JUPYTER_{name}_DIR": str(own / name) for name in ("CONFIG", "DATA", "RUNTIME")},
            "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
        }
        env.pop("CASEBOOK_RUN", None)
        argv = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={folder}",
            f"--IdentityProvider.token={self.token}",
            "--LabApp.extension_manager=readonly",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        ]
        argv += ["--allow-root"] if os.getuid() == 0 else []
        self.log = own / "lab.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                argv, env=env, stdout=log, stderr=log, start_new_session=True
            )
        _until(self._answers, 40, f"JupyterLab on port {self.port}")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/api?token={self.token}", timeout=2
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def address(self, notebook: str) -> str:
        return f"http://127.0.0.1:{self.port}/lab/tree/{notebook}?token={self.token}"

    def restart_kernels(self) -> None:
        """Restart every kernel, as the menu of JupyterLab asks its server to."""
        where, header = (
            f"http://127.0.0.1:{self.port}/api/kernels",
            {"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(
            urllib.request.Request(where, headers=header), timeout=10
        ) as answer:
            kernels = json.load(answer)
        for one in kernels:
            ask = urllib.request.Request(
                f"{where}/{one['id']}/restart", data=b"", headers=header, method="POST"
            )
            urllib.request.urlopen(ask, timeout=20).close()

    def close(self) -> None:
        _end(self._process)


class Page:
    """One tab of a headless Chromium."""

    def __init__(self, own: Path, width: int = 1300, height: int = 1500):
        import websocket

        argv = [
            chromium(),
            "--headless=new",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--mute-audio",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
            "--remote-debugging-port=0",
            "--remote-allow-origins=*",
            f"--user-data-dir={own / 'chromium'}",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        argv += ["--no-sandbox"] if os.getuid() == 0 else []
        self._process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        said = own / "chromium" / "DevToolsActivePort"
        port = _until(
            lambda: said.read_text().split() if said.exists() else None, 30, "Chromium's DevTools"
        )[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
            target = next(one for one in json.load(answer) if one["type"] == "page")
        self._socket = websocket.create_connection(target["webSocketDebuggerUrl"], timeout=60)
        self._number, self.asked = 0, set[str]()
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

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

    def js(self, code: str) -> Any:
        """The value of the body of a JavaScript function."""
        done = self.call("Runtime.evaluate", expression=f"(() => {{{code}}})()", returnByValue=True)
        assert "exceptionDetails" not in done, (
            done["exceptionDetails"].get("exception", {}).get("description", done)
        )
        return done["result"].get("value")

    def until(self, code: str, seconds: float = 20) -> Any:
        """Wait until the JavaScript says something true; returns it."""
        return _until(lambda: self.js(code), seconds, code)

    def key(self, name: str, modifiers: int = 0) -> None:
        """Press and let go one key."""
        text = {"Enter": "\r", "Space": " "}.get(name, "") if not modifiers else ""
        code = "KeyA" if name == "a" else name
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=" " if name == "Space" else name,
                code=code,
                modifiers=modifiers,
                windowsVirtualKeyCode=KEYS[name],
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def open(self, lab: Lab, notebook: str) -> None:
        """Open a notebook and wait for its kernel."""
        self.lab = lab
        self.call("Page.navigate", url=lab.address(notebook))
        self.kernel_idle()

    def kernel_idle(self, seconds: float = 60) -> None:
        self.until(
            "return document.querySelector('.jp-Notebook .jp-Cell') && "
            "document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]')?.dataset.status",
            seconds,
        )

    def focus(self, cell: int, label: str) -> None:
        """Put the keyboard into the control of that label, or onto the button with those words."""
        assert self.js(
            FIND
            % (cell, json.dumps(label))
            + "if (found) { found.scrollIntoView({block: 'center'});"
            "found.focus(); } return document.activeElement === found"
        ), f"no control {label!r} in cell {cell}"

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
        at = f"const at = document.querySelectorAll('.jp-Notebook .jp-Cell')[{cell}];"
        prompt = at + "const said = at.querySelector('.jp-InputPrompt').textContent; return "
        before = self.js(prompt + "said")
        for _ in range(10):
            self.js(
                at + "at.scrollIntoView({block: 'center'}); at.querySelector('.cm-content').focus()"
            )
            self.key("Enter", SHIFT)
            time.sleep(0.3)
            if self.js(prompt + "said") != before:
                break
        self.until(prompt + f"/\\[\\d+\\]/.test(said) && said !== {json.dumps(before)}", seconds)

    def text(self, cell: int) -> str:
        """All words of a cell's output, alternative words of pictures included."""
        return str(
            self.js(
                f"const out = document.querySelectorAll('.jp-Notebook .jp-Cell')[{cell}]"
                ".querySelector('.jp-Cell-outputArea'); return out ? out.innerText + [...out.querySelectorAll("
                "'img, [aria-label]')].map(e => e.alt || e.ariaLabel).join(' ') : ''"
            )
        )

    def sees(self, cell: int, words: str, seconds: float = 20) -> None:
        """Wait until the cell's output holds the words."""
        _until(
            lambda: words in self.text(cell),
            seconds,
            f"{words!r} in cell {cell}, which says: {self.text(cell)[-600:]}",
        )

    def picture(self, path: Path, cell: int | None = None) -> None:
        """Keep what is seen as a PNG: the whole window, or the output of one cell."""
        more: dict[str, Any] = {}
        if cell is not None:
            x, y, width, height = self.js(
                f"const out = document.querySelectorAll('.jp-Notebook .jp-Cell')[{cell}]"
                ".querySelector('.jp-Cell-outputArea'); out.scrollIntoView();"
                "const r = out.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]"
            )
            more = {
                "clip": {"x": x, "y": y, "width": width, "height": height, "scale": 1},
                "captureBeyondViewport": True,
            }
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **more)["data"]))

    def close(self) -> None:
        self._socket.close()
        _end(self._process)
