/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * policy import: Anthropic sandbox-runtime's settings (srt-settings.json) as an egress policy.
 *
 * What has a counterpart is network.allowedDomains and deniedDomains, deniedDomainReasons as descriptions, and tlsTerminate as inspection.
 * Three things differ and are taken account of: there a denied domain is denied however specific the permission, here a more specific
 * permission wins, so that permissions which a denial covers are left out; there all permissions add up, here the most specific one counts alone, so that it gets
 * the ports of the wider ones; and there an entry without a port is for every port, here
 * ports are named, so that it becomes 443 and 80. More ports of one name than a rule may have are several rules. Every other key is named on the error stream with the reason why it
 * has no counterpart; a key that this list does not know is named as well.
 *
 * What is printed was read by the loader before: it loads, or nothing is printed but why not.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ctl/ctl-egress.h"
#include "policy/policy.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

enum {
        SETTINGS_MAX_SIZE = 4 * 1024 * 1024,
        DOMAINS_MAX = 10000,    /* of one list: each is compared with each */
        PORTS_MAX = 64,         /* of one rule, as the loader has it */
        ENTRIES_MAX = 1 << 20,  /* ports of all rules together, as the loader has it */
};

/* An entry of allowedDomains, deniedDomains or excludeDomains. */
typedef struct Domain {
        char pattern[256];  /* as policy writes it; "*" for everything */
        uint16_t port;      /* 0: any */
        const char *text;   /* borrowed; as it was written */
} Domain;

typedef struct Domains {
        Domain *list; /* owned */
        size_t n;
} Domains;

typedef struct Import {
        Ctl *ctl;
        Domains allowed, denied, excluded;
        const json_t *reasons; /* borrowed; may be NULL */
        bool inspect;
        size_t n_entries;      /* of the rules so far */
} Import;

static void import_done(Import *i) {
        free(i->allowed.list);
        free(i->denied.list);
        free(i->excluded.list);
}

static const struct {
        const char *key, *why;
} no_counterpart[] = {
        { "network.allowUnixSockets", "the guest is a machine of its own: its sockets are its own business, and the host's are out of its reach" },
        { "network.allowAllUnixSockets", "the guest is a machine of its own: its sockets are its own business, and the host's are out of its reach" },
        { "network.allowLocalBinding", "the guest may listen in its own machine, and nothing outside can connect to it" },
        { "network.allowMachLookup", "there is no macOS here" },
        { "network.allowAllDomains", "nothing is allowed but what is named" },
        { "network.strictAllowlist", "what is not allowed is always denied; nobody is asked" },
        { "network.httpProxyPort", "the proxy is the host's own, one for each run" },
        { "network.socksProxyPort", "the proxy is the host's own, and any TCP connection to an allowed name is carried" },
        { "network.mitmProxy", "\"tls\": \"inspect\" with a credential does what such a proxy is for" },
        { "network.parentProxy", "the host connects by itself" },
        { "network.filterRequest", "\"methods\" and \"paths\" of a rule say which requests are allowed" },
        { "network.tlsTerminate.caCertPath", "each run has a CA of its own" },
        { "network.tlsTerminate.caKeyPath", "each run has a CA of its own" },
        { "network.tlsTerminate.extraCaCertPaths", "put the certificates into /etc/anchorhold/upstream-ca.d" },
        { "filesystem.disabled", "the guest sees no file of the host" },
        { "filesystem.denyRead", "the guest sees no file of the host" },
        { "filesystem.allowRead", "the guest sees no file of the host" },
        { "filesystem.allowWrite", "the guest sees no file of the host; its result is a git bundle" },
        { "filesystem.denyWrite", "the guest sees no file of the host; its result is a git bundle" },
        { "filesystem.allowGitConfig", "a result with anything but commits is refused" },
        { "credentials.files", "a file of policy/credentials says what takes a sentinel's place, and where" },
        { "credentials.envVars", "a workflow's \"env\" has {\"sentinel\": CREDENTIAL}, and a file of policy/credentials says where it is good" },
        { "credentials.allowPlaintextInject", "a credential is only ever put into TLS" },
        { "credentials.awsPairs", "signing keys cannot be put in place" },
        { "credentials.sigv4", "signing keys cannot be put in place" },
        { "ignoreViolations", "every denial is recorded; \"anchorctl policy log\" selects" },
        { "enableWeakerNestedSandbox", "the guest is a microVM" },
        { "enableWeakerNetworkIsolation", "there is no macOS here" },
        { "allowAppleEvents", "there is no macOS here" },
        { "allowPty", "the guest has its own" },
        { "ripgrep", "nothing searches the guest's files" },
        { "mandatoryDenySearchDepth", "nothing searches the guest's files" },
        { "seccomp", "the guest is a microVM" },
        { "bwrapPath", "the guest is a microVM" },
        { "socatPath", "the guest is a microVM" },
        { "windows", "there is no Windows here" },
        { "git", "a workflow's prepare step configures git in the guest" },
};

