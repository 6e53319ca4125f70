"""Proves: a Python program joins a job, and its files and sockets work on shared memory absent on its node.

Run: hiroba run -n 2 python3 system_calls.py LIBHIROBA
"""

import ctypes
import os
import socket
import sys
import tempfile

library = ctypes.CDLL(sys.argv[1])
library.hiroba_alloc.restype = ctypes.c_void_p
library.hiroba_alloc.argtypes = [ctypes.c_size_t]
library.hiroba_error_string.restype = ctypes.c_char_p

SIZE = 5 * 4096 + 1000


def check(condition, what):
    if not condition:
        print(f"system_calls.py: node {library.hiroba_node()}: {what}", file=sys.stderr, flush=True)
        os._exit(1)


result = library.hiroba_init(None, None)
check(result == 0, f"hiroba_init: {library.hiroba_error_string()} ({result})")
node, nodes = library.hiroba_node(), library.hiroba_nodes()
if len(sys.argv) > 2:
    check(nodes == int(sys.argv[2]), f"the job has {nodes} nodes, not {sys.argv[2]}")

region = library.hiroba_alloc(2 * SIZE * nodes)
check(region, "hiroba_alloc failed")


def view(of):
    array = (ctypes.c_ubyte * SIZE).from_address(region + 2 * SIZE * of)
    return memoryview(array).cast("B")


mine, other = view(node), view((node + 1) % nodes)


def fill(seed):
    """Collective: the next node writes this node's memory; what it then holds."""
    library.hiroba_barrier()
    content = bytes((i * 7 + seed) & 255 for i in range(SIZE))
    other[:] = content
    library.hiroba_barrier()
    return content


with tempfile.TemporaryFile(buffering=0) as file:
    for seed in range(3):
        content = fill(seed)
        check(os.pwrite(file.fileno(), mine, 0) == SIZE, "pwrite cut short")
        check(os.pread(file.fileno(), SIZE, 0) == content, "pwrite wrote something else")
        fill(seed + 10)
        file.seek(0)
        check(file.readinto(mine) == SIZE, "readinto cut short")
        check(bytes(mine) == content, "readinto read something else")
        fill(seed + 20)
        check(os.preadv(file.fileno(), [mine[:5000], mine[5000:]], 0) == SIZE, "preadv cut short")
        check(bytes(mine) == content, "preadv read something else")

for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with ours, theirs:
        for seed in range(3):
            content = fill(seed)
            check(ours.send(mine) == SIZE, "send cut short")
            check(theirs.recv(SIZE) == content, "send sent something else")
            fill(seed + 10)
            ours.send(content)
            check(theirs.recv_into(mine) == SIZE, "recv_into cut short")
            check(bytes(mine) == content, "recv_into received something else")
            fill(seed + 20)
            check(ours.sendmsg([mine[:100], mine[100:]]) == SIZE, "sendmsg cut short")
            check(theirs.recvmsg_into([mine[:7000], mine[7000:]])[0] == SIZE, "recvmsg_into cut short")

library.hiroba_barrier()
library.hiroba_finalize()
