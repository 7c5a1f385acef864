"""Programs that attack: each must come to nothing, leave nothing behind, and not disturb the next one."""

import os
import socket
import time
from pathlib import Path

import pytest
from contained import run

from partita.tasks.graders.sandbox.box import borrow
from partita.tasks.graders.sandbox.orders import Limits

QUICK = {
    "fork": "import os; os.fork(); print('done')",
    "spawn": "import subprocess; subprocess.run(['/bin/sh', '-c', 'echo done'])",
    "exec": "import os; os.execv('/bin/sh', ['sh', '-c', 'echo done'])",
    "multiprocessing": "import multiprocessing as m; m.Process(target=print, args=('done',)).start()",
    "daemon": "import os\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    import time; time.sleep(60)\nprint('done')",
    "kill the keeper": "import os; os.kill(os.getppid(), 9); print('done')",
    "kill the group": "import os; os.killpg(os.getpgid(0), 9); print('done')",
    "kill everyone": "import os; os.kill(-1, 9); print('done')",
    "kill through a pipe": (
        "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, 8, os.getppid())\nfcntl.fcntl(r, 10, 9)\n"
        "fcntl.fcntl(r, 4, os.O_ASYNC)\nos.write(w, b'x')\nprint('done')"
    ),
    "lower the keeper's limits": "import os, resource as r; r.prlimit(os.getppid(), r.RLIMIT_CPU, (0, 0)); print('done')",
    "trace": "import ctypes, os; c = ctypes.CDLL(None); assert c.ptrace(16, os.getppid(), 0, 0) == 0; print('done')",
    "other memory": (
        "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); b = ctypes.create_string_buffer(16)\n"
        "assert c.process_vm_readv(os.getppid(), b, 0, b, 0, 0) == 0; print('done')"
    ),
    "new namespaces": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0; print('done')",
    "mount": "import ctypes; assert ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, None) == 0; print('done')",
    "chroot": "import os; os.chroot('/'); print('done')",
    "its parent's environment": "import os; print(open(f'/proc/{os.getppid()}/environ').read(), 'done')",
    "its own memory map": "print(open('/proc/self/maps').read(), 'done')",
    "passwords": "print(open('/etc/passwd').read(), 'done')",
    "internet": "import socket; socket.create_connection(('127.0.0.1', 80)); print('done')",
    "local socket": "import socket; socket.socket(socket.AF_UNIX).connect('/run/systemd/private'); print('done')",
    "a link out": "import os; os.symlink('/etc/passwd', 'x'); print(open('x').read(), 'done')",
    "too much memory": "x = bytearray(1 << 30); print('done')",
    "memory bit by bit": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "threads without end": "import threading as t, time\nwhile True: t.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "a huge file": "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()",
    "many files": "for i in range(100): open(str(i), 'wb').write(bytes(1 << 19))\nprint('done')",
    "files without end": "for i in range(10_000): open(str(i), 'w').close()\nprint('done')",
    "all descriptors": "import os\nx = [os.dup(0) for _ in range(200)]\nprint('done')",
    "recursion": "def f(): return f()\nf()",
    "deep recursion": "import sys; sys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(s, n): return s.x\nA().x",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "its own death": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "a huge number": "print(10 ** 10 ** 6, 'done')",
    "a second name for a file": "import os; os.link('/etc/passwd', 'x'); print('done')",
    "its own memory": "print(open('/proc/self/mem', 'rb').read(1), 'done')",
    "other processes": "import os; print(os.listdir('/proc'), 'done')",
    "being traced": "import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0; print('done')",
    "stop the keeper": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); print('done')",
    "stop itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('done')",
    "a handle on the keeper": "import os; os.pidfd_open(os.getppid()); print('done')",
    "a raw fork": "import ctypes; assert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) >= 0; print('done')",
    "io_uring": "import ctypes; c = ctypes.CDLL(None); assert c.syscall(425, 8, bytes(200)) >= 0; print('done')",
    "page faults": "import ctypes; assert ctypes.CDLL(None).syscall(323, 0) >= 0; print('done')",
    "shared memory": "from multiprocessing import shared_memory as s; s.SharedMemory(create=True, size=9); print('done')",
    "memory of System V": "import ctypes; assert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0; print('done')",
    "a file in memory": "import os; os.memfd_create('x'); print('done')",
    "8 GB": "import mmap; mmap.mmap(-1, 8 << 30); print('done')",
    "8 GB that are not reserved": "import mmap; mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | 0x4020); print('done')",
    "8 GB unpacked": "import zlib; d = zlib.compress(bytes(10**8)); x = [zlib.decompress(d) for _ in range(80)]; print('done')",
    "memory that stays": "import ctypes; assert ctypes.CDLL(None).mlockall(3) == 0; print('done')",
    "a file with a hole": "f = open('x', 'wb'); f.truncate(1 << 40); print('done')",
    "a file set aside": "import os; os.posix_fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 1 << 30); print('done')",
    "folders without end": "import os\nwhile True: os.mkdir('d'); os.chdir('d')",
    "a program of root's": "import os; open('x', 'w'); os.chmod('x', 0o4777); print('done')",
    "a pipe with a name": "import os; os.mkfifo('x'); print('done')",
    "other descriptors": (
        "import os\nfor n in range(3, 300):\n    try: os.write(n, b'x')\n    except OSError: continue\n    print('done')\n1 / 0"
    ),
    "a higher priority": "import os; os.nice(-5); print('done')",
    "real time": "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); print('done')",
    "words for a terminal": "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x'); print('done')",
    "another host name": "import socket; socket.sethostname('x'); print('done')",
    "a return without end": "def f(n): return [f(n + 1)]\nimport sys; sys.setrecursionlimit(2**31 - 1); f(0)",
    "deep data": "import json; json.loads('[' * 10**6); print('done')",
    "packages of yours": "import torch; print('done')",
}


