# SPDX-License-Identifier: LGPL-2.1-or-later
"""An authoritative DNS server (RFC 1035, UDP and TCP) for the few names of a zone file.

The zone is JSON, read anew whenever it changes: {"api.example.org": {"A": ["203.0.113.10"], "ttl": 60}} with
"A", "AAAA", "CNAME", and "answers": a list of such objects to give in turn, to questions of each type; "rcode": a number to answer instead;
"tcp": true: over UDP the answer is truncated; "silent": true: no answer at all. Other names do not exist.
"""

import ipaddress
import json
import os
import socketserver
import struct
import threading
import time

TYPES = {"A": 1, "CNAME": 5, "AAAA": 28}


def encode_name(name):
    return b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split(".") if label) + b"\0"


def decode_name(data, at):
    labels = []
    while data[at]:
        length = data[at]
        if length > 63:
            raise ValueError("a compressed name in a question")
        labels.append(data[at + 1:at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    return ".".join(labels), at + 1


class Zone:
    def __init__(self, path, log_path):
        self.path, self.log_path = path, log_path
        self.lock = threading.Lock()
        self.stamp, self.names, self.turns = None, {}, {}

    def find(self, name, qtype):
        with self.lock:
            stamp = os.stat(self.path).st_mtime_ns
            if stamp != self.stamp:
                with open(self.path, encoding="utf-8") as f:
                    self.names = {k.lower(): v for k, v in json.load(f).items()}
                self.stamp, self.turns = stamp, {}
            entry = self.names.get(name.lower())
            if entry and "answers" in entry:
                turn = self.turns.get((name, qtype), 0)
                self.turns[name, qtype] = turn + 1
                entry = entry["answers"][min(turn, len(entry["answers"]) - 1)]
            return entry

    def note(self, client, name, qtype):
        with self.lock, open(self.log_path, "a", encoding="utf-8") as f:
            f.write(json.dumps({"time": time.time(), "client": client, "name": name, "type": qtype}) + "\n")

    def answer(self, query, client, tcp):
        """The whole reply to one query, or None for what is no query."""
        if len(query) < 17:
            return None
        ident, flags, n_questions = struct.unpack("!HHH", query[:6])
        if flags & 0x8000 or n_questions != 1:
            return None
        name, end = decode_name(query, 12)
        qtype, _ = struct.unpack("!HH", query[end:end + 4])
        self.note(client, name, qtype)

        records, entry, owner = [], self.find(name, qtype), name
        rcode, flags = 0 if entry is not None else 3, 0x8400 | (flags & 0x0100)
        if entry and entry.get("silent"):
            return None
        if entry and ("rcode" in entry or (entry.get("tcp") and not tcp)):
            rcode, flags = entry.get("rcode", 0), flags | (0x0200 if entry.get("tcp") else 0)
            entry = None
        while entry is not None and len(records) < 20:
            ttl = entry.get("ttl", 60)
            if "CNAME" in entry:
                records.append((owner, 5, ttl, encode_name(entry["CNAME"])))
                owner = entry["CNAME"]
                entry = self.find(owner, qtype)
                continue
            for kind in ("A", "AAAA"):
                if qtype == TYPES[kind]:
                    records += [(owner, qtype, ttl, ipaddress.ip_address(a).packed) for a in entry.get(kind, [])]
            break

        head = struct.pack("!HHHHHH", ident, flags | rcode, 1, len(records), 0, 0)
        body = b"".join(encode_name(o) + struct.pack("!HHIH", t, 1, ttl, len(d)) + d for o, t, ttl, d in records)
        return head + query[12:end + 4] + body


class Udp(socketserver.BaseRequestHandler):
    def handle(self):
        data, sock = self.request
        reply = self.server.zone.answer(data, self.client_address[0], False)
        if reply:
            sock.sendto(reply, self.client_address)


class Tcp(socketserver.StreamRequestHandler):
    timeout = 10

    def handle(self):
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            reply = self.server.zone.answer(self.rfile.read(struct.unpack("!H", head)[0]), self.client_address[0], True)
            if not reply:
                return
            self.wfile.write(struct.pack("!H", len(reply)) + reply)


class UdpServer(socketserver.ThreadingUDPServer):
    daemon_threads = True
    allow_reuse_address = True


class TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def serve(address, zone_path, log_path):
    zone = Zone(zone_path, log_path)
    for server in (UdpServer(address, Udp), TcpServer(address, Tcp)):
        server.zone = zone
        threading.Thread(target=server.serve_forever, daemon=True).start()
