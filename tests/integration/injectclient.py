# SPDX-License-Identifier: LGPL-2.1-or-later
"""Clients of inject for FakeGuest.call(): they believe any certificate. The run's CA is in the microVM; that it is what a guest trusts, tests with one see."""

import http.client
import socket
import ssl

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset


def make_context():
    """Without the system's store: to read it takes more time than a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def connect(address, name, alpn=None):
    context = make_context()
    if alpn:
        context.set_alpn_protocols(alpn)
    raw = socket.create_connection((address, 443), timeout=120)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(raw, server_hostname=name)


def ask(address, name, *paths):
    """[(status, body)] of these requests, one after the other on one connection."""
    answers = []
    with connect(address, name) as s:
        for path in paths:
            s.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (path.encode(), name.encode()))
            response = http.client.HTTPResponse(s)
            response.begin()
            answers.append((response.status, response.read().decode()))
    return answers


class H2Client:
    """One of HTTP/2, which opens windows when it is told to, and keeps the pieces in which an answer comes."""

    def __init__(self, address, name):
        self.name, self.holds = name, False
        self.status, self.pieces, self.ended, self.owed = {}, {}, set(), {}
        self.socket = connect(address, name, ["h2"])
        assert self.socket.selected_alpn_protocol() == "h2"
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window((1 << 31) - 1 - 65535)
        self.flush()

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def ask(self, path, *fields):
        """Begins a GET; its stream."""
        stream = self.h2.get_next_available_stream_id()
        self.pieces[stream] = []
        self.h2.send_headers(stream, [(":method", "GET"), (":scheme", "https"), (":authority", self.name), (":path", path), *fields], end_stream=True)
        self.flush()
        return stream

    def acknowledge(self, stream, size):
        """Opens the stream's window again. The connection's is as good as endless."""
        if stream not in self.ended:
            self.h2.increment_flow_control_window(size, stream)

    def read(self):
        """Takes what has come; waits for something."""
        data = self.socket.recv(65536)
        if not data:
            raise EOFError
        events = self.h2.receive_data(data)
        self.ended |= {event.stream_id for event in events if isinstance(event, (StreamEnded, StreamReset))}
        for event in events:
            if isinstance(event, ResponseReceived):
                self.status[event.stream_id] = int(dict(event.headers)[":status"])
            elif isinstance(event, DataReceived):
                self.pieces[event.stream_id].append(event.data)
                if self.holds:
                    self.owed[event.stream_id] = self.owed.get(event.stream_id, 0) + event.flow_controlled_length
                else:
                    self.acknowledge(event.stream_id, event.flow_controlled_length)
        self.flush()

    def release(self):
        """Opens all windows for what has come, and from now on at once."""
        self.holds = False
        for stream, size in self.owed.items():
            self.acknowledge(stream, size)
        self.owed = {}
        self.flush()

    def got(self, stream):
        return sum(map(len, self.pieces[stream]))
