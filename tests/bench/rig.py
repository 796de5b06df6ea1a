"""What the measurements of the service share: programs started in a folder, a Redis client, an HTTP
client that throws the body away, clocks. Standard library."""
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time

PIECE = 1 << 20  # of a result, in the cache


class Programs:
    """Started in a folder of their own, which has their logs; stopped in the opposite order."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="pe-bench-", dir="/tmp"))
        self.running = []

    def start(self, name, *argv, **env):
        log = open(self.dir / f"{name}.log", "wb")
        process = subprocess.Popen([str(a) for a in argv], stdout=log, stderr=log,
                                   env={**os.environ, **env})
        process.name = name
        self.running.append(process)
        return process

    def wait_for(self, true):
        while not true():
            for process in self.running:
                if process.poll() is not None:
                    raise SystemExit(f"{process.name} ended:\n" +
                                     (self.dir / f"{process.name}.log").read_text())
            time.sleep(0.02)

    def stop(self):
        for process in reversed(self.running):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(60)


class Redis:
    """Just enough of the protocol, on a unix socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb", 1 << 20)

    def send(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.socket.sendall(b"".join([b"*%d\r\n" % len(words)] +
                                     [b"$%d\r\n%s\r\n" % (len(w), w) for w in words]))

    def read(self):
        line = self.file.readline()
        if line[:1] == b"$":
            size = int(line[1:])
            return None if size < 0 else self.file.read(size + 2)[:-2]
        if line[:1] == b"*":
            return [self.read() for _ in range(int(line[1:]))]
        return line[1:-2]

    def __call__(self, *words):
        self.send(*words)
        return self.read()


def receive(s):
    """An answer's head, and how many bytes follow until the end."""
    chunk = bytearray(1 << 20)
    head = b""
    while b"\r\n\r\n" not in head:
        got = s.recv(65536)
        if not got:
            raise SystemExit(f"the connection ended after {head!r}")
        head += got
    head, _, rest = head.partition(b"\r\n\r\n")
    n = len(rest)
    while got := s.recv_into(chunk):
        n += got
    return head.decode(), n


def send_over_loopback(pieces):
    """The same bytes from one thread to another through TCP."""
    listener = socket.create_server(("127.0.0.1", 0))

    def sender():
        with listener.accept()[0] as s:
            s.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for piece in pieces:
                s.sendall(piece)

    thread = threading.Thread(target=sender)
    thread.start()
    with socket.create_connection(listener.getsockname()) as s:
        receive(s)
    thread.join()
    listener.close()


def timed(what, *words):
    begin = time.perf_counter()
    result = what(*words)
    return (time.perf_counter() - begin) * 1e3, result


def metric(path, series):
    """From the admin listener on that socket."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for line in s.makefile("rb").read().decode().splitlines():
            if line.startswith(series + " "):
                return float(line.rsplit(" ", 1)[1])
    raise SystemExit(f"no metric {series}")