/* ---- domains ---- */

/* "example.com", "*.example.com", either with ":443"; of a denial "*" as well, and "*.com". What is wrong, or NULL. */
static const char *parse_domain(const char *text, bool deny, Domain *ret) {
        const char *colon = strrchr(text, ':');
        _cleanup_free_ char *host = colon ? strndup(text, (size_t) (colon - text)) : strdup(text);
        Domain d = { .text = text };
        bool wildcard;

        if (!host)
                return "needs more memory";
        if (colon) {
                char *end = NULL;
                unsigned long port = colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 0;

                if (port < 1 || port > 65535 || *end != '\0')
                        return "is no domain";
                d.port = (uint16_t) port;
        }
        if (strcmp(host, "localhost") == 0)
                return "is the guest itself, which needs no rule";
        if (strcmp(host, "*") == 0) {
                if (!deny)
                        return "is everything";
                strcpy(d.pattern, "*");
                *ret = d;
                return NULL;
        }

        wildcard = strncmp(host, "*.", 2) == 0;
        strcpy(d.pattern, wildcard ? "*." : "");
        if (egress_written_name(host + (wildcard ? 2 : 0), d.pattern + (wildcard ? 2 : 0)))
                return "is no host name; literal addresses are denied";
        if (wildcard && !deny && egress_is_public_suffix(d.pattern + 2))
                return "would admit names that anybody may register";
        if (!deny && egress_never_find(d.pattern))
                return wildcard ? "covers a cloud's metadata service, which no run may reach" : "is a name that no run may reach";

        *ret = d;
        return NULL;
}

static bool covers(const Domain *wide, const Domain *narrow) {
        size_t n = strlen(narrow->pattern), m = strlen(wide->pattern);

        if (strcmp(wide->pattern, "*") == 0 || strcmp(wide->pattern, narrow->pattern) == 0)
                return true;
        return wide->pattern[0] == '*' && n >= m && strcmp(narrow->pattern + n - (m - 1), wide->pattern + 1) == 0;
}

static CtlExit read_domains(Import *i, const json_t *array, const char *where, bool deny, Domains *ret) {
        if (!array)
                return CTL_OK;
        if (!json_is_array(array))
                return ctl_usage(i->ctl, "%s must be an array.", where);
        if (json_array_size(array) > DOMAINS_MAX) {
                ctl_error(i->ctl, "%s has more than %d entries: write such a policy by hand.", where, DOMAINS_MAX);
                return CTL_FAILED;
        }

        ret->list = calloc(json_array_size(array) + 1, sizeof(*ret->list));
        if (!ret->list)
                return ctl_report(i->ctl, "import the settings", -ENOMEM, NULL, NULL);
        for (size_t k = 0; k < json_array_size(array); k++) {
                const char *text = json_string_value(json_array_get(array, k)), *wrong;

                if (!text)
                        return ctl_usage(i->ctl, "%s must have strings.", where);
                wrong = parse_domain(text, deny, &ret->list[ret->n]);
                if (wrong)
                        ctl_error(i->ctl, "%s: \"%s\" is left out: it %s.", where, text, wrong);
                else
                        ret->n++;
        }
        return CTL_OK;
}

/* ---- rules ---- */

static bool is_denied(const Import *i, const Domain *d, uint16_t port) {
        for (size_t k = 0; k < i->denied.n; k++)
                if (covers(&i->denied.list[k], d) && (i->denied.list[k].port == 0 || i->denied.list[k].port == port))
                        return true;
        return false;
}

static bool is_excluded(const Import *i, const Domain *d) {
        for (size_t k = 0; k < i->excluded.n; k++)
                if (covers(&i->excluded.list[k], d))
                        return true;
        return false;
}

static bool has_port(const json_t *ports, uint16_t port) {
        for (size_t k = 0; k < json_array_size(ports); k++) {
                const json_t *p = json_array_get(ports, k);

                if (json_integer_value(json_is_object(p) ? json_object_get(p, "port") : p) == port)
                        return true;
        }
        return false;
}

