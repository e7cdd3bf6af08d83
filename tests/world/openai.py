# SPDX-License-Identifier: LGPL-2.1-or-later
"""The wire protocol of OpenAI's Responses and Chat Completions, for provider.py: one sentence, streamed or not, and what it used.

Of the input, a quarter counts as read from a cache. Mixed into a handler that has answer(), event_data() and begin_stream()."""

import uuid

TEXT = "There is nothing to do, and that is all there is to say about it."


def tokens(size):
    return size // 4


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
        usage = {"input_tokens": tokens(size), "output_tokens": tokens(len(TEXT)), "total_tokens": tokens(size) + tokens(len(TEXT)),
                 "input_tokens_details": {"cached_tokens": tokens(size) // 4}, "output_tokens_details": {"reasoning_tokens": 0}}
        response = {"id": "resp_" + uuid.uuid4().hex, "object": "response", "model": body.get("model"), "status": "completed",
                    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": TEXT}]}], "usage": usage}
        if not body.get("stream"):
            self.answer(200, response)
            return
        self.begin_stream()
        self.event_data({"type": "response.created", "response": {**response, "status": "in_progress", "output": [], "usage": None}})
        for piece in (TEXT[i:i + 8] for i in range(0, len(TEXT), 8)):
            self.event_data({"type": "response.output_text.delta", "delta": piece})
        self.event_data({"type": "response.completed", "response": response})
        self.end_stream()
