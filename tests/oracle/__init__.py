"""The oracle: torch's own CUDA caching allocator, run for real on a fake device, and the model held against it.

``python -m tests.oracle --torch 2.14.1``. ``device.c`` is preloaded in place of the CUDA runtime and driver: addresses and a
byte limit, no kernel ever runs. The shipped machine code of the allocator then answers seeded traces, event by event.
"""
