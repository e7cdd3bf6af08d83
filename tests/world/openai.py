# SPDX-License-Identifier: LGPL-2.1-or-later
"""The wire protocol of OpenAI's Responses and Chat Completions, for provider.py: one sentence, streamed or not, and what it used;
to Codex, which comes with tools, the turns of a script.

Of the input, a quarter counts as read from a cache. Mixed into a handler that has answer(), event(), event_data() and begin_stream()."""

import json
import uuid

TEXT = "There is nothing to do, and that is all there is to say about it."

# Codex gives its models one tool, "exec", which runs JavaScript; what else there is are functions in that. One call of it is one result, however
# slow the machine: a command that is not done after half a minute is asked again.
RUN = """// @exec: {"yield_time_ms": 600000}
let r = await tools.exec_command({cmd: %s, yield_time_ms: 30000}), said = r.output;
while (r.session_id !== undefined) {
        r = await tools.write_stdin({session_id: r.session_id, chars: "", yield_time_ms: 30000});
        said += r.output;
}
text(said);
"""
PATCH = "text(await tools.apply_patch(%s));\n"


def tokens(size):
    return size // 4


def items(body):
    """The conversation: what was said, called and answered. In short, it is one text."""
    return body["input"] if isinstance(body.get("input"), list) else []


def offered_tools(body):
    """The names of all tools that came with a request, those in a namespace and those among the input included."""
    tools = list(body.get("tools") or [])
    for item in items(body):
        if item.get("type") == "additional_tools":
            tools += item["tools"]
    return {inner.get("name") for tool in tools for inner in tool.get("tools", [tool])}


def tool_results(body):
    return sum(1 for item in items(body) if item.get("type", "").endswith("_call_output"))


def bind_tool(wanted):
    """A script's tool as what the model would write for "exec"."""
    if wanted["kind"] == "bash":
        return RUN % json.dumps(wanted["command"])
    if wanted["kind"] == "read":
        return RUN % json.dumps("cat -- '%s'" % wanted["path"])
    if wanted["kind"] == "edit":
        lines = ["*** Begin Patch", "*** Update File: " + wanted["path"], "@@", *("-" + line for line in wanted["old"].split("\n")),
                 *("+" + line for line in wanted["new"].split("\n")), "*** End Patch", ""]
        return PATCH % json.dumps("\n".join(lines))
    raise KeyError(wanted["kind"])


def output_of(text, wanted):
    """The output of one turn: a message, and the call of a tool or none."""
    output = [{"type": "message", "id": "msg_" + uuid.uuid4().hex, "status": "completed", "role": "assistant",
               "content": [{"type": "output_text", "text": text, "annotations": []}]}]
    if wanted:
        output.append({"type": "custom_tool_call", "id": "ctc_" + uuid.uuid4().hex, "call_id": "call_" + uuid.uuid4().hex[:24],
                       "status": "completed", "name": "exec", "input": bind_tool(wanted)})
    return output


class OpenAI:
    def chat_completion(self, body, size):
        usage = {"prompt_tokens": tokens(size), "completion_tokens": tokens(len(TEXT)), "total_tokens": tokens(size) + tokens(len(TEXT)),
                 "prompt_tokens_details": {"cached_tokens": tokens(size) // 4}}
        common = {"id": "chatcmpl-" + uuid.uuid4().hex, "created": 1, "model": body.get("model")}
        if not body.get("stream"):
            self.answer(200, {**common, "object": "chat.completion", "usage": usage, "choices": [
                {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}]})
            return
        include = (body.get("stream_options") or {}).get("include_usage")
        extra = {"usage": None} if include else {}
        self.begin_stream()
        for piece in (TEXT[i:i + 8] for i in range(0, len(TEXT), 8)):
            self.event_data({**common, **extra, "object": "chat.completion.chunk", "choices": [
                {"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
        self.event_data({**common, **extra, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if include:
            self.event_data({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.end_stream(b"data: [DONE]\n\n")

    def response(self, body, size):
        """One sentence to who has no tools, to Codex the script's next turn."""
        text, wanted = TEXT, None
        if "exec" in offered_tools(body):
            script = self.script_of(items(body))
            text, wanted = script[min(tool_results(body), len(script) - 1)]
        output = output_of(text, wanted)
        written = tokens(sum(len(item.get("input", text)) for item in output))
        usage = {"input_tokens": tokens(size), "output_tokens": written, "total_tokens": tokens(size) + written,
                 "input_tokens_details": {"cached_tokens": tokens(size) // 4}, "output_tokens_details": {"reasoning_tokens": 0}}
        response = {"id": "resp_" + uuid.uuid4().hex, "object": "response", "model": body.get("model"), "status": "completed",
                    "output": output, "usage": usage}
        if body.get("stream"):
            self.stream_response(response)
        else:
            self.answer(200, response)

    def stream_response(self, response):
        self.begin_stream()
        self.event("response.created", response={**response, "status": "in_progress", "output": [], "usage": None})
        for index, item in enumerate(response["output"]):
            about = {"output_index": index, "item_id": item["id"]}
            message = item["type"] == "message"
            emptied = {**item, "content": []} if message else {**item, "input": ""}
            self.event("response.output_item.added", output_index=index, item={**emptied, "status": "in_progress"})
            kind, said = ("output_text", item["content"][0]["text"]) if message else ("custom_tool_call_input", item["input"])
            for piece in (said[i:i + 8] for i in range(0, len(said), 8)):
                self.event("response.%s.delta" % kind, delta=piece, **about, **({"content_index": 0} if message else {}))
            self.event("response.output_item.done", output_index=index, item=item)
        self.event("response.completed", response=response)
        self.end_stream()
