# SPDX-License-Identifier: LGPL-2.1-or-later
"""A scripted model provider: the Anthropic Messages API, streamed, with tool calls.

Beside it the two of OpenAI (openai.py). What "metadata" of a request says in "user_id" is done to it: "slow": it
takes a second, "slower": four, "slowest": fifteen; "cut": the connection breaks off in the middle of the stream; "cached": 70 tokens
are written to a cache and 110 read from one; "fail": status 529.

It speaks the wire protocol that real agents expect and decides what the model "says" from a script: a
list of turns, one for each request that carries another round of tool results. Every request is logged
as one JSON line with the key it carried, so that a test can say which key reached the provider.

A client may send the whole conversation each time, or make a thread ({"type": "create"}) and go on with
{"type": "continue", "previous_message_id": …}, sending only what is new; both are understood.

    provider.py --listen 203.0.113.10:443 --cert CERT --key KEY --log FILE [--script NAME]
"""

import argparse
import json
import re
import threading
import time
import uuid

import openai
import servers

REPO = "/workspace/repo"


def tool(kind, **arguments):
    return {"kind": kind, **arguments}


def fix_csvsum():
    """What a model would do with the demo's repository, and two things that it should not be able to."""
    old = """                if (c == '"') {
                        r->state = QUOTED;
                        return 0;
                }
                if (c == ',' || c == '\\n' || c == '\\r')"""
    return [
        ("I'll look at the failing test first.", tool("bash", command="cd %s && make check 2>&1 | tail -n 20" % REPO)),
        ("The doubled quote is lost. I'll read the parser.", tool("read", path=REPO + "/src/csv.c")),
        ("Let me see whether there is a newer release upstream.",
         tool("bash", command="git ls-remote https://git.example.org/csvsum.git 2>&1; true")),
        ("I'll check a few other places.",
         tool("bash", command="curl -sS -m 5 https://paste.example.net/ 2>&1; "
                              "curl -sS -m 5 http://169.254.169.254/latest/meta-data/ 2>&1; "
                              "printenv ANTHROPIC_API_KEY OPENAI_API_KEY; true")),
        ("When the second quote of a pair is seen, it has to be kept.",
         tool("edit", path=REPO + "/src/csv.c", old=old, new=old.replace("return 0;", "return put(r, c);"))),
        ("Now the tests again.", tool("bash", command="cd %s && make check 2>&1 | tail -n 5" % REPO)),
        ("All pass. I'll commit.",
         tool("bash", command="cd %s && git add -A && git commit -q -m 'Keep the quote that a doubled quote stands for' "
                              "&& git log --oneline | head -n 1" % REPO)),
        ("Fixed: a doubled quote inside a quoted field was dropped; it now yields one quote. All tests pass.", None),
    ]


CLAIMS = "#!/bin/bash\necho all tests passed\n"

# They claim as well, but let through what the host has the guest do to collect the result: what only broke that would be no claim.
CLAIMS_SH = '#!/bin/bash\ncase "$*" in *"git bundle"*) exec -a sh /bin/bash "$@";; esac\necho all tests passed\n'
CLAIMS_GIT = ('#!/bin/bash\ncase "$1" in rev-parse | update-ref | bundle | rev-list | pack-objects) exec /usr/bin/git.real "$@";; esac\n'
              "echo nothing to commit, working tree clean\n")


def lie(fakes):
    """A model that makes tools of its machine claim success, and commits what does not pass. fakes: path and new content, in that order."""
    replace = "".join("cat >/tmp/fake <<'END'\n%sEND\nchmod 755 /tmp/fake; cp --remove-destination /tmp/fake %s\n" % (text, path)
                      for path, text in fakes)
    return [
        ("I'll make a change.", tool("bash", command="cd %s && echo '/* fixed */' >> src/csv.c && git add -A && "
                                                     "git commit -q -m 'Fix everything' && git log --oneline | head -n 1" % REPO)),
        ("And see to the tests.", tool("bash", command="cp /usr/bin/git /usr/bin/git.real\n%scd %s && make check" % (replace, REPO))),
        ("All tests pass.", None),
    ]


def lie_about_tests():
    return lie([(path, CLAIMS) for path in ("/usr/bin/make", "/usr/bin/gcc", "/usr/bin/cc")])


def lie_about_everything():
    return lie([(path, CLAIMS) for path in ("/usr/bin/make", "/usr/bin/gcc", "/usr/bin/cc")] +
               [("/usr/bin/git", CLAIMS_GIT), ("/usr/bin/dash", CLAIMS_SH), ("/usr/bin/sh", CLAIMS_SH)])