@pytest.mark.parametrize("attack", QUICK)
def test_an_attack_comes_to_nothing(box, attack):
    started = time.monotonic()
    ran = run(box, QUICK[attack])
    assert ran.code != 0 and b"done" not in ran.result
    assert time.monotonic() - started < 8


SLOW = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "endless loop": "while True: pass",
    "endless loop that ignores signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass"
    ),
    "endless sleep": "import time; time.sleep(1000)",
    "a thread that stays": "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "caught at every turn": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "at its end": "import atexit, time; atexit.register(time.sleep, 1000)",
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", SLOW)
def test_an_endless_attack_is_ended(box, attack):
    started = time.monotonic()
    assert run(box, SLOW[attack]).timed_out
    assert time.monotonic() - started < 8


def test_an_endless_wait_is_ended():
    with borrow() as box:
        started = time.monotonic()
        assert run(box, "import time; time.sleep(1000)", limits=Limits(1, 0.2)).timed_out
        assert time.monotonic() - started < 3


def test_a_huge_output_is_cut(box):
    ran = run(box, "while True: print('x' * 10_000)")
    assert ran.code != 0 and len(ran.result) <= 1 << 20


def test_your_files_are_neither_seen_nor_touched(box, tmp_path):
    at_home = Path.home() / f".partita-test-{os.getpid()}"
    places = [at_home, tmp_path / "secret"]
    for place in places:
        place.write_text("a secret")
        place.chmod(0o600)
    try:
        for place in places:
            for what in (
                "print(open(p).read())",
                "os.remove(p)",
                "open(p, 'w')",
                "os.chmod(p, 0o777)",
                "os.rename(p, p + 'x')",
            ):
                ran = run(box, f"import os; p = {str(place)!r}; {what}")
                assert ran.code == 1 and ran.result == b""
        run(box, f"import shutil; [shutil.rmtree(p, True) for p in ({str(tmp_path)!r}, '/', {str(Path.home())!r})]")
        assert [place.read_text() for place in places] == ["a secret"] * 2
        assert at_home.stat().st_mode & 0o777 == 0o600
    finally:
        at_home.unlink()


def test_no_word_reaches_a_listening_socket(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        code = f"import socket; s = socket.socket(); s.connect(('127.0.0.1', {server.getsockname()[1]})); s.send(b'secret')"
        assert run(box, code).code == 1
        with pytest.raises(TimeoutError):
            server.accept()


def test_nothing_is_inherited(box, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "a secret")
    code = """
import os
print(dict(os.environ))
held = []
for n in range(3, 200):
    try: os.fstat(n); held.append(n)
    except OSError: pass
print(held)
"""
    assert run(box, code).result == b"{}\n[]\n"


def test_one_program_leaves_nothing_for_the_next(box):
    run(
        box,
        "import builtins, json, sys; builtins.print = json.dumps = None; sys.modules['left'] = sys; open('left', 'w')",
    )
    ran = run(box, "import json, os\nprint(json.dumps(os.path.exists('left')))\nimport left")
    assert (ran.code, ran.result) == (1, b"false\n")
