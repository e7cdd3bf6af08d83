/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A set of egress rules, and the index in which the rules for a question are found.
 *
 * What a question costs must not depend on how many rules there are. So each pattern is a node in a hash table, found by
 * the name itself, by each shorter suffix of its labels (a wildcard's), or by each prefix length of an address that some rule
 * has. A node's rules are grouped by port, permissions and denials apart, and what can be known before a request is known
 * (protocol, inspection, the rule to name) stands in the group. Paths are sorted by the literal text that they begin with: of
 * all texts that begin a request's path, each begins the next longer one, so that one binary search and a walk
 * along `parent` finds them all.
 *
 * Everything lies in an arena that goes with the set; a set is immutable once built, and shared by reference.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdalign.h>
#include <string.h>

#include "policy/policy-egress.h"

enum { ARENA_CHUNK_SIZE = 256 * 1024 };

typedef struct ArenaChunk {
        struct ArenaChunk *next; /* owned */
        size_t used, size;
        alignas(max_align_t) char data[];
} ArenaChunk;

/* ---- memory ---- */

void *egress_rules_alloc(EgressRules *s, size_t size) {
        ArenaChunk *c = s->arena;
        void *p;

        size = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
        if (!c || c->size - c->used < size) {
                size_t room = size > ARENA_CHUNK_SIZE ? size : ARENA_CHUNK_SIZE;

                c = malloc(sizeof(*c) + room);
                if (!c)
                        return NULL;
                c->next = s->arena;
                c->used = 0;
                c->size = room;
                s->arena = c;
        }

        p = c->data + c->used;
        c->used += size;
        return memset(p, 0, size);
}

const char *egress_rules_text(EgressRules *s, const char *text) {
        size_t n = strlen(text) + 1;
        char *p = egress_rules_alloc(s, n);

        return p ? memcpy(p, text, n) : NULL;
}

int egress_rules_new(EgressRules **ret, size_t n_allow, size_t n_deny) {
        _cleanup_(egress_rules_unrefp) EgressRules *s = NULL;

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;

        s->n_ref = 1;
        s->n_allow = n_allow;
        s->n_rules = n_allow + n_deny;
        s->rules = egress_rules_alloc(s, (s->n_rules + 1) * sizeof(*s->rules));
        if (!s->rules)
                return -ENOMEM;

        *ret = TAKE_PTR(s);
        return 0;
}

EgressRules *egress_rules_ref(EgressRules *s) {
        if (s)
                atomic_fetch_add(&s->n_ref, 1);
        return s;
}

EgressRules *egress_rules_unref(EgressRules *s) {
        if (!s || atomic_fetch_sub(&s->n_ref, 1) > 1)
                return NULL;

        for (ArenaChunk *c = s->arena, *next; c; c = next) {
                next = c->next;
                free(c);
        }
        free(s->nodes);
        free(s->table);
        free(s->groups);
        free(s->heads);
        free(s->entries);
        free(s);
        return NULL;
}

uint64_t egress_rules_method(EgressRules *s, const char *method) {
        for (size_t i = 0; i < s->n_methods; i++)
                if (strcmp(s->methods[i], method) == 0)
                        return UINT64_C(1) << i;

        /* the last bit is for every other method, so that all bits together stand for any */
        if (s->n_methods >= EGRESS_METHODS_MAX - 1)
                return 0;
        s->methods[s->n_methods] = egress_rules_text(s, method);
        return s->methods[s->n_methods] ? UINT64_C(1) << s->n_methods++ : 0;
}

static bool network_parse(const char *text, int *ret_family, uint8_t ret[static 16], unsigned *ret_length) {
        char copy[INET6_ADDRSTRLEN + 8], *slash;

        (void) snprintf(copy, sizeof(copy), "%s", text);
        slash = strchr(copy, '/');
        if (slash)
                *slash = '\0';
        *ret_family = strchr(copy, ':') ? AF_INET6 : AF_INET;
        *ret_length = slash ? (unsigned) atoi(slash + 1) : *ret_family == AF_INET ? 32 : 128;
        return inet_pton(*ret_family, copy, ret) == 1;
}

bool egress_rules_overlap(const EgressRule *a, const EgressRule *b) {
        const char *x, *y;
        size_t n, m;

        if (a->subject == EGRESS_NETWORK || b->subject == EGRESS_NETWORK)
                return false;
        if (a->subject == EGRESS_EXACT && b->subject == EGRESS_EXACT)
                return strcmp(a->pattern, b->pattern) == 0;

        /* two wildcards: one suffix ends in the other; a name and a wildcard: the name ends in the suffix */
        x = a->pattern + (a->subject == EGRESS_WILDCARD);
        y = b->pattern + (b->subject == EGRESS_WILDCARD);
        n = strlen(x);
        m = strlen(y);
        if (a->subject == EGRESS_WILDCARD && (b->subject == EGRESS_EXACT || n <= m))
                return m >= n && strcmp(y + m - n, x) == 0 && (b->subject == EGRESS_WILDCARD || m > n);
        return n >= m && strcmp(x + n - m, y) == 0 && (a->subject == EGRESS_WILDCARD || n > m);
}

/* ---- nodes ---- */

static unsigned count_labels(const char *name) {
        unsigned n = 1;

        for (; *name; name++)
                n += *name == '.';
        return n;
}

/* FNV-1a. Keys are an operator's; a guest's names are only looked up. */
static uint64_t hash(EgressSubject subject, const char *key, size_t n) {
        uint64_t h = UINT64_C(0xcbf29ce484222325) ^ (uint64_t) subject;

        for (size_t i = 0; i < n; i++)
                h = (h ^ (uint8_t) key[i]) * UINT64_C(0x100000001b3);
        return h ^ (h >> 29);
}

/* Where the node is in the table, or the free place where it belongs. */
static uint32_t *find_slot(const EgressRules *s, EgressSubject subject, const char *key, size_t n) {
        for (size_t i = hash(subject, key, n) & s->table_mask;; i = (i + 1) & s->table_mask) {
                const EgressNode *node;

                if (s->table[i] == EGRESS_NO_RULE)
                        return &s->table[i];
                node = &s->nodes[s->table[i]];
                if (node->subject == subject && strncmp(node->key, key, n) == 0 && node->key[n] == '\0')
                        return &s->table[i];
        }
}

const EgressNode *egress_rules_find(const EgressRules *s, EgressSubject subject, const char *key, size_t n) {
        uint32_t found = s->n_nodes > 0 ? *find_slot(s, subject, key, n) : EGRESS_NO_RULE;

        return found == EGRESS_NO_RULE ? NULL : &s->nodes[found];
}

static void note_network(EgressRules *s, const char *pattern, unsigned *ret_length) {
        uint8_t address[16];
        int family;

        if (!network_parse(pattern, &family, address, ret_length))
                return;
        s->has_networks = true;
        s->network_bits[family == AF_INET6][*ret_length / 8] |= (uint8_t) (1U << (*ret_length % 8));
}

static uint32_t add_node(EgressRules *s, const EgressRule *r) {
        const char *key = r->subject == EGRESS_WILDCARD ? r->pattern + 2 : r->pattern;
        uint32_t *slot = find_slot(s, r->subject, key, strlen(key));
        EgressNode *node;

        if (*slot != EGRESS_NO_RULE)
                return *slot;

        node = &s->nodes[s->n_nodes];
        *node = (EgressNode) {
                .subject = r->subject,
                .pattern = r->pattern,
                .key = key,
                .first_rule = { EGRESS_NO_RULE, EGRESS_NO_RULE },
                .git = EGRESS_NO_RULE,
        };
        switch (r->subject) {
        case EGRESS_EXACT:
                node->specificity = UINT_MAX;
                break;
        case EGRESS_WILDCARD:
                node->specificity = count_labels(key);
                break;
        case EGRESS_NETWORK:
                note_network(s, key, &node->specificity);
                break;
        }
        return *slot = (uint32_t) s->n_nodes++;
}

static size_t covering_names(const EgressRules *s, const char *name, const EgressNode *ret[static EGRESS_COVERING_MAX]) {
        size_t n = 0, left = strlen(name);
        const EgressNode *node;

        node = egress_rules_find(s, EGRESS_EXACT, name, left);
        if (node)
                ret[n++] = node;

        for (const char *dot = strchr(name, '.'); dot && n < EGRESS_COVERING_MAX; dot = strchr(dot + 1, '.')) {
                node = egress_rules_find(s, EGRESS_WILDCARD, dot + 1, left - (size_t) (dot + 1 - name));
                if (node)
                        ret[n++] = node;
        }
        return n;
}

static size_t covering_networks(const EgressRules *s, const char *text, const EgressNode *ret[static EGRESS_COVERING_MAX]) {
        unsigned bits;
        uint8_t address[16];
        size_t n = 0;
        int family;

        if (!s->has_networks || strlen(text) >= INET6_ADDRSTRLEN || strchr(text, '/') || !network_parse(text, &family, address, &bits))
                return 0;

        for (unsigned length = bits; length > 0 && n < EGRESS_COVERING_MAX; length--) {
                char key[INET6_ADDRSTRLEN + 16];
                const EgressNode *node;

                if (length < bits)
                        address[length / 8] &= (uint8_t) ~(0x80U >> (length % 8));
                if (!(s->network_bits[family == AF_INET6][length / 8] & (1U << (length % 8))) ||
                    !inet_ntop(family, address, key, INET6_ADDRSTRLEN))
                        continue;
                (void) snprintf(key + strlen(key), 16, "/%u", length);
                node = egress_rules_find(s, EGRESS_NETWORK, key, strlen(key));
                if (node)
                        ret[n++] = node;
        }
        return n;
}

size_t egress_rules_covering(const EgressRules *s, const char *subject, const EgressNode *ret[static EGRESS_COVERING_MAX]) {
        char normal[254];

        if (!s || s->n_nodes == 0)
                return 0;
        return egress_normalise_name(subject, normal) == 0 ? covering_names(s, normal, ret) : covering_networks(s, subject, ret);
}

/* ---- groups ---- */

/* One rule at one port; what the groups are made from. */
typedef struct Place {
        uint32_t node, rule;
        uint16_t port;
        bool deny;
} Place;

static int compare_places(const void *a, const void *b) {
        const Place *x = a, *y = b;

        if (x->node != y->node)
                return x->node < y->node ? -1 : 1;
        if (x->deny != y->deny)
                return x->deny ? 1 : -1;
        if (x->port != y->port)
                return x->port < y->port ? -1 : 1;
        return (x->rule > y->rule) - (x->rule < y->rule);
}

const EgressGroup *egress_node_group(const EgressRules *s, const EgressNode *node, bool deny, uint16_t port) {
        size_t low = node->groups[deny], high = low + node->n_groups[deny];

        while (low < high) {
                size_t middle = low + (high - low) / 2;

                if (s->groups[middle].port == port)
                        return &s->groups[middle];
                if (s->groups[middle].port < port)
                        low = middle + 1;
                else
                        high = middle;
        }
        return NULL;
}

static int compare_entries(const void *a, const void *b) {
        const EgressEntry *x = a, *y = b;
        size_t n = x->pattern->length[0], m = y->pattern->length[0];
        int c;

        c = memcmp(x->pattern->bytes, y->pattern->bytes, n < m ? n : m);
        if (c != 0)
                return c;
        if (n != m)
                return n < m ? -1 : 1;
        return (x->rule > y->rule) - (x->rule < y->rule);
}

static bool begins(const EgressHead *head, const EgressHead *with) {
        return head->n >= with->n && memcmp(head->bytes, with->bytes, with->n) == 0;
}

/* One head for each text with which entries begin; its parent is on the way back from the one before. */
static void build_heads(EgressRules *s, EgressGroup *g, size_t first, size_t n_entries, size_t *n_heads) {
        g->heads = (uint32_t) *n_heads;

        for (size_t i = first; i < first + n_entries; i++) {
                EgressHead head = { .bytes = s->entries[i].pattern->bytes, .n = s->entries[i].pattern->length[0], .parent = EGRESS_NO_RULE,
                                    .first = (uint32_t) i, .n_entries = 1 };

                if (g->n_heads > 0) {
                        EgressHead *last = &s->heads[*n_heads - 1];
                        uint32_t parent = (uint32_t) *n_heads - 1;

                        if (last->n == head.n && begins(&head, last)) {
                                last->n_entries++;
                                continue;
                        }
                        while (parent != EGRESS_NO_RULE && !begins(&head, &s->heads[parent]))
                                parent = s->heads[parent].parent;
                        head.parent = parent;
                }
                s->heads[(*n_heads)++] = head;
                g->n_heads++;
        }
}

/* Adds a rule to the entries from `first` on, unless earlier ones have its methods already. */
static uint32_t add_unless_known(EgressRules *s, size_t first, uint32_t n, uint64_t methods, uint32_t rule) {
        uint64_t seen = 0;

        for (size_t i = 0; i < n; i++)
                seen |= s->entries[first + i].methods;
        if ((methods & ~seen) == 0)
                return n;

        s->entries[first + n] = (EgressEntry) { .methods = methods, .rule = rule };
        return n + 1;
}

/* What is known before a request is. */
static void summarise_group(const EgressRules *s, EgressGroup *g, const Place *places, size_t n) {
        const EgressRule *first = &s->rules[places->rule];

        *g = (EgressGroup) {
                .port = places->port,
                .inspect = first->inspect,
                .first = places->rule,
                .connect = places->rule,
                .unconditional = EGRESS_NO_RULE,
                .all_git = true,
        };
        for (size_t i = 0; i < first->n_ports; i++)
                if (first->ports[i].port == places->port)
                        g->protocol = first->ports[i].protocol;

        for (size_t i = 0; i < n; i++) {
                const EgressRule *r = &s->rules[places[i].rule];

                g->methods |= r->methods;
                g->conditional |= r->n_paths > 0 || r->methods != EGRESS_ANY_METHOD;
                g->some_git |= r->git != NULL;
                g->all_git &= r->git != NULL;
                if (r->n_paths > 0 && s->rules[g->connect].n_paths == 0)
                        g->connect = places[i].rule;
                if (r->n_paths == 0 && r->methods == EGRESS_ANY_METHOD && g->unconditional == EGRESS_NO_RULE)
                        g->unconditional = places[i].rule;
        }
}

static void build_group(EgressRules *s, const Place *places, size_t n, size_t *n_entries, size_t *n_heads) {
        EgressGroup *g = &s->groups[s->n_groups++];
        size_t first_path;

        summarise_group(s, g, places, n);

        g->open = (uint32_t) *n_entries;
        for (size_t i = 0; i < n; i++)
                if (s->rules[places[i].rule].n_paths == 0)
                        g->n_open = add_unless_known(s, g->open, g->n_open, s->rules[places[i].rule].methods, places[i].rule);
        *n_entries += g->n_open;

        g->odd = (uint32_t) *n_entries;
        for (size_t i = 0; i < n; i++)
                if (s->rules[places[i].rule].n_paths > 0)
                        g->n_odd = add_unless_known(s, g->odd, g->n_odd, s->rules[places[i].rule].methods, places[i].rule);
        *n_entries += g->n_odd;

        first_path = *n_entries;
        for (size_t i = 0; i < n; i++) {
                const EgressRule *r = &s->rules[places[i].rule];

                for (size_t k = 0; k < r->n_paths; k++)
                        s->entries[(*n_entries)++] = (EgressEntry) { .pattern = &r->paths[k], .methods = r->methods, .rule = places[i].rule };
        }
        if (*n_entries > first_path)
                qsort(s->entries + first_path, *n_entries - first_path, sizeof(*s->entries), compare_entries);
        build_heads(s, g, first_path, *n_entries - first_path, n_heads);
}

static void list_places(const EgressRules *s, const uint32_t *node_of, Place *places) {
        size_t n = 0;

        for (size_t i = 0; i < s->n_rules; i++) {
                const EgressRule *r = &s->rules[i];

                for (size_t k = 0; k < r->n_ports || (k == 0 && r->n_ports == 0); k++)
                        places[n++] = (Place) {
                                .node = node_of[i],
                                .rule = (uint32_t) i,
                                .port = r->n_ports > 0 ? r->ports[k].port : 0,
                                .deny = r->deny,
                        };
        }
}

static int build_groups(EgressRules *s, const uint32_t *node_of) {
        size_t n_places = 0, n_paths = 0, n_entries = 0, n_heads = 0;
        _cleanup_free_ Place *places = NULL;

        for (size_t i = 0; i < s->n_rules; i++) {
                size_t ports = s->rules[i].n_ports ?: 1;

                n_places += ports;
                n_paths += ports * s->rules[i].n_paths;
        }
        if (n_places + n_paths > EGRESS_ENTRIES_MAX)
                return -E2BIG;

        /* one more than there are: there may be none */
        places = calloc(n_places + 1, sizeof(*places));
        s->groups = calloc(n_places + 1, sizeof(*s->groups));
        s->entries = calloc(n_places + n_paths + 1, sizeof(*s->entries));
        s->heads = calloc(n_paths + 1, sizeof(*s->heads));
        if (!places || !s->groups || !s->entries || !s->heads)
                return -ENOMEM;

        list_places(s, node_of, places);
        qsort(places, n_places, sizeof(*places), compare_places);

        for (size_t i = 0, end; i < n_places; i = end) {
                EgressNode *node = &s->nodes[places[i].node];
                bool deny = places[i].deny;

                for (end = i + 1; end < n_places && places[end].node == places[i].node && places[end].deny == deny &&
                                  places[end].port == places[i].port;
                     end++)
                        ;
                if (node->n_groups[deny]++ == 0)
                        node->groups[deny] = (uint32_t) s->n_groups;
                build_group(s, &places[i], end - i, &n_entries, &n_heads);
        }
        return 0;
}

/* ---- the whole ---- */

int egress_rules_build(EgressRules *s) {
        _cleanup_free_ uint32_t *node_of = NULL;
        size_t size = 8;

        while (size < 2 * s->n_rules)
                size *= 2;
        s->table_mask = size - 1;
        s->table = malloc(size * sizeof(*s->table));
        s->nodes = calloc(s->n_rules + 1, sizeof(*s->nodes));
        node_of = calloc(s->n_rules + 1, sizeof(*node_of));
        if (!s->table || !s->nodes || !node_of)
                return -ENOMEM;
        memset(s->table, 0xff, size * sizeof(*s->table)); /* EGRESS_NO_RULE in each */

        for (size_t i = 0; i < s->n_rules; i++) {
                EgressRule *r = &s->rules[i];
                EgressNode *node;

                node_of[i] = add_node(s, r);
                node = &s->nodes[node_of[i]];
                if (node->first_rule[r->deny] == EGRESS_NO_RULE)
                        node->first_rule[r->deny] = (uint32_t) i;
                if (!r->deny)
                        node->max_names = r->max_names;
                if (r->git && node->git == EGRESS_NO_RULE)
                        node->git = (uint32_t) i;
        }

        return build_groups(s, node_of) ?: egress_rules_digest(s);
}