static int add_port(Import *i, const Domain *d, uint16_t port, bool tell, json_t *ports) {
        if (has_port(ports, port))
                return 0;
        if (is_denied(i, d, port)) {
                if (tell)
                        ctl_error(i->ctl, "network.allowedDomains: \"%s\" is left out for port %u: network.deniedDomains denies it.", d->text, port);
                return 0;
        }
        if (port == 443 || port == 80)
                return json_array_append_new(ports, json_integer(port));

        if (tell)
                ctl_error(i->ctl, "network.allowedDomains: \"%s\": that port %u carries \"%s\" is a guess.", d->text, port, ctl_guess_protocol(port));
        return json_array_append_new(ports, json_pack("{s:i, s:s}", "port", port, "protocol", ctl_guess_protocol(port)));
}

/* The ports of every entry for that pattern, and of those for wider ones, which its own rule takes the place of: two rules for one would have to agree. `tell`: also
 * what is left out or guessed. */
static json_t *ports_of(Import *i, const Domain *d, bool tell) {
        json_t *ports = json_array();
        int r = ports ? 0 : -1;

        for (size_t k = 0; r == 0 && k < i->allowed.n; k++) {
                const Domain *other = &i->allowed.list[k];
                bool own = strcmp(other->pattern, d->pattern) == 0;

                if (covers(other, d))
                        r = other->port ? add_port(i, d, other->port, tell && own, ports)
                                        : add_port(i, d, 443, tell && own, ports) ?: add_port(i, d, 80, tell && own, ports);
        }
        return r < 0 ? json_unref(ports) : ports;
}

static bool is_first(const Domains *domains, const Domain *d) {
        for (const Domain *other = domains->list; other < d; other++)
                if (strcmp(other->pattern, d->pattern) == 0)
                        return false;
        return true;
}

static bool carries_tls(const json_t *ports) {
        for (size_t k = 0; k < json_array_size(ports); k++) {
                const json_t *p = json_array_get(ports, k);

                if (json_integer_value(p) == 443 || strcmp(ctl_string(p, "protocol") ?: "", "tls") == 0)
                        return true;
        }
        return false;
}

static int add_rule(const char *pattern, const json_t *ports, size_t first, bool inspect, json_t *rules) {
        _cleanup_json_ json_t *some = json_array(), *rule = NULL;

        for (size_t k = first; some && k < first + PORTS_MAX && k < json_array_size(ports); k++)
                if (json_array_append(some, json_array_get(ports, k)) < 0)
                        return -ENOMEM;
        rule = some ? json_pack("{s:s, s:O}", "name", pattern, "ports", some) : NULL;
        if (!rule || (inspect && carries_tls(some) && json_object_set_new(rule, "tls", json_string("inspect")) < 0))
                return -ENOMEM;
        return json_array_append(rules, rule);
}

/* One rule, or as many as these ports take. -E2BIG: with those before they are more than a policy has. */
static int add_rules(Import *i, const char *pattern, const json_t *ports, bool inspect, json_t *rules) {
        int r = 0;

        i->n_entries += json_array_size(ports);
        if (i->n_entries > ENTRIES_MAX)
                return -E2BIG;
        for (size_t k = 0; r == 0 && k < json_array_size(ports); k += PORTS_MAX)
                r = add_rule(pattern, ports, k, inspect, rules);
        return r;
}

static int add_allow(Import *i, const Domain *d, json_t *rules) {
        _cleanup_json_ json_t *ports = ports_of(i, d, true);

        return ports ? add_rules(i, d->pattern, ports, i->inspect && !is_excluded(i, d), rules) : -ENOMEM;
}

static void remove_denied_ports(const Import *i, const Domain *d, json_t *ports) {
        for (size_t k = json_array_size(ports); k-- > 0;) {
                const json_t *p = json_array_get(ports, k);

                if (is_denied(i, d, (uint16_t) json_integer_value(json_is_object(p) ? json_object_get(p, "port") : p)))
                        (void) json_array_remove(ports, k);
        }
}

/* A host that is not to be inspected below a wildcard that is: a rule of its own, with the wildcard's ports. It beats denials by
 * wildcards, so that the ports which one of these denies are not among them. */
