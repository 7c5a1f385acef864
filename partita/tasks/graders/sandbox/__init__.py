"""Runs Python that a model wrote where it can do no harm: `box` is the side that asks, the rest the side that is asked.

`keeper` is a process without secrets that forks one short-lived process per test; `kernel` and `syscalls` are what the
kernel is told about such a process; `program` is what it then does; `wire` is how values travel.

Left out: a defence against a determined attacker with a fault of the kernel in hand. This is containment for what
language models write.
"""
