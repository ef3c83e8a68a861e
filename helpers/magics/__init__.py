"""GPU memory inside a notebook of one's own: ``%vram``, ``%%vram``, and an answer under an
out-of-memory.

Everything here runs in the user's own kernel, beside his torch and his packages: standard library,
IPython, and the torch that he has imported. Imports are relative, since his folder may have a
package named helpers: the modules are loaded under another name there (extension/vram_casebook.py).
"""
