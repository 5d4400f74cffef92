"""One Python that has imported what takes seconds, and runs each program in a copy of itself (fork).

    python-server.py SOCKET MODULE...     the probe served-python asks it

A program has the arguments, environment, directory and fds 0 to 2 of the served-python that asks, and ends as it would
in a separate Python. If served-python is killed, so is the program; if the suite ends, the server.
"""
import atexit
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import types


def end_with(parent):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def serve(listener):
    """Return in the process of a program, with the connection that asks for it."""
    me, connections, pids = os.getpid(), {}, {}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                pid = os.fork()
                if not pid:
                    end_with(me)
                    return connection
                pidfd = os.pidfd_open(pid)
                connections[pidfd], pids[connection.fileno()] = connection, pid
                poll.register(connection, 0)        # 0: only its end
                poll.register(pidfd, select.POLLIN)
            elif fd in connections:                 # the program has ended
                connection = connections.pop(fd)
                _, status = os.waitpid(pids.pop(connection.fileno()), 0)
                poll.unregister(fd)
                os.close(fd)
                try:
                    poll.unregister(connection)
                    connection.sendall(status.to_bytes(4, sys.byteorder))
                except (KeyError, OSError):         # who asked has been killed
                    pass
                connection.close()
            elif fd in pids:
                poll.unregister(fd)
                os.kill(pids[fd], signal.SIGKILL)


def become(connection):
    """Take fds, directory, environment and arguments of who asks."""
    _, fds, _, _ = socket.recv_fds(connection, 1, 4)
    with connection.makefile("rb") as f:
        *words, _ = f.read().split(b"\0")
    for i, fd in enumerate(fds[:3]):
        os.dup2(fd, i)
    os.fchdir(fds[3])
    os.closerange(3, max(fds) + 1)
    count = int(words[0])
    sys.argv = [os.fsdecode(word) for word in words[1:count + 1]]
    for name in list(os.environb):
        del os.environb[name]
    os.environb.update(word.split(b"=", 1) for word in words[count + 1:])
    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0])) if sys.argv[0] != "-" else ""
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    return main


def run(main):
    with open(0 if sys.argv[0] == "-" else sys.argv[0], "rb", closefd=sys.argv[0] != "-") as f:
        program = compile(f.read(), sys.argv[0], "exec")
    code = 0
    try:
        exec(program, main.__dict__)
    except SystemExit as e:
        if not isinstance(e.code, (int, type(None))):
            raise
        code = e.code or 0
    # the rest of a normal end frees each object of the server, which takes 50 ms
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    end_with(os.getppid())
    path, *modules = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)                  # programs wait from here on
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    run(become(serve(listener)))
