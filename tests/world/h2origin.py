# SPDX-License-Identifier: LGPL-2.1-or-later
"""An origin that speaks HTTP/2, with Debian's python3-h2. What it does is in the query, "do=WORD":

nothing says what it got, its credential included; `echo`, or the path /echo, sends the body back at its end; `turns` sends each piece back at once, and a trailer
`grpc-status: 0`; `events` is a stream of twenty, each with the time at which it was sent; `hold` opens no window for three seconds, then says
how much came; `reset` resets the stream; `early` answers before the body is there; `much` sends "size" bytes, those of
`pattern()` for "seed".
A call of gRPC, whose path is "/wire.Test/METHOD", is `turns`; of the method "Key" the answer to each message is the request's credential.
A WebSocket (extended CONNECT) gets each message back, and for "key" the same. A client that does not negotiate HTTP/2 gets a line of
HTTP/1.1. Each request is logged when its head is there, with the number of its connection, and what else came of it at its end.
"""

import hashlib
import json
import select
import socket
import ssl
import threading
import time
from urllib.parse import parse_qs, urlsplit

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

import wire

EVENTS, EVENT_GAP, HOLD = 20, 0.2, 3
KEPT = 1 << 16               # of a body, in the log


def pattern(size, seed):
    """So many bytes, which differ from seed to seed and from place to place."""
    return hashlib.shake_256(b"%d" % seed).digest(size)


def make_message(data):
    """One of gRPC."""
    return b"\0" + len(data).to_bytes(4, "big") + data


def take_message(data):
    """Whether there was a whole one in the bytearray, off which it is now."""
    size = 5 + int.from_bytes(data[1:5], "big")
    if len(data) < 5 or len(data) < size:
        return False
    del data[:size]
    return True


class Stream:
    def __init__(self, number, headers):
        self.number = number
        self.headers = [(name, value) for name, value in headers]
        self.fields = dict(self.headers)
        url = urlsplit(self.fields.get(":path", ""))
        self.query = parse_qs(url.query)
        self.verb = self.query.get("do", ["say"])[0]
        if url.path == "/echo":
            self.verb = "echo"
        elif url.path.startswith("/wire.Test/"):
            self.verb = "key" if url.path.endswith("/Key") else "turns"
        elif ":protocol" in self.fields:
            self.verb = "websocket"
        self.key = self.fields.get("x-wire-key", self.fields.get("authorization", self.fields.get("x-api-key", "none")))
        self.since = time.time()
        self.body, self.pending, self.size, self.owed = bytearray(), bytearray(), 0, 0
        self.out, self.over, self.trailers = bytearray(), False, None
        self.sent_events = 0


