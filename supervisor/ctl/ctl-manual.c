/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * As much of mdoc(7) as our own page has: sections, tagged lists, literal displays, and the macros within lines. Words are put
 * together until one begins that does not cling to the one before; then there is a whole word, and it is known whether it fits
 * into the line. What is no macro of the list is text; a line with an unknown one (.Dd, .Os, a comment) says nothing.
 */

#include "ctl/ctl-manual.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ctl/ctl-table.h"
#include "util/cleanup.h"

enum { TOKENS_MAX = 64, LINE_MAX_SIZE = 1024, LISTS_MAX = 4, ITEM_INDENT = 8 };

typedef struct Page {
        FILE *f;
        size_t columns, indent;
        size_t at;                    /* column; 0: nothing is in the line */
        char word[LINE_MAX_SIZE];     /* that is being put together */
        size_t n_word;
        bool cling;                   /* the next piece belongs to it */
        bool literal;
        bool blank;                   /* the last line was empty, or there is none */
        bool tag;                     /* … or a list's tag, to which another may follow */
        size_t lists[LISTS_MAX], n_lists; /* the indents around them */
        bool compact;
} Page;

/* ---- words and lines ---- */

static void flush_word(Page *p) {
        size_t width;

        if (p->n_word == 0)
                return;
        p->word[p->n_word] = '\0';
        width = text_width(p->word, SIZE_MAX, NULL);
        if (p->at > 0 && p->at + 1 + width > p->columns) {
                (void) fputc('\n', p->f);
                p->at = 0;
        }
        if (p->at == 0)
                (void) fprintf(p->f, "%*s", (int) p->indent, "");
        else
                (void) fputc(' ', p->f);
        p->at = (p->at == 0 ? p->indent : p->at + 1) + width;
        (void) fputs(p->word, p->f);
        p->n_word = 0;
        p->blank = p->tag = false;
}

static void end_line(Page *p) {
        flush_word(p);
        if (p->at > 0)
                (void) fputc('\n', p->f);
        p->at = 0;
        p->cling = false;
}

static void empty_line(Page *p) {
        end_line(p);
        if (!p->blank)
                (void) fputc('\n', p->f);
        p->blank = true;
}

/* One character of the text, with what stands for it: \e, \&, \-, \[u2026]. Returns what follows. */
static const char *decode(const char *s, char out[static 4], size_t *ret_n) {
        static const char ellipsis[3] = { '\xe2', '\x80', '\xa6' };

        *ret_n = 1;
        out[0] = *s;
        if (*s != '\\' || !s[1])
                return s + 1;
        if (strncmp(s, "\\[u2026]", 8) == 0) {
                memcpy(out, ellipsis, sizeof(ellipsis));
                *ret_n = sizeof(ellipsis);
                return s + 8;
        }
        *ret_n = s[1] == '&' ? 0 : 1;
        out[0] = s[1] == 'e' ? '\\' : s[1];
        return s + 2;
}

static void add_piece(Page *p, const char *text) {
        if (!p->cling)
                flush_word(p);
        while (*text && p->n_word < sizeof(p->word) - 4) {
                size_t n;

                text = decode(text, p->word + p->n_word, &n);
                p->n_word += n;
        }
        p->cling = false;
}

static void add_clinging(Page *p, const char *text) {
        p->cling = p->n_word > 0;
        add_piece(p, text);
}

static bool is_one_of(const char *s, const char *chars) {
        return s[0] && !s[1] && strchr(chars, s[0]);
}

/* ---- macros within a line ---- */

static const struct Inline {
        const char *name, *before, *after; /* around the rest of the line */
} enclosures[] = { { "Op", "[", "]" }, { "Pq", "(", ")" }, { "Ql", "'", "'" } };

static const char *const plain[] = { "Ar", "Sy", "Pa", "Em", "Li", "Cm", "Ic", "Ev", "Nm", "Nd", NULL };

