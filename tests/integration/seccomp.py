# SPDX-License-Identifier: LGPL-2.1-or-later
"""The seccomp filters of a process that runs, word for word as the kernel has them, and the same put upon another."""

import ctypes
import errno
import os

libc = ctypes.CDLL(None, use_errno=True)
SEIZE, INTERRUPT, DETACH, GET_FILTER, WALL = 0x4206, 0x4207, 17, 0x420C, 0x40000000
NO_NEW_PRIVS, SET_SECCOMP, MODE_FILTER = 38, 22, 2


class Program(ctypes.Structure):
    _fields_ = [("n", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def ptrace(request, pid, address=0, data=None):
    result = libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), data)
    if result < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return result


def filters_of(pid):
    """The filters of a process, in the order in which they were put upon it: bytes of eight per instruction."""
    found = []
    ptrace(SEIZE, pid)
    try:
        ptrace(INTERRUPT, pid)
        os.waitpid(pid, WALL)
        try:
            while True:                                    # the newest is the first
                n = ptrace(GET_FILTER, pid, len(found), None)
                data = ctypes.create_string_buffer(n * 8)
                ptrace(GET_FILTER, pid, len(found), data)
                found.append(data.raw[:n * 8])
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
    finally:
        ptrace(DETACH, pid)
    return found[::-1]


def confine(filters):
    """Puts them upon this process, for good."""
    if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        raise RuntimeError("PR_SET_NO_NEW_PRIVS")
    for data in filters:
        kept = ctypes.create_string_buffer(data, len(data))
        program = Program(len(data) // 8, ctypes.addressof(kept))
        if libc.prctl(SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0) < 0:
            raise RuntimeError(f"PR_SET_SECCOMP: {os.strerror(ctypes.get_errno())}")