class Connection:
    def __init__(self, server, sock, number):
        self.server, self.socket, self.number = server, sock, number
        self.streams = {}
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.local_settings = Settings(client=False, initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: 100, SettingCodes.MAX_HEADER_LIST_SIZE: 65536, SettingCodes.ENABLE_CONNECT_PROTOCOL: 1})

    def run(self):
        self.h2.initiate_connection()
        while True:
            self.flush()
            busy = any(s.verb in ("events", "hold") for s in self.streams.values())
            if not self.socket.pending() and not select.select([self.socket], [], [], 0.02 if busy else 60)[0]:
                self.tick()
                continue
            data = self.socket.recv(65536)
            if not data:
                return
            for event in self.h2.receive_data(data):
                self.take(event)
            self.tick()

    def take(self, event):
        if isinstance(event, RequestReceived):
            stream = self.streams[event.stream_id] = Stream(event.stream_id, event.headers)
            self.server.note({"time": time.time(), "connection": self.number, "stream": stream.number, "headers": stream.headers})
            self.begin(stream)
            return
        stream = self.streams.get(getattr(event, "stream_id", None))
        if not stream:
            return
        if isinstance(event, DataReceived):
            stream.size += len(event.data)
            if stream.verb == "hold" and time.time() - stream.since < HOLD:
                stream.owed += event.flow_controlled_length
            else:
                self.h2.acknowledge_received_data(event.flow_controlled_length, stream.number)
            self.piece(stream, event.data)
        elif isinstance(event, TrailersReceived):
            self.server.note({"trailers": [list(field) for field in event.headers]})
        elif isinstance(event, StreamEnded):
            self.end(stream)
        elif isinstance(event, StreamReset):
            del self.streams[stream.number]

    def piece(self, stream, data):
        if stream.verb == "echo" or len(stream.body) < KEPT:
            stream.body += data
        if stream.verb == "turns":
            stream.out += data
        elif stream.verb == "key":
            stream.pending += data
            while take_message(stream.pending):
                stream.out += make_message(stream.key.encode())
        elif stream.verb == "websocket":
            stream.pending += data
            while found := wire.take_frame(stream.pending):
                first, message = found
                self.server.note({"frame": first, "message": hashlib.sha256(message).hexdigest(), "size": len(message)})
                stream.out += wire.make_frame(0x8a if first == 0x89 else first, stream.key.encode() if message == b"key" else message)
                stream.over = stream.over or first == 0x88

    def answer(self, stream, status=200, fields=(), end=False):
        self.h2.send_headers(stream.number, [(":status", str(status)), ("alt-svc", 'h2="elsewhere:443"'), *fields], end_stream=end)

    def begin(self, stream):
        if stream.fields.get("expect") == "100-continue":
            self.h2.send_headers(stream.number, [(":status", "100")])
        if stream.verb in ("turns", "key"):
            self.answer(stream, fields=[("content-type", stream.fields.get("content-type", "text/plain"))])
            stream.trailers = [("grpc-status", "0")]
        elif stream.verb == "websocket":
            self.answer(stream)
        elif stream.verb == "much":
            self.answer(stream)
            stream.out, stream.over = bytearray(pattern(*(int(stream.query[key][0]) for key in ("size", "seed")))), True
        elif stream.verb == "events":
            self.answer(stream, fields=[("content-type", "text/event-stream")])
        elif stream.verb == "reset":
            self.h2.reset_stream(stream.number, ErrorCodes.ENHANCE_YOUR_CALM)
            del self.streams[stream.number]
        elif stream.verb == "early":
            self.answer(stream, 413)
            stream.out, stream.over = bytearray(b"too much\n"), True

    def end(self, stream):
        self.server.note({"ended": stream.fields[":path"], "stream": stream.number, "connection": self.number, "size": stream.size,
                          "body": stream.body[:KEPT].decode("latin-1")})
        if stream.verb in ("say", "hold", "echo"):
            self.answer(stream)
            stream.out = {"say": f"{stream.fields[':method']} with {stream.key}\n".encode(), "hold": b"%d bytes\n" % stream.size, "echo": stream.body}[stream.verb]
            stream.out, stream.over = bytearray(stream.out), True
        elif stream.verb != "events":
            stream.over = True

    def tick(self):
        for stream in list(self.streams.values()):
            due = stream.since + stream.sent_events * EVENT_GAP
            if stream.verb == "events" and not stream.over and time.time() >= due:
                stream.sent_events += 1
                stream.out += b"data: %.3f\n\n" % time.time()
                stream.over = stream.sent_events == EVENTS
            if stream.owed and time.time() - stream.since >= HOLD:
                self.h2.acknowledge_received_data(stream.owed, stream.number)
                stream.owed = 0

    def flush(self):
        for stream in list(self.streams.values()):
            while stream.out:
                room = min(self.h2.local_flow_control_window(stream.number), self.h2.max_outbound_frame_size, len(stream.out))
                if room <= 0:
                    break
                self.h2.send_data(stream.number, bytes(stream.out[:room]))
                del stream.out[:room]
            if stream.over and not stream.out:
                if stream.trailers:
                    self.h2.send_headers(stream.number, stream.trailers, end_stream=True)
                else:
                    self.h2.end_stream(stream.number)
                del self.streams[stream.number]
        self.socket.sendall(self.h2.data_to_send())


class Server:
    def __init__(self, address, log_path, cert, key):
        self.log_path, self.lock, self.n = log_path, threading.Lock(), 0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(cert, key)
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        self.socket = socket.create_server(address, backlog=128)
        threading.Thread(target=self.accept, daemon=True).start()

    def note(self, entry):
        with self.lock, open(self.log_path, "a", encoding="utf-8") as f:
            f.write(json.dumps(entry) + "\n")

    def accept(self):
        while True:
            sock, _ = self.socket.accept()
            self.n += 1
            threading.Thread(target=self.serve, args=(sock, self.n), daemon=True).start()

    def serve(self, sock, number):
        try:
            sock.settimeout(60)
            sock = self.context.wrap_socket(sock, server_side=True)
            if sock.selected_alpn_protocol() == "h2":
                Connection(self, sock, number).run()
            elif sock.recv(65536):
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\none.\n")
        except (OSError, ProtocolError):
            pass                                               # whoever it was has its own record
        finally:
            sock.close()
