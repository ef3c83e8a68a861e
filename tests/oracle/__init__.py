"""The oracle: torch's own caching allocator, run for real on a fake device, and the model held against it.

``python -m tests.oracle --release 2.14.1``. ``device.c`` is preloaded in place of the CUDA runtime and driver: addresses and a
byte limit, no kernel ever runs. The shipped machine code of the allocator then answers seeded traces, event by event. With
``--build rocm`` it is AMD's build of the same sources, compiled here (rocm.py), on the same device under HIP's names.
"""