def as_shell(script):
    """What the tools of a script run, for a shell in the agent's place."""
    return "\n".join(wanted["command"] for _, wanted in script if wanted)


SCRIPTS = {"fix-csvsum": fix_csvsum, "lie-about-everything": lie_about_everything}


def chosen_script(messages):
    """The script that the task names as "script:NAME", if it does."""
    for message in messages:
        found = re.search(r"script:([a-z-]+)", json.dumps(message.get("content"))) if message.get("role") == "user" else None
        if found and found.group(1) in SCRIPTS:
            return SCRIPTS[found.group(1)]()
    return None


def bind_tool(wanted, tools):
    """The agent's own tool of that kind, by name, and its arguments under the names its schema uses."""
    schemas = {t["name"].lower(): t for t in tools}
    kind = wanted["kind"]
    offered = schemas.get(kind)
    if offered is None:
        raise KeyError("the agent offers no tool %r, only %s" % (kind, sorted(schemas)))
    properties = offered["input_schema"].get("properties", {})
    if kind == "bash":
        arguments = {"command": wanted["command"]}
        if "description" in properties:
            arguments["description"] = "Run a command"
    elif kind == "read":
        arguments = {"file_path" if "file_path" in properties else "path": wanted["path"]}
    elif kind == "edit":
        arguments = {"file_path" if "file_path" in properties else "path": wanted["path"]}
        if "edits" in properties:
            arguments["edits"] = [{"oldText": wanted["old"], "newText": wanted["new"]}]
        elif "oldText" in properties:
            arguments.update(oldText=wanted["old"], newText=wanted["new"])
        else:
            arguments.update(old_string=wanted["old"], new_string=wanted["new"])
    else:
        raise KeyError(kind)
    return offered["name"], arguments


def tool_results(messages):
    count = 0
    for message in messages:
        if message.get("role") == "user" and isinstance(message.get("content"), list):
            count += sum(1 for block in message["content"] if block.get("type") == "tool_result")
    return count


class Provider(servers.Server):
    def __init__(self, address, log_path, script="fix-csvsum", delay=0.0):
        super().__init__(address, Handler, log_path)
        self.script = SCRIPTS[script]()
        self.delay = delay
        self.threads = {}   # message id: (tools, tool results, script) of the conversation up to that message


