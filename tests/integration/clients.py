# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run by Python in a microVM of the template "clients" (see test_credential_clients.py): real clients, each as its users have it, with the run's sentinel.
Prints one JSON object behind "RESULT "."""

import asyncio
import hashlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

WIRE, H2 = "wire.example.org", "h2.example.org"
URL = "https://" + WIRE
KEY = os.environ.get("WIRE_KEY", "")
GOLDEN = b"\0golden\r\n\xff"
NODE = "/opt/agent/pi/bin/node"
CA, BUNDLE = "/run/anchorhold/ca.pem", "/etc/ssl/certs/ca-certificates.crt"
# In a guest that is emulated, most of what a short-lived JRE does by default is to make itself faster.
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/root", "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"}

FETCH = r"""
const key = process.env.WIRE_KEY, url = "https://wire.example.org", out = {};
const sha = data => require("crypto").createHash("sha256").update(data).digest("hex");
const body = require("crypto").randomBytes(1500000);
const post = (path, headers, body, more) => fetch(url + path, { method: "POST", headers, body, ...more });
(async () => {
    out.golden = await (await post("/fetch?a=b%20c", { "x-wire-key": key }, Buffer.from("\0golden\r\n\xff", "latin1"))).text();
    out.upload = (await (await post("/hash", { authorization: "Bearer " + key }, body)).text()).split(" ")[0] == sha(body);
    async function* pieces() { for (let i = 0; i < body.length; i += 70001) yield body.subarray(i, i + 70001); }
    out.pieces = (await (await post("/hash", { "x-wire-key": key }, pieces(), { duplex: "half" })).text()).split(" ")[0] == sha(body);
    const reflect = await fetch(url + "/reflect", { headers: { "x-wire-key": key } });
    out.cookie = reflect.headers.getSetCookie();
    out.reflect = await reflect.json();
    out.gzip = await (await fetch(url + "/gzip", { headers: { "x-wire-key": key } })).json();
    out.events = 0;
    for await (const piece of (await fetch(url + "/sse")).body)
        out.events += Buffer.from(piece).toString().split("data: ").length - 1;
    const refused = await fetch(url + "/fetch-refused", { headers: { "x-wire-key": "client-somebody-elses" } });
    out.refused = [refused.status, (await refused.json()).error.reason];
    console.log(JSON.stringify(out));
})();
"""

# A header of one's own is undici's way; browsers have none.
SOCKET = r"""
const out = { got: [] }, data = require("crypto").randomBytes(200000);
const ws = new WebSocket("wss://wire.example.org/ws", { headers: { "x-wire-key": process.env.WIRE_KEY } });
ws.binaryType = "arraybuffer";
ws.onopen = () => { out.extensions = ws.extensions; ws.send("key"); ws.send(data); ws.send(""); };
ws.onmessage = e => {
    out.got.push(typeof e.data == "string" ? e.data : Buffer.from(e.data).equals(data));
    if (out.got.length == 3) ws.close(1000, "done");
};
ws.onerror = e => { out.error = String(e.message || e.error); };
ws.onclose = e => { out.close = [e.code, e.wasClean]; console.log(JSON.stringify(out)); };
"""

# Node has no client for it, but the protocol below: a request of HTTP/2, whose data are frames.
EXTENDED = r"""
const session = require("http2").connect("https://h2.example.org"), data = require("crypto").randomBytes(100000);
function frame(first, data) {
    const size = data.length < 126 ? [0x80 | data.length] : data.length < 65536 ? [0xfe, data.length >> 8, data.length & 255]
        : [0xff, 0, 0, 0, 0, data.length >>> 24, data.length >> 16 & 255, data.length >> 8 & 255, data.length & 255];
    return Buffer.concat([Buffer.from([first, ...size, 1, 2, 3, 4]), data.map((c, i) => c ^ (1 + i % 4))]);
}
session.on("error", e => { console.log(JSON.stringify({ error: String(e) })); process.exit(1); });
session.on("remoteSettings", settings => {
    if (!settings.enableConnectProtocol || session.begun) return;
    session.begun = true;
    const pieces = [], stream = session.request({ ":method": "CONNECT", ":protocol": "websocket", ":path": "/ws", "sec-websocket-version": "13",
                                                  "sec-websocket-extensions": "permessage-deflate", "x-wire-key": process.env.WIRE_KEY });
    stream.on("response", headers => { stream.status = headers[":status"]; stream.extensions = headers["sec-websocket-extensions"]; });
    stream.on("data", piece => pieces.push(piece));
    stream.on("close", () => {
        console.log(JSON.stringify({ status: stream.status, extensions: stream.extensions || "", data: data.toString("base64"), got: Buffer.concat(pieces).toString("base64"), code: stream.rstCode }));
        session.close();
    });
    for (const f of [frame(0x81, Buffer.from("key")), frame(0x89, Buffer.from("ping")), frame(0x82, data), frame(0x88, Buffer.from([3, 232]))]) stream.write(f);
    stream.end();
});
"""


def run(argv, env=None, **options):
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False, **options)
    return done.stdout + done.stderr


def node(script):
    said = run([NODE, "-e", script])
    try:
        return json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        return {"said": said}


def of_requests():
    import requests

    key, out = {"x-wire-key": KEY}, {}
    with requests.Session() as s:
        out["golden"] = s.post(URL + "/requests?a=b%20c", data=GOLDEN, headers=key, timeout=60).text
        body = os.urandom(1500000)
        out["upload"] = s.post(URL + "/hash", data=body, headers={"Authorization": "Bearer " + KEY}, timeout=60).text.split()[0] == hashlib.sha256(body).hexdigest()
        pieces = (body[i:i + 70001] for i in range(0, len(body), 70001))
        out["pieces"] = s.post(URL + "/hash", data=pieces, headers=key, timeout=60).text.split()[0] == hashlib.sha256(body).hexdigest()
        reflect = s.get(URL + "/reflect", headers=key, timeout=60)
        out["cookie"], out["reflect"] = reflect.headers["Set-Cookie"], reflect.json()
        s.cookies.clear()                                          # a cookie is no place for a sentinel
        out["gzip"] = s.get(URL + "/gzip", headers=key, timeout=60).json()
        refused = s.get(URL + "/requests-refused", headers={"x-wire-key": "client-somebody-elses"}, timeout=60)
        out["refused"] = [refused.status_code, refused.json()["error"]["reason"]]
    return out


def of_grpc():
    import grpc

    out, metadata = {}, (("x-wire-key", KEY),)
    with grpc.secure_channel(H2 + ":443", grpc.ssl_channel_credentials()) as channel:
        out["unary"] = channel.unary_unary("/wire.Test/Unary")(GOLDEN, metadata=metadata, timeout=60) == GOLDEN
        out["key"] = channel.unary_unary("/wire.Test/Key")(b"", metadata=metadata, timeout=60).decode()
        large = os.urandom(300000)
        out["large"] = channel.unary_unary("/wire.Test/Unary")(large, metadata=metadata, timeout=60) == large

        # both directions at once: nothing is asked before the last answer is there
        questions = queue.Queue()
        call = channel.stream_stream("/wire.Test/Talk")(iter(questions.get, None), metadata=metadata, timeout=60)
        out["turns"] = []
        for i in range(5):
            questions.put(b"question %d" % i)
            out["turns"].append(next(call).decode())
        questions.put(None)
        out["rest"], out["code"] = len(list(call)), call.code().name
        try:
            channel.unary_unary("/wire.Test/Refused")(b"", metadata=(("x-wire-key", "client-somebody-elses"),), timeout=60)
        except grpc.RpcError as error:
            out["refused"] = [error.code().name, dict(error.initial_metadata()).get("anchorhold-reason")]
    both = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(), grpc.access_token_call_credentials(KEY))
    with grpc.secure_channel(H2 + ":443", both) as channel:
        out["bearer"] = channel.unary_unary("/wire.Test/Key")(b"", timeout=60).decode()
    return out


async def of_websockets():
    # Not websockets.sync: that one reads in a thread of its own, and close() gives the socket a timeout meanwhile. A read that has begun without one, and
    # finds nothing, then fails in Python's ssl as if it had waited that long, and the client takes it for the connection's end: 1006, whatever the origin says.
    from websockets.asyncio.client import connect

    data = os.urandom(200000)
    async with asyncio.timeout(180), connect(f"wss://{WIRE}/ws", additional_headers={"x-wire-key": KEY}) as ws:
        await ws.send("key")
        out = {"key": await ws.recv()}
        await ws.send([data[:70000], data[70000:70001], data[70001:]])
        out["same"] = await ws.recv() == data
        out["pong"] = await (await ws.ping()) >= 0
        out["extensions"] = [str(extension) for extension in ws.protocol.extensions]
        await ws.close(1000, "done")
        out["close"] = [ws.close_code, ws.close_reason]
    return out


# Each tool with the variable that it goes by, and how it says that it believed the origin.
GRPC_READY = f"import grpc; grpc.channel_ready_future(grpc.secure_channel('{H2}:443', grpc.ssl_channel_credentials())).result(timeout=15); print('status', 200)"
CURL = ["curl", "-sS", "-w", "status %{http_code}"]
TOOLS = {
    "CURL_CA_BUNDLE": (CURL + [URL + "/trust"], "status 200"),
    "SSL_CERT_FILE": ([sys.executable, "-c", f"import urllib.request; print('status', urllib.request.urlopen('{URL}/trust').status)"], "status 200"),
    "REQUESTS_CA_BUNDLE": ([sys.executable, "-c", f"import requests; print('status', requests.get('{URL}/trust', timeout=60).status_code)"], "status 200"),
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": ([sys.executable, "-c", GRPC_READY], "status 200"),
    # the origin is no git server: who comes so far has believed its certificate
    "GIT_SSL_CAINFO": (["git", "ls-remote", URL + "/repo"], "is this a git repository"),
    "NODE_EXTRA_CA_CERTS": ([NODE, "-e", f"fetch('{URL}/trust').then(r => console.log('status', r.status), e => console.log(e.cause.code))"], "status 200"),
}
# Nor is its answer a list of what is revoked.
JAVA, JAVA_TRUSTED = ["keytool", "-printcrl", "-file", URL + "/java"], "No CRL data found"


def stores():
    """By each variable as a step has it, and by the same with another CA in the file: whether that is trust, and what was said."""
    with open(BUNDLE, encoding="ascii") as f, open("/root/other.pem", "w", encoding="ascii") as to:
        to.write(f.read().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n")
    # git reads a folder as well, where the bundle is
    os.mkdir("/root/empty")
    tries = [(name, sign, argv, path) for name, (argv, sign) in TOOLS.items() for path in (os.environ[name], "/root/other.pem")]
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda each: run(each[2], {**BARE, "GIT_SSL_CAPATH": "/root/empty", each[0]: each[3]}), tries))
    out = {}
    for (name, sign, _, _), text in zip(tries, said):
        out.setdefault(name, []).append((sign in text, text[-300:]))
    return out


def carry(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


def connect_late():
    """A JRE connects first, and then takes its time to read its store: in a guest that is emulated longer than the proxy waits for a greeting. So
    the connection is made when the greeting is there."""
    address = socket.gethostbyname(WIRE)
    listener = socket.create_server(("127.0.0.1", 443))
    with open("/etc/hosts", "a", encoding="ascii") as f:
        f.write("127.0.0.1 %s\n" % WIRE)

    def serve():
        while True:
            near, _ = listener.accept()
            if hello := near.recv(65536):
                far = socket.create_connection((address, 443))
                far.sendall(hello)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def java():
    """What keytool says of the store, which checks its digest; and whether a JRE believes the origin by it, and by a store with no entry."""
    import ssl

    connect_late()
    with open("/root/none.jks", "wb") as f:
        f.write(bytes.fromhex("feedfeed0000000200000000") + bytes(20))
    tries = [run(JAVA + more, BARE) for more in ([], ["-J-Djavax.net.ssl.trustStore=/root/none.jks"])]
    with open(CA, encoding="ascii") as f, open(BUNDLE, encoding="ascii") as g:
        first, n = f.read().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n", g.read().count("-----BEGIN CERTIFICATE-----")
    print_ = hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest().upper()
    said = run(["keytool", "-list", "-cacerts", "-storepass", "changeit"], BARE)
    return {"has": ":".join(print_[i:i + 2] for i in range(0, 64, 2)) in said, "count": f"contains {n} entries" in said, "said": said[:300],
            "tries": [(JAVA_TRUSTED in text, text[-300:]) for text in tries]}


def made_anew():
    """The bundle as Debian makes it, which it does whenever a package asks for that."""
    made = run(["update-ca-certificates"], {**BARE, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    return {"said": made[-300:], "curl": run([*CURL, URL + "/anew"], BARE), "java": run(JAVA, BARE)[-300:]}


def main():
    out = {"key": KEY, "environment": {name: os.environ.get(name) for name in [*TOOLS, "CARGO_HTTP_CAINFO"]}}
    for name, part in (("fetch", lambda: node(FETCH)), ("socket", lambda: node(SOCKET)), ("extended", lambda: node(EXTENDED)), ("requests", of_requests),
                       ("grpc", of_grpc), ("websockets", lambda: asyncio.run(of_websockets())), ("stores", stores), ("java", java), ("anew", made_anew)):
        since = time.monotonic()
        try:
            out[name] = part()
        except Exception as error:  # noqa: BLE001  the test reads it
            out[name] = {"error": f"{type(error).__name__}: {error}"}
        print(f"-- {name} {time.monotonic() - since:.1f} s", flush=True)
    print("RESULT " + json.dumps(out))


if __name__ == "__main__":
    main()
