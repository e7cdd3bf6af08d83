/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What an agent prints, in one piece or byte by byte: the same is shown. */

#include <stdlib.h>
#include <string.h>

#include "run/agent-view.h"
#include "util/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char rules[] =
        "[{\"when\":{\"/type\":\"assistant\"},\"each\":\"/message/content\",\"where\":{\"/type\":\"text\"},\"format\":\"{/text}\"},"
        " {\"when\":{\"/type\":\"tool\"},\"format\":\"> {/name} {/input}\"}]";

static char *view(const json_t *display, const uint8_t *data, size_t size, size_t piece) {
        _cleanup_(agent_view_freep) AgentView *v = NULL;

        if (agent_view_new(&v, display) < 0)
                abort();
        for (size_t i = 0; i < size; i += piece)
                if (agent_view_push(v, data + i, size - i < piece ? size - i : piece) < 0)
                        abort();
        if (agent_view_end(v) < 0)
                abort();
        return agent_view_take(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_free_ char *whole = NULL, *pieces = NULL;
        static json_t *display;

        if (!display && json_parse(rules, strlen(rules), &display, NULL) < 0)
                abort();

        whole = view(display, data, size, size ?: 1);
        pieces = view(display, data, size, 3);
        if (!whole != !pieces || (whole && strcmp(whole, pieces) != 0))
                abort();
        return 0;
}
