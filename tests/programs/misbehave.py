"""A child that ends in the way its first argument names."""

import os
import signal
import subprocess
import sys
import time

how = sys.argv[1]
print("began", flush=True)
if how == "talks":
    for number in range(int(sys.argv[2])):
        print(number, flush=True)
        time.sleep(0.1)
elif how == "floods":
    sys.stdout.write("x" * 300_000 + "\n")
    sys.stderr.write("y" * 300_000 + "\nthe end\n")
elif how == "dies":
    print("about to fall", file=sys.stderr, flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
elif how == "exits":
    sys.exit(int(sys.argv[2]))
elif how == "hangs":
    time.sleep(600)
elif how == "deaf":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        time.sleep(600)
elif how == "leaves-a-child":
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