static int add_exclusions(Import *i, json_t *rules) {
        for (size_t k = 0; i->inspect && k < i->excluded.n; k++) {
                const Domain *x = &i->excluded.list[k], *wide = NULL;
                bool own = false;

                for (size_t m = 0; m < i->allowed.n; m++) {
                        own |= strcmp(i->allowed.list[m].pattern, x->pattern) == 0;
                        if (covers(&i->allowed.list[m], x) && (!wide || strlen(i->allowed.list[m].pattern) > strlen(wide->pattern)))
                                wide = &i->allowed.list[m];
                }
                if (!own && wide && is_first(&i->excluded, x)) {
                        _cleanup_json_ json_t *ports = ports_of(i, wide, false);
                        int r;

                        remove_denied_ports(i, x, ports);
                        r = ports ? add_rules(i, x->pattern, ports, false, rules) : -ENOMEM;
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

static int make_allow(Import *i, json_t **ret) {
        _cleanup_json_ json_t *rules = json_array();
        int r = rules ? 0 : -ENOMEM;

        for (size_t k = 0; r == 0 && k < i->allowed.n; k++)
                if (is_first(&i->allowed, &i->allowed.list[k]))
                        r = add_allow(i, &i->allowed.list[k], rules);
        if (r == 0)
                r = add_exclusions(i, rules);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(rules);
        return 0;
}

static json_t *make_deny(Import *i) {
        json_t *rules = json_array();

        for (size_t k = 0; rules && k < i->denied.n; k++) {
                const Domain *d = &i->denied.list[k];
                const char *reason = ctl_string(i->reasons, d->text);
                json_t *rule;

                /* what is not allowed is denied: "*" has done its work by then */
                if (strcmp(d->pattern, "*") == 0)
                        continue;
                rule = json_pack("{s:s, s:s*}", "name", d->pattern, "description", reason);
                if (!rule || (d->port && json_object_set_new(rule, "ports", json_pack("[i]", d->port)) < 0)) {
                        json_unref(rule);
                        return json_unref(rules);
                }
                if (json_array_append_new(rules, rule) < 0)
                        return json_unref(rules);
        }
        return rules;
}

/* ---- keys ---- */

static void name_key(Ctl *ctl, const char *key) {
        for (size_t i = 0; i < ELEMENTSOF(no_counterpart); i++)
                if (strcmp(no_counterpart[i].key, key) == 0) {
                        ctl_error(ctl, "%s has no counterpart: %s.", key, no_counterpart[i].why);
                        return;
                }
        ctl_error(ctl, "%s has no counterpart: it is not known.", key);
}

static bool is_taken(const char *key) {
        static const char *const taken[] = {
                "network.allowedDomains", "network.deniedDomains", "network.deniedDomainReasons", "network.tlsTerminate.excludeDomains",
        };

        for (size_t i = 0; i < ELEMENTSOF(taken); i++)
                if (strcmp(taken[i], key) == 0)
                        return true;
        return false;
}

static void name_keys(Ctl *ctl, const json_t *object, const char *prefix) {
        static const char *const containers[] = { "network", "filesystem", "credentials", "network.tlsTerminate" };
        const char *key;
        json_t *value;

        json_object_foreach((json_t *) object, key, value) {
                _cleanup_free_ char *full = text_format("%s%s%s", prefix, *prefix ? "." : "", key);
                bool container = false;

                for (size_t i = 0; full && i < ELEMENTSOF(containers); i++)
                        container |= strcmp(containers[i], full) == 0 && json_is_object(value);
                if (!full)
                        continue;
                if (container)
                        name_keys(ctl, value, full);
                else if (!is_taken(full))
                        name_key(ctl, full);
        }
}

/* ---- the policy ---- */

/* Takes both parts over. CTL_OK: it loads. */
static CtlExit join(Import *i, const char *file, json_t *allow, json_t *deny, json_t **ret) {
        _cleanup_free_ char *safe = text_escape(file, strlen(file), false), *description = NULL, *text = NULL, *reason = NULL;
        _cleanup_json_ json_t *policy = NULL;
        int r;

        description = safe ? text_format("Imported from the sandbox-runtime settings %s.", safe) : NULL;
        policy = json_pack("{s:s*, s:o, s:o}", "description", description, "allow", allow, "deny", deny);
        text = policy ? json_dumps(policy, JSON_COMPACT) : NULL;
        r = text ? policy_check_text(POLICY_TEXT_EGRESS, text, strlen(text), &reason) : -ENOMEM;
        if (r == -EINVAL) {
                ctl_error(i->ctl, "%s: what it asks for is no policy that would load: %s. Take that out of it, or write the policy by hand.", safe, reason);
                return CTL_FAILED;
        }
        if (r < 0)
                return ctl_report(i->ctl, "import the settings", r, NULL, NULL);
        *ret = TAKE_PTR(policy);
        return CTL_OK;
}

static CtlExit make_policy(Import *i, const char *file, json_t **ret) {
        json_t *allow = NULL, *deny;
        int r;

        r = make_allow(i, &allow);
        if (r == -E2BIG) {
                ctl_error(i->ctl, "The rules for network.allowedDomains would have more than %d ports together: write such a policy by hand.", ENTRIES_MAX);
                return CTL_FAILED;
        }
        deny = r < 0 ? NULL : make_deny(i);
        if (!deny) {
                json_unref(allow);
                return ctl_report(i->ctl, "import the settings", -ENOMEM, NULL, NULL);
        }
        return join(i, file, allow, deny, ret);
}

/* ---- the verb ---- */

static json_t *read_settings(Ctl *ctl, const char *file, CtlExit *ret_exit) {
        _cleanup_free_ char *text = NULL, *reason = NULL;
        json_t *settings = NULL;
        size_t size;
        int r;

        r = strcmp(file, "-") == 0 ? io_read_fd(STDIN_FILENO, SETTINGS_MAX_SIZE, &text, &size)
                                   : io_read_file(AT_FDCWD, file, SETTINGS_MAX_SIZE, &text, &size);
        if (r < 0) {
                ctl_error(ctl, "Cannot read %s: %s", file, strerror(-r));
                *ret_exit = ctl_exit_of_errno(r);
                return NULL;
        }

        *ret_exit = CTL_FAILED;
        if (json_parse(text, size, &settings, &reason) < 0) {
                ctl_error(ctl, "%s: %s", file, reason ?: "is no JSON");
                return NULL;
        }
        if (!json_is_object(settings) || (json_object_get(settings, "network") && !json_is_object(json_object_get(settings, "network")))) {
                ctl_error(ctl, "%s: is no settings file of sandbox-runtime", file);
                return json_unref(settings);
        }
        return settings;
}

/* --name=, or what the file's name gives. */
static CtlExit find_name(Ctl *ctl, const char *file, char ret[static 64]) {
        const char *base = strrchr(file, '/'), *dot;

        if (ctl->o.name && !text_is_name(ctl->o.name))
                return ctl_usage(ctl, "\"%s\" is no name for a policy: a lower-case letter, then letters, digits and dashes.", ctl->o.name);

        base = ctl->o.name ?: base ? base + 1 : file;
        dot = strrchr(base, '.');
        (void) snprintf(ret, 64, "%.*s", dot && !ctl->o.name ? (int) (dot - base) : 63, base);
        if (!text_is_name(ret))
                strcpy(ret, "imported");
        return CTL_OK;
}

static CtlExit read_all(Import *i, const json_t *settings) {
        const json_t *network = json_object_get(settings, "network"), *tls = json_object_get(network, "tlsTerminate");
        CtlExit r;

        i->inspect = json_is_object(tls);
        i->reasons = json_object_get(network, "deniedDomainReasons");
        r = read_domains(i, json_object_get(network, "allowedDomains"), "network.allowedDomains", false, &i->allowed);
        if (r == CTL_OK)
                r = read_domains(i, json_object_get(network, "deniedDomains"), "network.deniedDomains", true, &i->denied);
        if (r == CTL_OK)
                r = read_domains(i, json_object_get(tls, "excludeDomains"), "network.tlsTerminate.excludeDomains", false, &i->excluded);
        return r;
}

CtlExit ctl_verb_policy_import(Ctl *ctl) {
        _cleanup_(import_done) Import i = { .ctl = ctl };
        _cleanup_json_ json_t *settings = NULL, *policy = NULL;
        const char *file = ctl->o.args[1];
        char name[64];
        CtlExit r;

        r = find_name(ctl, file, name);
        if (r != CTL_OK)
                return r;
        settings = read_settings(ctl, file, &r);
        if (!settings)
                return r;
        r = read_all(&i, settings);
        if (r != CTL_OK)
                return r;

        for (size_t k = 0; k < i.allowed.n; k++)
                if (i.allowed.list[k].port == 0) {
                        ctl_error(ctl, "network.allowedDomains: entries without a port are taken for ports 443 and 80; name others by hand.");
                        break;
                }
        name_keys(ctl, settings, "");

        r = make_policy(&i, file, &policy);
        if (r != CTL_OK)
                return r;
        if (ctl->o.json == CTL_JSON_OFF)
                ctl->o.json = CTL_JSON_PRETTY;
        r = ctl_print_json(ctl, policy);
        if (r == CTL_OK)
                ctl_note(ctl, "To use it, put it into /etc/anchorhold/policy/egress/%s.json and name it in a workflow.", name);
        return r;
}