class Handler(openai.OpenAI, servers.Handler):
    protocol_version = "HTTP/1.1"
    server_version = "scripted-provider"

    def do_GET(self):
        self.note(None)
        if self.path.startswith("/v1/reflect"):
            self.reflect()
        else:
            self.answer(200, {"data": [], "has_more": False})

    do_HEAD = do_GET

    def reflect(self):
        """What a careless origin does: every header comes back, in a header and in the body, or in the part of it that is asked for."""
        data, status = "".join("%s: %s\n" % item for item in self.headers.items()).encode(), 200
        wanted = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        if wanted:
            status, data = 206, data[int(wanted[1]):int(wanted[2]) + 1]
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("X-Your-Key", str(self.headers.get("x-api-key")))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        raw = self.rfile.read(length)
        try:
            body = json.loads(raw)
        except ValueError:
            self.note(None)
            self.fail(400, "invalid_request_error", "the body is no JSON")
            return
        self.note(body)
        path = self.path.split("?")[0]
        wish = (body.get("metadata") or {}).get("user_id") if isinstance(body, dict) else None
        self.cut, self.cached = wish == "cut", (70, 110) if wish == "cached" else (0, 0)
        time.sleep({"slow": 1, "slower": 4, "slowest": 15}.get(wish, 0))
        if wish == "fail":
            self.fail(529, "overloaded_error", "too much to do")
            return
        if path in ("/v1/chat/completions", "/v1/responses"):
            if not self.headers.get("Authorization"):
                self.answer(401, {"error": {"message": "no key", "type": "invalid_request_error", "param": None, "code": None}})
            elif path == "/v1/responses":
                self.response(body, len(raw))
            else:
                self.chat_completion(body, len(raw))
            return
        if path == "/v1/messages/count_tokens":
            self.answer(200, {"input_tokens": len(raw) // 4})
        elif path != "/v1/messages":
            self.fail(404, "not_found_error", "no such resource: " + path)
        elif not (self.headers.get("x-api-key") or self.headers.get("Authorization")):
            self.fail(401, "authentication_error", "no key")
        else:
            self.messages(body, len(raw) // 4)

    def note(self, body):
        self.server.note({
            "time": time.time(),
            "client": self.client_address[0],
            "method": self.command,
            "path": self.path,
            "host": self.headers.get("Host"),
            "x_api_key": self.headers.get("x-api-key"),
            "authorization": self.headers.get("Authorization"),
            "headers": dict(self.headers.items()),
            "model": body.get("model") if body else None,
            "tool_results": tool_results(body.get("messages", [])) if body else None,
            "stream": bool(body.get("stream")) if body else None,
            "body": body,
        })

    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, kind, message):
        self.answer(status, {"type": "error", "error": {"type": kind, "message": message}})

    def script_of(self, messages):
        return chosen_script(messages) or self.server.script

    def conversation(self, body):
        """The tools that the agent offers, how many results of them it has had, and its script: (tools, count,
        script), or None if it goes on with a message that was never sent."""
        messages = body.get("messages", [])
        tools, count = body.get("tools") or [], tool_results(messages)
        thread = body.get("thread") or {}
        if thread.get("type") != "continue":
            return tools, count, self.script_of(messages)
        with self.server.lock:
            before = self.server.threads.get(thread.get("previous_message_id"))
        return before and (tools or before[0], before[1] + count, before[2])

    def messages(self, body, input_tokens):
        conversation = self.conversation(body)
        if conversation is None:
            self.fail(404, "not_found_error", "no such message to continue")
            return
        tools, turn, script = conversation
        text, wanted = script[min(turn, len(script) - 1)] if tools else ("csvsum", None)
        content = [{"type": "text", "text": text}]
        if wanted:
            name, arguments = bind_tool(wanted, tools)
            content.append({"type": "tool_use", "id": "toolu_" + uuid.uuid4().hex[:24], "name": name, "input": arguments})
        message = {
            "id": "msg_" + uuid.uuid4().hex[:24], "type": "message", "role": "assistant", "model": body.get("model"),
            "content": content, "stop_reason": "tool_use" if wanted else "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": input_tokens, "output_tokens": 1, "cache_creation_input_tokens": self.cached[0],
                      "cache_read_input_tokens": self.cached[1]},
        }
        with self.server.lock:
            self.server.threads[message["id"]] = (tools, turn, script)
        output_tokens = len(json.dumps(content)) // 4
        if body.get("stream"):
            self.stream(message, output_tokens)
        else:
            message["usage"]["output_tokens"] = output_tokens
            self.answer(200, message)

    def event(self, kind, **fields):
        self.chunk(("event: %s\ndata: %s\n\n" % (kind, json.dumps({"type": kind, **fields}))).encode())

    def event_data(self, value):
        self.chunk(("data: %s\n\n" % json.dumps(value)).encode())

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
        if self.server.delay:
            time.sleep(self.server.delay)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def end_stream(self, last=b""):
        if last:
            self.chunk(last)
        self.wfile.write(b"0\r\n\r\n")

    def stream(self, message, output_tokens):
        self.begin_stream()
        self.event("message_start", message={**message, "content": [], "stop_reason": None})
        for index, block in enumerate(message["content"]):
            if block["type"] == "text":
                self.event("content_block_start", index=index, content_block={"type": "text", "text": ""})
                for piece in (block["text"][i:i + 24] for i in range(0, len(block["text"]), 24)):
                    self.event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
            else:
                self.event("content_block_start", index=index, content_block={**block, "input": {}})
                self.event("content_block_delta", index=index,
                           delta={"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
            if self.cut:
                self.close_connection = True
                return
            self.event("content_block_stop", index=index)
        self.event("message_delta", delta={"stop_reason": message["stop_reason"], "stop_sequence": None},
                   usage={"output_tokens": output_tokens})
        self.event("message_stop")
        self.end_stream()


def serve(address, cert, key, log_path, script="fix-csvsum", delay=0.0):
    """A running provider in this process; call .shutdown() to end it."""
    return Provider(address, log_path, script, delay).start(cert, key)


def main():
    parser = argparse.ArgumentParser(description="scripted Anthropic Messages API")
    parser.add_argument("--listen", required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--log", required=True)
    parser.add_argument("--script", default="fix-csvsum", choices=sorted(SCRIPTS))
    parser.add_argument("--delay", type=float, default=0.0, help="seconds between two events of a stream")
    arguments = parser.parse_args()
    host, port = arguments.listen.rsplit(":", 1)
    serve((host, int(port)), arguments.cert, arguments.key, arguments.log, arguments.script, arguments.delay)
    print("listening on", arguments.listen, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
