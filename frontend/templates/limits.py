"""What one rendering may take, and what may wait for it."""

from __future__ import annotations

# Processor time, counted and enforced by the kernel: on a machine under load a fair template is not cut for others'
# work. Ordinary templates take a millisecond, those of 8 MiB of messages a tenth of a second.
CPU_LIMIT_S = 0.8
# Address space of the process; the interpreter itself takes 0.2 GiB of it.
MEMORY_LIMIT_BYTES = 2**30
# Wall time, for a process that gets no processor, or was stopped.
WALL_LIMIT_S = 10.0
# From the start of a process to the compiled template, on a machine that is busy loading a model.
START_LIMIT_S = 30.0
# Chats that wait for one process. Theirs are the bodies of requests, which the server has read into its memory.
MAX_WAITING_CHATS = 4096
MAX_WAITING_BYTES = 64 * 2**20
# A template that a request brings. Models' own have 1 to 20 thousand characters.
MAX_BROUGHT_TEMPLATE_CHARS = 64 * 2**10
