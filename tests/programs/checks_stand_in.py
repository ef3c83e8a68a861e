"""Stands in for a Python with torch that runs the program of checks; STAND_IN, a list of words, says how it fails.

A word is a name of a check with how it ends the child (network=SIGSEGV, alone=hangs), or no-torch, broken, dies-at-import.
"""

import json
import os
import signal
import sys
import time

WORDS = dict(word.partition("=")[::2] for word in os.environ.get("STAND_IN", "").split())


def tell(**message):
    print(json.dumps(message), flush=True)


if "dies-at-import" in WORDS:
    os.kill(os.getpid(), signal.SIGILL)
if "no-torch" in WORDS or "broken" in WORDS:
    tell(event="no_torch", missing="no-torch" in WORDS, message="OSError: libamdhip64.so.6")
    sys.exit()
tell(event="ready", torch="9.9")
print("a library's own words")
for name in json.loads(sys.argv[-1])["names"]:
    tell(event="start", check=name)
    if WORDS.get(name) == "hangs":
        time.sleep(600)
    if WORDS.get(name, "").startswith("SIG"):
        print("Fatal Python error: Segmentation fault", file=sys.stderr, flush=True)
        os.kill(os.getpid(), getattr(signal, WORDS[name]))
    tell(event="end", check=name, state="passed", says="fine", seconds=0.1)
if "dies-at-its-end" in WORDS:
    os.kill(os.getpid(), signal.SIGSEGV)