static bool is_plain(const char *s) {
        for (size_t i = 0; plain[i]; i++)
                if (strcmp(s, plain[i]) == 0)
                        return true;
        return false;
}

static const struct Inline *find_enclosure(const char *s) {
        for (size_t i = 0; i < ELEMENTSOF(enclosures); i++)
                if (strcmp(s, enclosures[i].name) == 0)
                        return enclosures + i;
        return NULL;
}

static bool is_inline(const char *s) {
        static const char *const others[] = { "Fl", "Ns", "Oo", "Oc", "Po", "Pc", "Xr" };

        for (size_t i = 0; i < ELEMENTSOF(others); i++)
                if (strcmp(s, others[i]) == 0)
                        return true;
        return is_plain(s) || find_enclosure(s);
}

/* One that is no macro. */
static void add_word(Page *p, const char *word, bool flag) {
        if (is_one_of(word, ".,;:?!)]")) {
                add_clinging(p, word);
                return;
        }
        if (flag) {
                add_piece(p, "-");
                add_clinging(p, word);
        } else
                add_piece(p, word);
        p->cling = is_one_of(word, "([");
}

static void add_tokens(Page *p, char **tokens, size_t n) {
        const char *closers[TOKENS_MAX] = {};
        size_t n_closers = 0, end = n;
        bool flag = false;

        while (end > 0 && is_one_of(tokens[end - 1], ".,;:?!)]"))
                end--;
        for (size_t i = 0; i < end; i++) {
                const struct Inline *e = find_enclosure(tokens[i]);
                bool alone = i + 1 == end || is_inline(tokens[i + 1]);

                if (e) {
                        add_piece(p, e->before);
                        p->cling = true;
                        closers[n_closers++] = e->after;
                } else if (strcmp(tokens[i], "Oo") == 0 || strcmp(tokens[i], "Po") == 0) {
                        add_piece(p, tokens[i][0] == 'O' ? "[" : "(");
                        p->cling = true;
                } else if (strcmp(tokens[i], "Oc") == 0 || strcmp(tokens[i], "Pc") == 0)
                        add_clinging(p, tokens[i][0] == 'O' ? "]" : ")");
                else if (strcmp(tokens[i], "Ns") == 0)
                        p->cling = true;
                else if (strcmp(tokens[i], "Xr") == 0 && i + 2 < end) {
                        add_piece(p, tokens[i + 1]);
                        add_clinging(p, "(");
                        add_clinging(p, tokens[i + 2]);
                        add_clinging(p, ")");
                        i += 2;
                } else if (strcmp(tokens[i], "Nm") == 0 && alone)
                        add_piece(p, "anchorctl");
                else if (!is_inline(tokens[i])) {
                        add_word(p, tokens[i], flag);
                        continue;
                }
                flag = strcmp(tokens[i], "Fl") == 0;
        }
        while (n_closers > 0)
                add_clinging(p, closers[--n_closers]);
        for (size_t i = end; i < n; i++)
                add_clinging(p, tokens[i]);
}

/* ---- macros that are a line ---- */

static void title(Page *p, size_t indent, char **tokens, size_t n) {
        empty_line(p);
        p->indent = indent;
        add_tokens(p, tokens, n);
        end_line(p);
        p->indent = 4;
}

static void begin_item(Page *p, char **tokens, size_t n) {
        size_t outer = p->n_lists > 0 ? p->lists[p->n_lists - 1] : 0;

        end_line(p);
        if (!p->compact && !p->tag)
                empty_line(p);
        p->indent = outer;
        add_tokens(p, tokens, n);
        end_line(p);
        p->tag = true;
        p->indent = outer + ITEM_INDENT;
}

static void add_literal(Page *p, const char *line) {
        char piece[4];
        size_t n;

        (void) fprintf(p->f, "%*s", (int) p->indent + 4, "");
        while (*line) {
                line = decode(line, piece, &n);
                (void) fwrite(piece, 1, n, p->f);
        }
        (void) fputc('\n', p->f);
        p->blank = p->tag = false;
}

static void block(Page *p, const char *line, char **tokens, size_t n) {
        const char *name = tokens[0];

        if (strcmp(name, "Sh") == 0)
                title(p, 0, tokens + 1, n - 1);
        else if (strcmp(name, "Ss") == 0)
                title(p, 2, tokens + 1, n - 1);
        else if (strcmp(name, "Pp") == 0)
                empty_line(p);
        else if (strcmp(name, "It") == 0)
                begin_item(p, tokens + 1, n - 1);
        else if (strcmp(name, "Bl") == 0 && p->n_lists < LISTS_MAX) {
                end_line(p);
                p->lists[p->n_lists++] = p->indent;
                p->compact = n > 1 && strcmp(tokens[n - 1], "-compact") == 0;
        } else if (strcmp(name, "El") == 0 && p->n_lists > 0) {
                end_line(p);
                p->indent = p->lists[--p->n_lists];
                p->compact = false;
        } else if (strcmp(name, "Bd") == 0) {
                end_line(p);
                p->literal = true;
        } else if (strcmp(name, "Dl") == 0) {
                end_line(p);
                add_literal(p, line + strlen(".Dl "));
        } else if (is_inline(name)) {
                if (strcmp(name, "Nd") == 0)
                        add_piece(p, "-");
                add_tokens(p, tokens, n);
        }
}

static size_t split(char *line, char *tokens[static TOKENS_MAX]) {
        size_t n = 0;

        for (char *save = NULL, *t = strtok_r(line, " ", &save); t && n < TOKENS_MAX; t = strtok_r(NULL, " ", &save))
                tokens[n++] = t;
        return n;
}

static void add_line(Page *p, const char *line, size_t size) {
        char whole[LINE_MAX_SIZE], pieces[LINE_MAX_SIZE], *tokens[TOKENS_MAX];
        size_t n;

        if (size >= sizeof(whole))
                size = sizeof(whole) - 1;
        memcpy(whole, line, size);
        whole[size] = '\0';
        if (p->literal && strcmp(whole, ".Ed") == 0)
                p->literal = false;
        else if (p->literal)
                add_literal(p, whole);
        else {
                memcpy(pieces, whole, size + 1);
                n = split(*pieces == '.' ? pieces + 1 : pieces, tokens);
                if (*whole == '.' && n > 0)
                        block(p, whole, tokens, n);
                else
                        for (size_t i = 0; i < n; i++)
                                add_piece(p, tokens[i]);
        }
}

/* ---- all of it, or a part ---- */

/* Is this line the tag of that verb? ".It Ic policy log Oo …" */
static bool is_tag_of(const char *line, const char *verb) {
        size_t n = strlen(verb);

        return strncmp(line, ".It Ic ", 7) == 0 && strncmp(line + 7, verb, n) == 0 && (line[7 + n] == ' ' || line[7 + n] == '\n');
}

static const char *next_line(const char *line) {
        const char *end = strchr(line, '\n');

        return end ? end + 1 : line + strlen(line);
}

int manual_print(FILE *f, const char *page, const char *verb, unsigned columns) {
        Page p = { .f = f, .columns = columns > 20 ? columns : 80, .blank = true };
        const char *line = page;
        unsigned depth = 0;

        if (verb) {
                while (*line && !is_tag_of(line, verb))
                        line = next_line(line);
                while (strncmp(line, ".It ", 4) == 0) /* others may share the text */
                        line = next_line(line);
                if (!*line)
                        return -ENOENT;
        }
        for (; *line; line = next_line(line)) {
                if (verb && depth == 0 && (strncmp(line, ".It ", 4) == 0 || strncmp(line, ".El", 3) == 0))
                        break;
                depth += strncmp(line, ".Bl", 3) == 0;
                depth -= strncmp(line, ".El", 3) == 0 && depth > 0;
                add_line(&p, line, strcspn(line, "\n"));
        }
        end_line(&p);
        return 0;
}
